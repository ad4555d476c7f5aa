"""Laws over random fleets."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.fleet import DURATIONS, JOB_SCHEDULERS, PLACEMENTS, answer, load
from tspsim.fleet.clock import Fleet
from tspsim.fleet.dispatcher import JobDispatcher
from tspsim.fleet.jobs import FleetJob
from tspsim.fleet.nodes import Nodes
from tspsim.fleet.schedulers import JobScheduler
from tspsim.fleet.schedulers.base import start_in_order
from tspsim.studies import contract
from tspsim.studies.contract import fleets

NODES, GPUS = 12, 8
REGISTERED = [
    *(f"job_schedulers/{name}" for name in JOB_SCHEDULERS),
    *(f"placements/{name}" for name in PLACEMENTS),
    *(f"durations/{name}" for name in DURATIONS if name == "fixed"),
]
#: Keys that a kind needs beside its name.
NEEDED = {"durations/fixed": {"of": "2 h"}}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", REGISTERED)
def test_all_that_is_registered_keeps_the_contract(name: str) -> None:
    checked = contract.check(name, NEEDED.get(name))
    assert checked.broken == () and checked.held > 5


class NarrowestFirst(JobScheduler):
    """Whoever fits goes: a wide job waits for as long as narrow ones come."""

    name = "narrowest_first"
    starvation_free = True

    def rank(self, job: FleetJob) -> tuple[Any, ...]:
        return (job.nodes, job.submit_s)

    def open(self) -> Callable[[JobDispatcher], None]:
        return start_in_order

    def in_words(self) -> str:
        return "the narrowest first"


def test_a_promise_that_nobody_starves_is_held() -> None:
    """Of those that promise it; one that does and lets wide jobs starve breaks the contract, without it he keeps it."""
    promised = {name for name in JOB_SCHEDULERS if JOB_SCHEDULERS.get(name).starvation_free}
    assert promised == {"fcfs", "easy", "conservative", "fair_share", "elastic"}
    for name in sorted(promised):
        assert fleets.starves_nobody({"kind": name}, name).outcome == "kept"
    JOB_SCHEDULERS.register(NarrowestFirst)
    try:
        (broken,) = contract.check("job_schedulers/narrowest_first").broken
        assert broken.law == "no job starves" and broken.why == "a job on all nodes never starts"
    finally:
        JOB_SCHEDULERS.remove("narrowest_first")


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Gap before it, nodes, seconds and priority of every job."""
    job = st.tuples(st.integers(0, 60), st.integers(1, NODES), st.integers(1, 200), st.integers(0, 2))
    return draw(st.lists(job, min_size=1, max_size=25))


def run(drawn: list[tuple[int, int, int, int]], nodes: int, scheduler: str, placement: str = "packed") -> Fleet:
    at = np.cumsum([gap for gap, *_ in drawn])
    jobs = [
        FleetJob(n, f"j{n}", "k", f"u{n % 3}", 0, float(at[n]), (wide,), (float(runs),), 2.0 * runs, 0, priority, True)
        for n, (_, wide, runs, priority) in enumerate(drawn)
    ]
    leaves = [range(begin, min(begin + 4, nodes)) for begin in range(0, nodes, 4)]
    policy: Any = JOB_SCHEDULERS.get(scheduler)()
    placed: Any = PLACEMENTS.get(placement)()
    fleet = Fleet(jobs, Nodes(leaves, GPUS), policy, placed, random=np.random.default_rng(0))
    fleet.run()
    return fleet


@given(rows(), st.integers(1, 6), st.sampled_from(sorted(PLACEMENTS)))
@settings(max_examples=25, deadline=None)
def test_more_nodes_never_start_a_job_later_under_first_come(
    drawn: list[tuple[int, int, int, int]], more: int, placement: str
) -> None:
    few, many = (run(drawn, nodes, "fcfs", placement) for nodes in (NODES, NODES + more))
    for before, after in zip(few.lives, many.lives, strict=True):
        assert after.started_s is not None and before.started_s is not None
        assert after.started_s <= before.started_s
    assert many.ended_s <= few.ended_s


@given(rows(), st.sampled_from(sorted(JOB_SCHEDULERS)), st.sampled_from(sorted(PLACEMENTS)))
@settings(max_examples=40, deadline=None)
def test_no_node_has_two_jobs_and_no_work_is_lost(
    drawn: list[tuple[int, int, int, int]], scheduler: str, placement: str
) -> None:
    fleet = run(drawn, NODES, scheduler, placement)
    held: dict[int, list[tuple[float, float]]] = {}
    spells = fleet.spells
    for start_s, end_s, nodes in zip(spells.start_s, spells.end_s, spells.nodes, strict=True):
        for node in nodes:
            held.setdefault(node, []).append((start_s, end_s))
    for times in held.values():
        times.sort()
        assert all(first[1] <= second[0] for first, second in pairwise(times))
    for job, life in zip(fleet.jobs, fleet.lives, strict=True):
        assert life.ended_s is not None and life.started_s is not None and life.started_s >= job.submit_s
        assert life.advanced_s == pytest.approx(job.work_s[0])
        assert life.ran_s == pytest.approx(life.productive_s + sum(life.lost_s.values()))
    total = fleet.ended_s * NODES * GPUS
    had = sum(life.gpu_s for life in fleet.lives)
    assert had + sum(fleet.occupancy.idle_gpu_s.values()) == pytest.approx(total)


@given(rows(), st.integers(0, 60), st.integers(1, NODES), st.integers(1, 500), st.sampled_from(sorted(PLACEMENTS)))
@example([(0, 5, 2, 1), (0, 8, 1, 1), (1, 1, 1, 0)], 0, 7, 2, "packed")
@example([(0, 1, 2, 0), (0, 4, 2, 0), (0, 1, 2, 0), (1, 8, 1, 1)], 0, 3, 2, "packed")
@settings(max_examples=25, deadline=None)
def test_a_job_of_no_priority_delays_no_other_under_preemption(
    drawn: list[tuple[int, int, int, int]], at: int, wide: int, runs: int, placement: str
) -> None:
    higher = [(gap, nodes, seconds, 1 + priority) for gap, nodes, seconds, priority in drawn]
    alone = [(life.started_s, life.ended_s) for life in run(higher, NODES, "priority", placement).lives]
    # It is submitted ``at`` seconds after all others' gaps begin, before the first.
    gap = higher[0][0]
    before = min(at, gap)
    added = [(before, wide, runs, 0), (gap - before, *higher[0][1:]), *higher[1:]]
    beside = [(life.started_s, life.ended_s) for life in run(added, NODES, "priority", placement).lives[1:]]
    assert beside == alone


MACHINE = {"device": "h100", "nodes": 6, "fabric": "fat-tree-400g"}
TRAINING = {"workload": {"model": "llama-3.1-8b", "pass": "training", "sequence": "4Ki"}, "plan": {"tp": 8}}
SERVICE = {
    "workload": {"model": "llama-3.1-8b", "stack": "vllm"},
    "traffic": {"arrivals": {"kind": "poisson", "rate": 4}, "prompt": 200, "output": 5, "requests": 20},
    "plan": {"tp": 8},
}  # fmt: skip


@cache
def own(steps: bool) -> Any:
    """A job alone, as a scenario of its own."""
    keys: dict[str, Any] = dict(TRAINING if steps else SERVICE)
    plan = {"name": "a", **keys.pop("plan")}
    return tspsim.simulate({"name": "own", "cluster": MACHINE | {"nodes": 2 if steps else 1}, **keys, "plans": [plan]})


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@pytest.mark.parametrize("scheduler", sorted(JOB_SCHEDULERS))
def test_one_job_or_one_service_is_its_own_scenario_whoever_starts_it(scheduler: str, placement: str) -> None:
    ways: dict[str, Any] = {"name": "one", "cluster": MACHINE, "scheduler": scheduler, "placement": placement}
    job = {"name": "a", "nodes": 2, "steps": 1000} | TRAINING
    alone = answer(load(ways | {"jobs": [job]}), lambda _: own(True))
    assert alone.facts.jobs[0].end_s == pytest.approx(1000 * own(True).plans[0].step_time_s, rel=1e-9)
    service = {"name": "a", "nodes": 1, "hours": "3 h"} | SERVICE
    served = answer(load(ways | {"jobs": [service]}), lambda _: own(False))
    assert served.plans[0].serving == own(False).plans[0].serving and served.facts.jobs[0].end_s == 3 * 3600.0


@given(st.integers(0, 2**31), st.sampled_from(sorted(JOB_SCHEDULERS)), st.sampled_from(sorted(PLACEMENTS)))
@settings(max_examples=12, deadline=None)
def test_the_same_seed_has_the_same_bytes(seed: int, scheduler: str, placement: str) -> None:
    arrivals = {"arrivals": {"kind": "poisson", "rate": "6/day"}, "count": 12, "preemptible": True}
    jobs = [
        {"name": "many", "nodes": [3, 2], "hours": {"kind": "lognormal", "median": "3 h", "sigma": 1}, **arrivals},
        {"name": "small", "gpus": 3, "hours": {"kind": "exponential", "mean": "2 h"}, "priority": 1, **arrivals},
    ]
    failures = {"components": {"gpu": {"rate": 500, "repair": "3 h"}}, "spares": 1, "checkpoint": {"every": "30 min"}}
    ways: dict[str, Any] = {"scheduler": scheduler, "placement": placement, "failures": failures, "seed": seed}
    asked = {"name": "s", "cluster": MACHINE, "jobs": jobs, "horizon": "6 days", **ways}
    first, again = (tspsim.simulate(asked).dumps() for _ in range(2))
    assert first == again
