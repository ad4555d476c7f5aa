"""The answer of a fleet: its keys, and laws that hold of every one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.shipped import FLEETS

import tspsim
from tspsim.base.errors import InputError
from tspsim.fleet import FleetAnswer, load
from tspsim.fleet.need_keys import Needs
from tspsim.fleet.needs import reached

TRAINING = {"workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": "4Ki"}, "plan": {"tp": 8}}
MACHINE = {"device": "h100", "nodes": 8, "fabric": "fat-tree-400g"}
WRONG = {"model": "lama-3.1-8b", "pass": "training", "sequence": 8}
#: Keys of a job's entry that the contract names.
OF_A_JOB = ["name", "class", "nodes", "submit_s", "start_s", "end_s", "wait_s", "ettr", "slowdown", "restarts"]


def fleet(*jobs: dict[str, Any], **changes: Any) -> FleetAnswer:
    asked = {"name": "small", "cluster": MACHINE, "jobs": list(jobs)} | changes
    answer = tspsim.simulate(asked)
    assert isinstance(answer, FleetAnswer)
    return answer


def test_the_contract_of_its_json() -> None:
    answer = fleet(
        {"name": "a", "nodes": 4, "hours": "6 h"}, {"name": "b", "gpus": 2, "hours": "90 min", "submit": "1 h"}
    )
    told = json.loads(answer.dumps())["fleet"]
    assert {"allocated", "productive", "lost_gpu_hours", "energy_kwh", "cost_usd", "jobs"} <= set(told)
    for job in told["jobs"]:
        assert [key for key in job if key in OF_A_JOB] == OF_A_JOB
    assert [job["end_s"] for job in told["jobs"]] == [21_600.0, 9_000.0]
    lost = sum(told["lost_gpu_hours"].values())
    assert told["productive"] * answer.facts.gpu_hours + lost == pytest.approx(answer.facts.gpu_hours, rel=1e-12)
    assert (
        answer.dumps()
        == fleet(
            {"name": "a", "nodes": 4, "hours": "6 h"}, {"name": "b", "gpus": 2, "hours": "90 min", "submit": "1 h"}
        ).dumps()
    )


def test_one_job_without_failures_takes_what_its_own_scenario_says() -> None:
    own = {"name": "own", "cluster": MACHINE | {"nodes": 2}, "workload": TRAINING["workload"]}
    step = tspsim.simulate(own | {"plans": [{"name": "TP8", "tp": 8}]}).plans[0]
    (job,) = fleet({"name": "a", "nodes": 2, "steps": 1000} | TRAINING).facts.jobs
    assert job.end_s == pytest.approx(1000 * step.step_time_s, rel=1e-9)
    (job,) = fleet({"name": "a", "nodes": 2, "tokens": "1G"} | TRAINING).facts.jobs
    assert job.end_s == pytest.approx(1e9 / step.tokens_per_s, rel=1e-9)


def test_a_fleet_of_one_service_is_its_serving_scenario() -> None:
    workload = {"model": "llama-3.1-8b", "stack": "vllm"}
    traffic = {"arrivals": {"kind": "poisson", "rate": 4}, "prompt": 200, "output": 20, "requests": 20}
    own = {"name": "own", "cluster": MACHINE | {"nodes": 1}, "workload": workload, "traffic": traffic}
    alone = tspsim.simulate(own | {"plans": [{"name": "chat", "tp": 2, "router": "least_load"}]}).plans[0]
    keys = {"name": "chat", "workload": workload, "traffic": traffic, "plan": {"tp": 2, "router": "least_load"}}
    answer = fleet(keys | {"nodes": 1, "hours": "5 h"})
    assert answer.plans[0].serving == alone.serving
    assert answer.facts.jobs[0].end_s == 5 * 3600.0 and answer.facts.jobs[0].ettr == 1.0


@pytest.mark.parametrize("name", FLEETS)
def test_every_shipped_fleet_loads_and_is_written_out_to_the_same(name: str) -> None:
    question = load(name)
    assert question.name == name
    written = question.to_dict()
    assert load(written).to_dict() == written


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"jobs": [{"name": "a", "nodes": 9, "hours": "1 h"}]}, "nodes: 9, and the cluster has 8"),
        ({"jobs": [{"name": n, "hours": "1 h", "after": m} for n, m in ("ab", "ba")]}, "circle: a → b → a"),
        ({"jobs": [{"name": "a", "hours": "-1 h"}]}, "negative|at least|more than"),
        ({"jobs": [{"name": "a", "hours": "1 h"}], "scheduler": "eazy"}, "easy"),
        ({"jobs": [{"name": "a", "steps": 3, "workload": WRONG, "plan": {}}]}, "llama-3.1-8b"),
        ({"jobs": [{"name": "a", "nodes": 2}]}, "tokens, steps or hours"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        tspsim.simulate({"name": "small", "cluster": MACHINE, "jobs": []} | changes)
    assert "\n" not in str(error.value.args[0])


def test_a_step_is_not_loaded_as_a_fleet_nor_the_other_way() -> None:
    with pytest.raises(InputError, match="fleet of jobs"):
        tspsim.load("fleet-neighbours-fat-tree")
    with pytest.raises(InputError, match="jobs"):
        load("tsp-8x-h100")


def test_a_job_after_the_time_that_is_looked_at_is_to_come_and_waits_for_nothing() -> None:
    needs = {"p95_wait": "1 h"}
    answer = fleet(
        {"name": "a", "nodes": 8, "hours": "2 days"},
        {"name": "b", "nodes": 8, "hours": "1 h", "submit": "3 days"},
        {"name": "c", "nodes": 1, "hours": "1 h", "after": "a"},
        horizon="1 day",
        needs=needs,
    )
    assert [job.state for job in answer.facts.jobs] == ["running", "held", "to come"]
    assert reached(Needs(**needs), answer)[0].value == pytest.approx(0.95 * 86_400)


def test_a_job_has_the_nodes_that_it_got_and_what_is_not_there_is_nothing() -> None:
    """Of an elastic job the size that was free; without failures no GPU-hour is lost to them, not even by rounding."""
    jobs = [{"name": "wide", "nodes": 6, "hours": "1 h"}, {"name": "either", "nodes": [4, 2], "hours": "37 min"}]
    many = {"name": "small", "gpus": 3, "arrivals": {"kind": "poisson", "rate": "40/day"}, "count": 60, "hours": "1 h"}
    asked = {"name": "e", "cluster": MACHINE | {"nodes": 8}, "scheduler": "elastic", "jobs": [*jobs, many]}
    facts = tspsim.simulate(asked).facts
    had = {job.name: (job.nodes, job.gpus, job.start_s) for job in facts.jobs}
    assert had["wide"] == (6, 48, 0.0) and had["either"] == (2, 16, 0.0)
    assert facts.lost_gpu_hours["failed"] == 0.0
