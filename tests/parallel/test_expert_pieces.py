"""Tutel: exchanges with experts in pieces, and where an expert's weights and its tokens meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.bounds import simulated_below_bounds
from helpers.engine import grid, job_of, model_file, moe, play, program, question, sleep

import tspsim
from tspsim.base.errors import InputError
from tspsim.network import collective as traffic_of
from tspsim.network import load_cluster
from tspsim.parallel import ExpertRouting, peak_memory, scheme_of, write_program
from tspsim.program import Collective, Compute, Instruction
from tspsim.studies.contract.steps import experts_bytes

MIB = 2**20
#: Two experts of four choices on eight ranks: four slices each.
FEW = moe(512, count=2, topk=1, width=1024)
MANY = moe(1024, count=16, topk=4)
SERVING = moe(4096, layers=2, heads=32, kv_heads=4, count=64, topk=8, width=1536)


@pytest.mark.parametrize("pieces", [1, 2, 4, 8])
@pytest.mark.parametrize("seconds", [1e-4, 2e-3, 1e-2])
def test_pieces_take_the_longest_of_wire_and_kernels_and_one_piece_of_the_other(pieces: int, seconds: float) -> None:
    """T(d) = max(2W, W + (W + C)/d, C + 2W/d), W one way: every dispatch is issued before a combine."""
    cluster, size = load_cluster("hgx-h100-8"), 256 * MIB
    one_s = traffic_of(cluster, range(8), "all_to_all", size // pieces).alone_s

    def written() -> Iterator[Instruction]:
        for _ in range(pieces):
            yield Collective("all_to_all", "x", size // pieces, "dispatch", stream="experts")
        for number in range(pieces):
            yield Compute((sleep(seconds / pieces),), "experts", after=(number,))
            yield Collective(
                "all_to_all", "x", size // pieces, "combine", after=(pieces + 2 * number,), stream="experts"
            )

    wire = pieces * one_s
    expected = max(2 * wire, wire + (wire + seconds) / pieces, seconds + 2 * wire / pieces)
    assert play(cluster, program(*written()), grid(8)).makespan_s == pytest.approx(expected, rel=1e-9)


def moves(job: Any, axis: str = "ep") -> list[tuple[str, int]]:
    issued = [each.instruction for each in write_program(scheme_of(job.plan), job).unrolled()]
    return [(each.name, each.size_bytes) for each in issued if isinstance(each, Collective) and each.axis == axis]


def rows_of(job: Any) -> int:
    issued = [each.instruction for each in write_program(scheme_of(job.plan), job).unrolled()]
    kernels = [each for each in issued if isinstance(each, Compute) and each.name == "experts"]
    return sum(max(getattr(one, "m", 0) * getattr(one, "count", 1) for one in each.operators) for each in kernels)


@pytest.mark.parametrize("pass_", ["forward", "training"])
def test_pieces_move_the_same_bytes_and_multiply_the_same_rows(pass_: str) -> None:
    whole, cut = (job_of(MANY, dp=8, ep=8, pass_=pass_, expert_pieces=pieces) for pieces in (1, 4))
    assert sum(size for _, size in moves(cut)) == pytest.approx(sum(size for _, size in moves(whole)), abs=64)
    assert len(moves(cut)) == 4 * len(moves(whole)) and rows_of(cut) == rows_of(whole)
    assert [name for name, _ in moves(cut)][:8] == ["dispatch"] * 4 + ["combine"] * 4
    assert peak_memory(cut, scheme_of(cut.plan).residency) == peak_memory(whole, scheme_of(whole.plan).residency)


@pytest.mark.parametrize("pass_", ["forward", "training"])
def test_pieces_hide_long_exchanges_and_cost_where_there_is_little_to_hide(tmp_path: Path, pass_: str) -> None:
    path = model_file(tmp_path, moe(2048, layers=4, count=16, topk=4, width=1024))
    ways = [{"ep": 8, "expert_pieces": pieces} for pieces in (1, 2, 4)]
    long = simulated_below_bounds(path, *ways, sequence=16384, pass_=pass_)
    assert long[1].step_time_s < long[0].step_time_s
    short = simulated_below_bounds(path, *ways, sequence=64, pass_=pass_)
    assert short[2].step_time_s > short[0].step_time_s
    assert long[0].communication_bytes_per_layer["total"] == pytest.approx(
        long[2].communication_bytes_per_layer["total"], rel=1e-6
    )


@pytest.mark.parametrize(("model", "shards"), [(FEW, 0), (FEW, 1), (FEW, 2), (FEW, 4), (MANY, 0), (MANY, 1)])
def test_bytes_of_sliced_and_gathered_experts_are_their_closed_form(tmp_path: Path, model: Any, shards: int) -> None:
    (plan,) = simulated_below_bounds(model_file(tmp_path, model), {"ep": 8, "expert_shards": shards}, sequence=4096)
    job = job_of(model, sequence=4096, dp=8, ep=8, expert_shards=shards, expert_owners=max(1, 8 // model.experts.count))
    if model is FEW or shards == 0:
        assert plan.communication_bytes_per_layer["mlp"] == pytest.approx(experts_bytes(job), rel=1e-9)
    expert = 3 * model.hidden * model.experts.width
    owned = 2.0 * model.experts.count * expert / 8
    all_here = 2.0 * model.experts.count * expert if shards == 0 else 2.0 * expert / shards
    others = all_here - owned if model is FEW or shards == 0 else 0.0
    assert plan.memory.parts.get("gathered_experts", 0.0) == pytest.approx(others)


def test_the_work_is_the_same_whatever_meets_what(tmp_path: Path) -> None:
    ways = [{"ep": 8, "expert_shards": shards} for shards in (0, 1, 2, 4)]
    plans = simulated_below_bounds(model_file(tmp_path, FEW), *ways, sequence=4096)
    weights = {plan.memory.parts["weights"] for plan in plans}
    flops = {round(float(plan.timeline.frame()["flops"].sum())) for plan in plans}
    assert len(weights) == 1 and max(flops) == pytest.approx(min(flops), rel=1e-3)


def test_few_tokens_leave_weights_where_they_are_and_many_tokens_call_them(tmp_path: Path) -> None:
    """Large experts: at few tokens r = g, at many r = 0 is fastest; the best of the four is never the same for all."""
    path = model_file(tmp_path, moe(2048, layers=2, count=2, topk=1, width=8192))
    ways = [{"ep": 8, "expert_shards": shards} for shards in (0, 1, 2, 4)]

    def best(sequence: int) -> int:
        times = [plan.step_time_s for plan in simulated_below_bounds(path, *ways, sequence=sequence)]
        return (0, 1, 2, 4)[times.index(min(times))]

    assert best(128) == 4 and best(65536) in (0, 1)


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_training_keeps_below_its_bound_however_experts_and_tokens_meet(tmp_path: Path, recomputation: str) -> None:
    ways: list[dict[str, Any]] = [{"expert_shards": shards} for shards in (0, 1, 2, 4)]
    ways += [{"expert_shards": 4, "expert_pieces": 2}, {"expert_shards": 2, "zero": 1}]
    plans = [{"ep": 8, "recomputation": recomputation, **way} for way in ways]
    simulated_below_bounds(model_file(tmp_path, FEW), *plans, sequence=2048, pass_="training")
    staged = [{"ep": 4, "pp": 2, "schedule": "zb-h1", "expert_pieces": pieces} for pieces in (1, 2)]
    simulated_below_bounds(
        model_file(tmp_path, MANY), *staged, sequence=2048, sequences_per_replica=4, pass_="training"
    )  # fmt: skip


@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_gradients_of_gathered_experts_go_home(recomputation: str) -> None:
    job = job_of(
        FEW, dp=8, ep=8, pass_="training", recomputation=recomputation, expert_shards=2, expert_owners=4
    )  # fmt: skip
    home = moves(job, "expert slices")
    expert = 3 * 512 * 1024
    assert {size for name, size in home if name == "gather experts"} == {2 * expert // 2}
    gradients = [size for name, size in home if name == "scatter experts' gradients"]
    assert gradients == [round(expert / 2 * job.work.optimizer.gradients)] * 2
    assert len(home) == 2 * 3


def test_a_skew_does_not_reach_experts_that_come_to_the_tokens(tmp_path: Path) -> None:
    skewed = {"load": "hot", "hot_experts": 1, "hot_share": 0.9}
    gathered, sent = simulated_below_bounds(
        model_file(tmp_path, MANY), {"ep": 8, "expert_shards": 0}, {"ep": 8}, sequence=8192, routing=skewed
    )
    (level,) = simulated_below_bounds(model_file(tmp_path, MANY), {"ep": 8, "expert_shards": 0}, sequence=8192)
    assert gathered.step_time_s == level.step_time_s < sent.step_time_s
    job = job_of(
        FEW, dp=8, ep=8, expert_shards=1, expert_owners=4, routing=ExpertRouting("measured", shares=(3.0, 1.0))
    )
    assert job.expert_loads.loads == (1.5,) * 8


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"ep": 8, "expert_pieces": 0}, "expert_pieces"),
        ({"expert_pieces": 2}, "expert_pieces: 2 is of experts over ep > 1"),
        ({"ep": 8, "expert_pieces": 2, "expert_shards": 0}, "leave out expert_shards: 0"),
        ({"ep": 8, "expert_shards": 3}, "expert_shards: 3 does not divide the 4 ranks of an expert; use 0, 1, 2, 4"),
        ({"ep": 8}, "ep: 8 does not divide the 2 experts"),
        ({"ep": 8, "expert_shards": 1, "expert_balance": "eplb"}, "leave expert_balance out"),
        ({"tp": 8, "expert_shards": 1}, "expert_shards: 1 is of experts over ep > 1"),
    ],
)
def test_what_cannot_be_cut_is_said_in_one_line(tmp_path: Path, plan: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tspsim.simulate(question(model_file(tmp_path, FEW), [{"name": "P", **plan}], sequence=4096))


def test_a_dense_model_and_a_serving_step_take_neither(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has none; leave it out"):
        tspsim.simulate(question("llama-3.1-8b", [{"name": "P", "expert_pieces": 2}], sequence=4096))
    with pytest.raises(InputError, match="in a forward or in training"):
        plan = {"name": "P", "dp": 8, "ep": 8, "expert_shards": 0}
        tspsim.simulate(question("mixtral-8x7b", [plan], pass_="decode", batch=8, context=1024))
    with pytest.raises(InputError, match="that tokens travel to"):
        plan = {"name": "P", "tp": 8, "ep": 8, "expert_pieces": 2}
        tspsim.simulate(question("mixtral-8x7b", [plan], pass_="decode", batch=8, context=1024))


SERVED = {"prefill": {"sequence": 4096, "sequences_per_replica": 1}, "decode": {"batch": 16, "context": 1024}}


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("dispatch", ["links", "gather", "ranks"])
@pytest.mark.parametrize("pass_", SERVED)
def test_a_serving_step_in_pieces_moves_the_same_and_hides_long_exchanges_alone(
    tmp_path: Path, pass_: str, dispatch: str
) -> None:
    """Prompts are exchanges as long as experts; a decoding step reads the experts of every piece anew."""
    plans = [{"dp": 8, "ep": 8, "expert_dispatch": dispatch, "expert_pieces": pieces} for pieces in (1, 2, 4)]
    found = simulated_below_bounds(model_file(tmp_path, SERVING), *plans, pass_=pass_, **SERVED[pass_])
    volumes = {round(plan.communication_bytes_per_layer["total"], -3) for plan in found}
    assert max(volumes) - min(volumes) <= 1e-3 * max(volumes)
    assert len({plan.memory.peak_bytes for plan in found}) == 1
    times = [plan.step_time_s for plan in found]
    assert times[1] < times[0] if pass_ == "prefill" else times == sorted(times)
    frame = found[2].timeline.frame()
    exchanges = frame[(frame["rank"] == 0) & (frame.layer == 1) & (frame.stream == "experts")].sort_values("start_s")
    there, back = set(exchanges.name[:4]), set(exchanges.name[4:])
    assert len(exchanges) == 8 and len(there) == len(back) == 1 and there != back


def test_more_pieces_than_tokens_are_as_many_as_tokens(tmp_path: Path) -> None:
    plans = [{"dp": 8, "ep": 8, "expert_pieces": pieces} for pieces in (2, 8)]
    two, eight = simulated_below_bounds(model_file(tmp_path, MANY), *plans, pass_="decode", batch=2, context=64)
    assert two.step_time_s == eight.step_time_s
