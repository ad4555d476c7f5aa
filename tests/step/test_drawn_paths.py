"""Steps on fabrics that draw paths: the median of draws, never faster than planned, folded as every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.step.bound import bounds
from tspsim.step.simulation import look_up, run_plan
from tspsim.studies.planner.planner import Planner

ECMP = {"policy": "ecmp", "seed": 0, "seeds": 3}
TREE = {"device": "mi300x", "nodes": 16, "fabric": "fat-tree-400g", "oversubscription": 4}


def asked(cluster: dict[str, Any] = TREE, **plans: dict[str, Any]) -> dict[str, Any]:
    workload = {"model": "llama-3.1-8b", "pass": "training", "sequence": "2Ki", "sequences_per_replica": 1}
    return {"name": "drawn", "cluster": cluster, "workload": workload,
            "plans": [{"name": name, "tp": 8, "zero": 1, **keys} for name, keys in plans.items()]}  # fmt: skip


def test_the_answer_is_the_median_draw_and_says_between_which_the_others_lie() -> None:
    each = {f"seed {seed}": {"routing": {"policy": "ecmp", "seed": seed, "seeds": 1}} for seed in range(3)}
    result = tspsim.simulate(asked(planned={"routing": "planned"}, all={"routing": ECMP}, **each))
    steps = sorted(result.plan(name).step_time_s for name in each)
    drawn = result.plan("all")
    assert drawn.step_time_s == steps[1] == drawn.draws["step_time_s"]["p50"]
    assert drawn.draws == {"policy": "ecmp", "seed": 0, "seeds": 3, "step_time_s": {
        "p5": steps[0], "p50": steps[1], "p95": steps[-1]}}  # fmt: skip
    assert drawn.to_json()["draws"] == drawn.draws
    assert "of 3 draws half take" in drawn.notes[-1]
    planned = result.plan("planned")
    assert planned.step_time_s < steps[0]
    assert not planned.draws
    assert "draws" not in planned.to_json()


def test_routing_of_the_cluster_is_that_of_plans_which_state_none() -> None:
    one = ECMP | {"seeds": 1}
    stated = tspsim.simulate(asked(one={"routing": one}, other={})).plans
    of_cluster = tspsim.simulate(asked(TREE | {"routing": one}, one={}, other={"routing": "spread"})).plans
    assert [plan.step_time_s for plan in stated] == [plan.step_time_s for plan in of_cluster]


def test_a_plan_that_names_no_routing_has_none_in_its_data() -> None:
    scenario = tspsim.load(asked(one={}, other={"routing": "ecmp"}))
    plain, routed = scenario.to_dict()["plans"]
    assert "routing" not in plain
    assert routed["routing"] == {"policy": "ecmp", "seed": 0, "seeds": 20}
    assert "routing" not in scenario.to_dict()["cluster"]


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("policy", ["ecmp", "planned"])
def test_folded_equals_every_rank(policy: str) -> None:
    found = look_up(tspsim.load(asked(TREE | {"nodes": 9}, P={"routing": policy})))
    if policy == "ecmp":
        found = look_up(tspsim.load(asked(TREE | {"nodes": 9}, P={"routing": ECMP | {"seeds": 1}})))
    folded, whole = (run_plan(found, found.plans[0], every_rank=every) for every in (False, True))
    assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)
    assert sum(each.size for each in folded.classes) == len(whole.classes)
    for one, other in zip(folded.links, whole.links, strict=True):
        assert one.carried_bytes == pytest.approx(other.carried_bytes, rel=1e-9)


def test_folded_equals_every_rank_where_flows_draw_ports() -> None:
    two = {"device": "mi300x", "nodes": 2, "fabric": "fat-tree-2x200g", "routing": ECMP | {"seeds": 1}}
    workload = {"model": "qwen3-30b-a3b", "pass": "forward", "sequence": "2Ki"}
    plans = [{"name": "EP", "ep": 16, "expert_dispatch": "experts"}, {"name": "TP", "tp": 4}]
    found = look_up(tspsim.load({"name": "ports", "cluster": two, "workload": workload, "plans": plans}))
    for plan in found.plans:
        folded, whole = (run_plan(found, plan, every_rank=every) for every in (False, True))
        assert folded.step_time_s == pytest.approx(whole.step_time_s, rel=1e-9)


def test_no_draw_is_above_the_bound() -> None:
    scenario = tspsim.load(asked(planned={"routing": "planned"}, drawn={"routing": ECMP | {"seeds": 1}}))
    for floor, plan in zip(bounds(scenario).plans, tspsim.simulate(scenario).plans, strict=True):
        assert plan.tokens_per_s <= floor.tokens_per_s
        assert plan.mfu <= 1.0


def test_the_planner_compares_plans_on_one_draw_and_never_says_a_plan_beats_its_bound() -> None:
    small = asked(TREE | {"nodes": 9, "routing": ECMP}, stated={})
    planner = Planner(tspsim.load(small), top=1, jobs=1, budget_s=0.5)
    assert planner.question.cluster.routing.seeds == 1
    planned = planner.only_best()
    best = planned.best[0].result
    assert not best.draws
    assert best.step_time_s <= planned.stated[0].result.step_time_s  # type: ignore[union-attr]


def test_the_shipped_tree_loses_to_chance_what_a_plan_keeps() -> None:
    scenario = tspsim.load("ecmp-fat-tree")
    assert [plan.name for plan in scenario.plans] == ["Planned", "ECMP"]
    ratios = []
    for offer in scenario.offers:
        drawn = scenario.plans[1].model_copy(update={"routing": type(scenario.plans[1].routing)(**ECMP | {"seeds": 1})})
        each = scenario.model_copy(update={"cluster": offer.cluster, "plans": (scenario.plans[0], drawn), "offers": ()})
        planned, met = tspsim.simulate(each).plans
        ratios.append(met.step_time_s / planned.step_time_s)
    assert ratios[0] > ratios[1] > 1.1
    assert ratios[2] > ratios[1]
    assert ratios[3] == 1.0
    assert np.isfinite(ratios).all()


@pytest.mark.parametrize(
    ("routing", "said"),
    [
        ("ecpm", "'ecmp'"),
        ({"policy": "planned", "seeds": 4}, "draws none"),
        ({"policy": "ecmp", "seeds": 0}, "seeds"),
    ],
)
def test_wrong_routing_is_refused_where_it_stands(routing: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        tspsim.load(asked(P={"routing": routing}))
    assert "routing" in str(error.value)


def test_routing_of_a_plan_is_refused_beside_traffic() -> None:
    serving = {
        "name": "served", "cluster": "mi300x-8", "workload": {"model": "llama-3.1-8b"},
        "traffic": {"arrivals": {"kind": "closed", "concurrency": 1}, "prompt": {"kind": "fixed", "of": 64},
                    "output": {"kind": "fixed", "of": 4}, "requests": 1},
        "plans": [{"name": "P", "tp": 8, "routing": "planned"}],
    }  # fmt: skip
    with pytest.raises(InputError, match=r"cluster\.routing"):
        tspsim.load(serving)
