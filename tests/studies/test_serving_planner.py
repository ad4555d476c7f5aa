"""The planner on serving steps: limits are kept, no stated plan within the search is better, and the budget is kept."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tspsim.base.errors import InfeasibleError, InputError
from tspsim.scenario import load
from tspsim.step.simulation import simulate
from tspsim.studies.planner import ServingPlanned, ServingPlanner

STATED = ({"name": "TP2", "tp": 2}, {"name": "TP2-DCP2", "tp": 2, "dcp": 2}, {"name": "PP2", "pp": 2})


def scenario(model: str = "llama-3.1-8b", *plans: dict[str, Any], **work: Any) -> Any:
    workload = {"model": model, "pass": "decode", "batch": 32, "context": 8192, **work}
    workload = {key: value for key, value in workload.items() if value is not None}
    plans = plans or ({"name": "stands in", "tp": 2},)
    cluster = {"device": "h100", "gpus_per_node": 2}
    return load({"name": "p", "cluster": cluster, "workload": workload, "plans": plans})


def planned(asked: Any, *limits: str, **keys: Any) -> ServingPlanned:
    return ServingPlanner(asked, limits=limits, **keys).run()


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("limits", [("tpot<=20ms",), ("step<=16ms", "memory_free>=20GiB")], ids=str)
def test_no_answer_breaks_a_limit_and_the_best_can_be_run_again(limits: tuple[str, ...]) -> None:
    answer = planned(scenario(), *limits, stated=False)
    assert answer.best and answer.complete
    for served in (*answer.best, *answer.front):
        assert all(limit.holds(served.result) for limit in answer.limits)
    best = answer.best[0]
    (plan,) = simulate(scenario("llama-3.1-8b", dict(best.keys), batch=best.batch)).plans
    assert plan.step_time_s == best.result.step_time_s


def test_no_stated_plan_is_better_than_the_best() -> None:
    """All of their keys are searched."""
    for objective in ("tokens_per_s", "time_per_output_token", "memory_headroom"):
        planner = ServingPlanner(scenario("llama-3.1-8b", *STATED), objective=objective)
        answer = planner.run()
        assert len(answer.stated) == len(STATED)
        best = planner.merit(answer.best[0].result)
        assert all(planner.merit(served.result) <= best for served in answer.stated)


def test_a_budget_that_is_over_still_answers_one_plan() -> None:
    begin_s = time.process_time()
    answer = planned(scenario(), budget_s=0.0, stated=False)
    assert len(answer.contenders) >= 1 and answer.best and not answer.complete
    assert time.process_time() - begin_s < 3.0


@pytest.mark.parametrize(
    ("work", "limit", "message"),
    [
        ({}, "ttft<=5ms", "a decode step has no ttft; use tpot, step, memory_free"),
        ({"pass": "prefill", "batch": None, "context": None, "sequence": 1024}, "tpot<=5ms", "a prefill has no tpot"),
    ],
)
def test_a_limit_of_another_step_is_refused(work: dict[str, Any], limit: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        planned(scenario(**work), limit, stated=False)


def test_a_limit_that_nothing_keeps_is_no_plan() -> None:
    with pytest.raises(InfeasibleError, match="no plan keeps tpot <= 1e-06"):
        planned(scenario(), "tpot<=1us", stated=False)
