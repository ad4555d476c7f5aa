"""Bounds of a search on the way from what many plans have in common to one plan: none exceeds a later one."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest

import tspsim
from tspsim.studies.planner import Planner
from tspsim.studies.planner.branch import Search
from tspsim.studies.planner.candidate import Candidate

CLUSTER = {"fabric": "rail-optimised-400g"}
#: The longest pipelines whose bound is quick to find.
STAGES = 4


def search_of(model: str, device: str, nodes: int, batch: int, **cluster: Any) -> Search:
    asked: dict[str, Any] = {
        "name": "t",
        "cluster": {**CLUSTER, "device": device, "nodes": nodes, **cluster},
        "workload": {"model": model, "pass": "training", "sequence": "4Ki", "global_batch": batch},
        "plans": [{"name": "any"}],
    }
    return Planner(tspsim.load(asked), stated=False, jobs=1, budget_s=1.0).search_at(nodes)


@pytest.fixture(scope="module")
def lite() -> Search:
    return search_of("deepseek-v2-lite", "h200", 2, 64)


def check(search: Search, count: int, seed: int) -> set[str]:
    """Schedules of pipelines that were met."""
    chance, sets, met = random.Random(seed), search.sets, set[str]()
    for spread in chance.sample(search.shapes.spreads, count):
        ways = sets.once(sets.dispatches, spread)
        for way in chance.sample(ways, min(1, len(ways))):
            floors = [sets.first_s(spread), sets.floor_s(way), sets.kernels_s(way), sets.waits_s(way)]
            assert max(floors[:2]) <= floors[2] * (1 + 1e-9)
            for family in sets.once(sets.recomputations, way):
                every = [(sets.once(sets.staged_s, each), each) for each in sets.once(sets.staged, family)]
                assert floors[3] <= min((bound_s for bound_s, _ in every), default=math.inf) * (1 + 1e-9), family.plan
            for bound_s, staged in chance.sample(every, min(3, len(every))):
                met |= {layout.plan.schedule for layout in ordered(search, staged, bound_s)}
    return met


def ordered(search: Search, staged: Candidate, bound_s: float) -> list[Candidate]:
    """Layouts around a schedule, none of which undercuts it."""
    sets = search.sets
    layouts = [each for each in sets.once(sets.pipelined, staged) if each.plan.pp <= STAGES]
    for layout in layouts:
        rough_s, outline_s = (
            sets.bound.rough_s(layout.job, layout.mesh), sets.bound.outline_s(layout.job, layout.mesh)
        )  # fmt: skip
        assert bound_s <= rough_s * (1 + 1e-9) and rough_s <= outline_s * (1 + 1e-9), layout.plan
    return layouts


@pytest.mark.in_turn(5, group="searches")
def test_no_bound_of_many_plans_exceeds_that_of_fewer(lite: Search) -> None:
    assert check(lite, 6, 5) >= {"1f1b", "zb-h1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "device", "nodes", "batch"),
    [("qwen3-30b-a3b", "mi300x", 4, 256), ("deepseek-v3", "h200", 32, 512), ("llama-3.1-8b", "h100", 4, 64)],
)
def test_no_bound_of_many_plans_exceeds_that_of_fewer_of_any_model(
    model: str, device: str, nodes: int, batch: int
) -> None:
    check(search_of(model, device, nodes, batch), 40, 7)


def test_weights_that_are_put_off_wait_less(lite: Search) -> None:
    """`zb-h1` around a gathered context was bounded as plain 1F1B: 1.067 s, and its longest path takes 1.049."""
    sets = lite.sets
    spread = next(
        each for each in lite.shapes.spreads
        if (each.plan.sp, each.plan.pp, each.plan.ep, each.plan.micro_batch) == (4, 4, 2, 1)
    )  # fmt: skip
    staged = [
        each
        for way in sets.once(sets.dispatches, spread)
        for each in sets.once(sets.staged, way)
        if not each.plan.hiding.micro_batches
    ]
    sooner = 0
    for each in staged:
        put_off = replace(each.job, plan=replace(each.plan, schedule="zb-h1"))
        plain_s, put_off_s = (sets.bound.even_s(job, each.mesh) for job in (each.job, put_off))
        assert sets.staged_s(each) == min(plain_s, put_off_s)
        sooner += put_off_s < plain_s
    assert sooner


def test_turns_of_micro_batches_take_as_long_as_their_messages() -> None:
    """Another micro-batch hides them, but the NICs carry them all: a bound of kernels alone was 1.0 times these."""
    thin = search_of("deepseek-v2-lite", "h200", 2, 64, nic_bandwidth="50 Gb/s")
    sets = thin.sets
    degrees = 16, 16, 1
    spread = next(
        each for each in thin.shapes.spreads if (each.plan.dp, each.plan.ep, each.plan.micro_batch) == degrees
    )
    way = sets.once(sets.dispatches, spread)[0]
    (turns,) = (each for each in sets.once(sets.staged, way) if each.plan.hiding.micro_batches)
    bound_s = sets.staged_s(turns)
    assert bound_s > 2.0 * sets.kernels_s(way)
    asked = {
        "name": "t",
        "cluster": {**CLUSTER, "device": "h200", "nodes": 2, "nic_bandwidth": "50 Gb/s"},
        "workload": {"model": "deepseek-v2-lite", "pass": "training", "sequence": "4Ki", "sequences_per_replica": 4},
        "plans": [{
            "name": "A", "ep": 16, "micro_batch": 1, "recomputation": "none", "expert_overlap": "micro_batches",
            "expert_dispatch": way.plan.expert_dispatch, "zero": 1,
        }],
    }  # fmt: skip
    simulated = tspsim.simulate(asked).plans[0]
    assert simulated.ran and bound_s <= simulated.step_time_s < 1.5 * bound_s
