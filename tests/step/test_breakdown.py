"""Where a step's time went: the parts add up, and each is what its name says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.engine import architecture, collective, grid, hop, kernel, model_file, play, program, question
from helpers.strategies import CLUSTERS, INTERFERENCE, machines, programs
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.engine.core import Interference, Submission
from tspsim.model import load_model
from tspsim.network import collective as traffic_of
from tspsim.network import load_cluster, point_to_point
from tspsim.program import Program, Repeat
from tspsim.program.instructions import Mesh
from tspsim.step.metrics import breakdown, claimed, gaps, layer_period_s, shared
from tspsim.step.result import Result

GIB = 2**30
MESH = load_cluster("mi300x-8")
GATHER = traffic_of(MESH, range(8), "all_gather", GIB)
GATHER_S = GATHER.latency_s + GATHER.fluid_s


def total_s(parts: dict[str, Any]) -> float:
    return float(parts["compute"] + sum(parts["exposed_communication"].values()) + parts["bubble"] + parts["idle"])


@pytest.fixture(scope="module")
def headline() -> Result:
    return tspsim.simulate("tsp-vs-tpsp-1024-mi300x")


# The parts add up.


def test_the_parts_of_every_plan_add_up_to_its_step(headline: Result) -> None:
    for plan in headline.plans:
        assert total_s(plan.breakdown_s) == pytest.approx(plan.step_time_s, rel=1e-9)
        assert sum(plan.compute_by_kind_s.values()) == pytest.approx(plan.breakdown_s["compute"], rel=1e-9)


def test_the_parts_of_a_training_step_add_up() -> None:
    for plan in tspsim.simulate("tsp-memory-8x-mi300x").plans:
        if plan.ran:
            assert total_s(plan.breakdown_s) == pytest.approx(plan.step_time_s, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(machines(), programs(), INTERFERENCE, st.booleans())
def test_the_parts_of_any_programs_add_up(
    machine: tuple[str, Mesh], chosen: tuple[Program, ...], interference: Interference, every_rank: bool
) -> None:
    submission = play(CLUSTERS[machine[0]], chosen, machine[1], interference=interference, every_rank=every_rank)
    parts = breakdown(submission)
    added_s = parts.total_compute_s + sum(parts.exposed_s.values()) + parts.idle_s
    assert added_s == pytest.approx(submission.makespan_s, rel=1e-9, abs=1e-15)
    assert min([*parts.compute_s.values(), *parts.exposed_s.values(), parts.idle_s], default=0.0) >= 0.0


@settings(max_examples=20, deadline=None)
@given(machines(), programs(), st.booleans())
def test_compute_is_the_sum_of_the_kernels_when_nothing_interferes(
    machine: tuple[str, Mesh], chosen: tuple[Program, ...], every_rank: bool
) -> None:
    submission = play(CLUSTERS[machine[0]], chosen, machine[1], every_rank=every_rank)
    ranks = sum(simulated.size for simulated in submission.ranks)
    alone_s = sum(
        simulated.size * sum(label.alone_s for label in simulated.role.labels) for simulated in submission.ranks
    )
    assert breakdown(submission).total_compute_s == pytest.approx(alone_s / ranks, rel=1e-9, abs=1e-15)


# Each part is what its name says.


def parts_of(submission: Submission) -> tuple[float, dict[str, float], float]:
    parts = breakdown(submission)
    return parts.total_compute_s, dict(parts.exposed_s), parts.idle_s


def test_a_transfer_that_nothing_covers_is_exposed() -> None:
    work = program(kernel(1.0), collective("all_gather", GIB, after=[0]))
    compute_s, exposed_s, idle_s = parts_of(play(MESH, work, grid(8)))
    assert compute_s == 1.0 and idle_s == pytest.approx(0.0, abs=1e-15)
    assert exposed_s == {"all_gather": pytest.approx(GATHER_S, rel=1e-9)}


def test_a_transfer_beside_a_longer_kernel_is_hidden() -> None:
    work = program(kernel(2 * GATHER_S), collective("all_gather", GIB))
    assert parts_of(play(MESH, work, grid(8))) == (2 * GATHER_S, {}, 0.0)


def test_of_a_transfer_longer_than_its_kernel_the_rest_is_exposed() -> None:
    work = program(kernel(GATHER_S / 4), collective("all_gather", GIB), kernel(1.0, after=[1]))
    compute_s, exposed_s, idle_s = parts_of(play(MESH, work, grid(8)))
    assert compute_s == pytest.approx(1.0 + GATHER_S / 4, rel=1e-12)
    assert exposed_s == {"all_gather": pytest.approx(0.75 * GATHER_S, rel=1e-9)}
    assert idle_s == pytest.approx(0.0, abs=1e-12)


def test_waiting_for_a_slower_rank_is_idle_not_communication() -> None:
    programs = [program(kernel(3.0), collective("all_gather", GIB, after=[0]))]
    programs += [program(kernel(1.0), collective("all_gather", GIB, after=[0]))] * 7
    compute_s, exposed_s, idle_s = parts_of(play(MESH, programs, grid(8)))
    assert compute_s == pytest.approx((3.0 + 7 * 1.0) / 8)
    assert exposed_s == {"all_gather": pytest.approx(GATHER_S, rel=1e-9)}
    assert idle_s == pytest.approx(7 * 2.0 / 8)


def test_of_two_transfers_in_one_gap_the_one_that_ends_last_was_waited_for() -> None:
    """They use different links, so both run at full speed; the shorter one is covered by the longer."""
    long, short = (point_to_point(MESH, 0, 1, size) for size in (GIB, GIB // 4))
    work = program(hop(GIB, to=1, stream="one"), collective("all_gather", GIB // 4, axis="y", stream="two"))
    submission = play(MESH, work, grid(2, 4))
    compute_s, exposed_s, idle_s = parts_of(submission)
    assert compute_s == 0.0 and idle_s == 0.0
    assert short.fluid_s < long.fluid_s
    assert exposed_s["send_recv"] == pytest.approx(submission.makespan_s, rel=1e-9)
    assert exposed_s["all_gather"] == 0.0


def test_a_kernel_slowed_by_a_transfer_counts_as_compute_for_as_long_as_it_ran() -> None:
    work = program(kernel(10 * GATHER_S), collective("all_gather", GIB))
    submission = play(MESH, work, grid(8), interference=Interference(compute=2.0))
    assert parts_of(submission)[0] == pytest.approx(submission.makespan_s, rel=1e-12)
    assert submission.makespan_s > 10 * GATHER_S


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6), st.integers(1, 20))
def test_gaps_and_what_they_lie_between_make_up_the_whole(spans: list[tuple[int, int]], until: int) -> None:
    ordered = sorted((min(pair), min(max(pair), until)) for pair in spans if min(pair) < until)
    start_s, end_s = np.array(ordered, dtype=float).reshape(-1, 2).T
    covered = {tick for start, end in ordered for tick in range(start, end)}
    ends = zip(*gaps(start_s, end_s, until), strict=True)
    open_ = {tick for start, end in ends for tick in range(int(start), int(end))}
    assert covered | open_ == set(range(until)) and not covered & open_


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6))
def test_while_several_kernels_run_each_has_its_part_of_the_time(spans: list[tuple[int, int]]) -> None:
    start_s, end_s = np.array([(min(pair), max(pair)) for pair in spans], dtype=float).reshape(-1, 2).T
    running = [int(((start_s <= tick) & (tick < end_s)).sum()) for tick in range(20)]
    parts = [sum(1 / running[tick] for tick in range(*map(int, ends))) for ends in zip(start_s, end_s, strict=True)]
    assert shared(start_s, end_s) == pytest.approx(parts)


def test_kernels_beside_others_add_up_to_their_step() -> None:
    """Gradients that travel in four bits are cast beside the backward's own kernels."""
    scenario = {
        "name": "casts",
        "cluster": {"device": "b200", "nodes": 1},
        "workload": {"model": "tsp-8b", "pass": "training", "sequence": 4096},
        "plans": [{"name": "P", "tp": 2, "zero": 3, "secondary_shard": 4, "gradient_wire": "int4"}],
    }
    (plan,) = tspsim.simulate(scenario).plans
    assert total_s(plan.breakdown_s) == pytest.approx(plan.step_time_s, rel=1e-12)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(0, 2)), max_size=8),
)
def test_in_a_gap_every_moment_is_claimed_by_the_transfer_that_ends_last(
    pieces: list[tuple[int, int]], transfers: list[tuple[int, int, int]]
) -> None:
    open_, position = [], 0
    for skip, length in pieces:
        open_.append((position + skip, position + skip + length))
        position += skip + length + 1
    expected: dict[int | None, int] = {}
    met = set()
    for left, right in open_:
        inside = [
            (min(begin + length, right), max(begin, left), kind)
            for begin, length, kind in transfers
            if begin < right and begin + length > left
        ]
        met |= {kind for *_, kind in inside}
        for tick in range(left, right):
            there = max((each for each in inside if each[1] <= tick < each[0]), default=None)
            kind = None if there is None else there[2]
            expected[kind] = expected.get(kind, 0) + 1
    begin, length, kind = np.array(transfers, dtype=int).reshape(-1, 3).T
    ends = np.array(open_, dtype=float).T
    seconds, idle_s = claimed((ends[0], ends[1]), (begin.astype(float), (begin + length).astype(float), kind), 3)
    assert idle_s == expected.get(None, 0)
    assert seconds == [expected.get(number, 0) if number in met else None for number in range(3)]


# Rates.


def test_mfu_is_the_models_flops_over_the_peak_of_all_gpus(headline: Result) -> None:
    """Causal forward of 32 layers of 16·h² at 128Ki tokens: 32·(2·16·h² + 4·h·S/2) FLOPs a token."""
    flops_per_token = 32 * (2 * 16 * 4096**2 + 4 * 4096 * (128 * 1024) / 2)
    for plan in headline.plans:
        tokens = 128 * 1024 * plan.degrees["dp"]
        assert plan.mfu == pytest.approx(tokens * flops_per_token / (plan.step_time_s * 1024 * 1307.4e12), rel=1e-12)
        assert plan.tokens_per_s == pytest.approx(tokens / plan.step_time_s, rel=1e-12)
        assert 0.0 < plan.mfu < 1.0


def test_training_counts_three_forwards_and_not_what_is_recomputed() -> None:
    asked = question("tsp-8b", [{"name": "TP8", "tp": 8}], pass_="training", sequence=16 * 1024)
    plan = tspsim.simulate(asked).plan("TP8")
    flops = 3 * 16 * 1024 * load_model("tsp-8b").forward_flops_per_token(16 * 1024)
    assert plan.mfu == pytest.approx(flops / (plan.step_time_s * 8 * 1307.4e12), rel=1e-12)


def test_the_block_rate_over_all_layers_is_the_whole_models(headline: Result) -> None:
    """The benchmark model has no embedding and no head; what differs is the first layer's start."""
    for plan in headline.plans:
        assert plan.block_forward_tokens_per_s / 32 == pytest.approx(plan.tokens_per_s, rel=0.01)


def test_the_block_rate_does_not_depend_on_head_or_pass(tmp_path: Path) -> None:
    bare, spoken = (
        model_file(tmp_path, architecture(2048, layers=12, head_dim=128, vocab=vocab)) for vocab in (0, 64_000)
    )

    def blocks(model: str, **work: Any) -> list[float]:
        plans = [{"name": "TSP8", "tsp": 8}, {"name": "TP8", "tp": 8}, {"name": "SP8", "sp": 8, "exchange": "ring"}]
        found = tspsim.simulate(question(model, plans, sequence=16 * 1024, **work))
        return [plan.block_forward_tokens_per_s for plan in found.plans]

    expected = pytest.approx(blocks(bare), rel=0.01)
    assert blocks(spoken) == expected
    assert blocks(bare, pass_="training") == expected


def test_the_period_of_equal_layers_is_one_layer() -> None:
    body = (kernel(0.25), collective("all_gather", GIB, after=[0]), kernel(0.5, after=[1]))
    layer = tuple(replace(entry, part="mlp", layer=0) for entry in body)
    submission = play(MESH, program(Repeat(layer, 5)), grid(8))  # type: ignore[arg-type]
    assert layer_period_s(submission) == pytest.approx(0.75 + GATHER_S, rel=1e-9)


def test_how_long_a_step_takes_does_not_depend_on_how_many_replicas_there_are() -> None:
    plans = [{"name": "TSP8", "tsp": 8}, {"name": "TP4-SP2", "tp": 4, "sp": 2}]
    few, many = (
        tspsim.simulate(question("tsp-8b", plans, cluster=cluster, sequence=16 * 1024))
        for cluster in ("mi300x-8", "mi300x-16x8")
    )
    for one, other in zip(few.plans, many.plans, strict=True):
        assert one.step_time_s == other.step_time_s
        assert other.tokens_per_s == pytest.approx(16 * one.tokens_per_s, rel=1e-12)
        assert other.tokens_per_s_per_gpu == pytest.approx(one.tokens_per_s_per_gpu, rel=1e-12)
