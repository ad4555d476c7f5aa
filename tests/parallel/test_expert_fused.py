"""Exchanges with experts in slices of the experts' own kernels (Comet)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.bounds import check_below, simulated_below_bounds
from helpers.engine import grid, job_of, model_file, moe, play, program, question, sleep

import tspsim
from tspsim.base.errors import InputError
from tspsim.network import collective as traffic_of
from tspsim.network import load_cluster
from tspsim.operators import Part
from tspsim.parallel import peak_memory, scheme_of, write_program
from tspsim.program import Collective, Compute, Instruction
from tspsim.step.bound import bounds

MIB = 2**20
MANY = moe(1024, count=16, topk=4)
FUSED = {"ep": 8, "overlap": "fused", "expert_dispatch": "links"}
PLAIN = {"ep": 8, "expert_dispatch": "links"}


@pytest.mark.parametrize("slices", [1, 2, 8])
@pytest.mark.parametrize(("first", "second"), [(2e-4, 1e-4), (2e-3, 1e-3), (4e-3, 1e-4), (1e-4, 4e-3)])
def test_each_exchange_hides_behind_one_product_but_for_a_slice(slices: int, first: float, second: float) -> None:
    """max(C1, W + C1/n) + C2/n + (n − 1)·max(C2, W)/n + W/n."""
    cluster, size = load_cluster("hgx-h100-8"), 64 * MIB
    whole = traffic_of(cluster, range(8), "all_to_all", size)

    def moved(number: int, of: int, after: tuple[int, ...]) -> Collective:
        return Collective("all_to_all", "x", size // of, "rows", after=after, slices=of, stream="experts")

    def written() -> Iterator[Instruction]:
        theirs = max(1, slices - 1)
        for number in range(theirs):
            yield moved(number, theirs, ())
        for number in range(slices):
            # A rank's own rows are here; alone, all of them come.
            waits = (0,) if slices == 1 else () if number == 0 else (number - 1,)
            yield Compute((Part(sleep(first), slices),), "gate, up", after=waits)
        entered = theirs + slices - 1
        for number in range(slices):
            yield Compute((Part(sleep(second), slices),), "down", after=(entered,))
            yield moved(number, slices, (theirs + slices + 2 * number,))

    wire_s = whole.alone_s
    here = max(first, wire_s + first / slices) if slices > 1 else wire_s + first
    expected = here + (second + (slices - 1) * max(second, wire_s) + wire_s) / slices
    # Bytes of a slice are whole numbers.
    assert play(cluster, program(*written()), grid(8)).makespan_s == pytest.approx(expected, rel=1e-6)


def issued(job: Any) -> list[Instruction]:
    return [each.instruction for each in write_program(scheme_of(job.plan), job).unrolled()]


@pytest.mark.parametrize("pass_", ["forward", "training"])
def test_fused_experts_move_the_same_bytes_and_do_the_same_work_in_the_same_memory(pass_: str) -> None:
    plain, fused = (job_of(MANY, dp=8, pass_=pass_, **plan) for plan in (PLAIN, FUSED))
    moved = [sum(each.size_bytes for each in issued(job) if isinstance(each, Collective)) for job in (plain, fused)]
    flops = [
        sum(one.flops for each in issued(job) if isinstance(each, Compute) for one in each.operators)
        for job in (plain, fused)
    ]
    assert moved[1] == pytest.approx(moved[0], rel=1e-6) and flops[1] == pytest.approx(flops[0], rel=1e-9)
    memory = [peak_memory(job, scheme_of(job.plan).residency) for job in (plain, fused)]
    assert memory[0] == memory[1]


@pytest.mark.parametrize("pass_", ["forward", "training"])
def test_fused_is_faster_than_whole_exchanges_and_than_pieces_of_tokens(tmp_path: Path, pass_: str) -> None:
    path = model_file(tmp_path, moe(2048, layers=4, count=16, topk=4, width=1024))
    ways = [PLAIN, {**PLAIN, "expert_pieces": 4}, FUSED]
    plain, pieces, fused = simulated_below_bounds(path, *ways, sequence=16384, pass_=pass_)
    assert fused.step_time_s < pieces.step_time_s < plain.step_time_s
    assert fused.communication_bytes_per_layer["total"] == pytest.approx(
        plain.communication_bytes_per_layer["total"], rel=1e-6
    )


def test_attention_may_be_fused_beside_them(tmp_path: Path) -> None:
    path = model_file(tmp_path, moe(2048, layers=2, heads=16, count=16, topk=4, width=1024))
    plans = [{"tp": 2, "sequence_regions": True, **plan} for plan in (PLAIN, FUSED)]
    plain, fused = simulated_below_bounds(path, *plans, sequence=16384)
    assert fused.step_time_s < plain.step_time_s


def test_an_uneven_load_is_fused_too(tmp_path: Path) -> None:
    path = model_file(tmp_path, MANY)
    routing = {"load": "zipf", "skew": 0.5}
    balances = ("busiest", "llep")
    plans = [{**FUSED, "expert_balance": policy} for policy in balances]
    asked = question(path, [{"name": name, **plan} for name, plan in zip(balances, plans, strict=True)], sequence=8192)
    asked["workload"]["routing"] = routing
    busiest, spread = tspsim.simulate(asked).plans
    assert busiest.ran and spread.ran and spread.step_time_s < busiest.step_time_s


def test_kinds_of_layers_one_after_the_other_keep_their_slices(tmp_path: Path) -> None:
    """Of a model whose layers differ every layer stands alone, numbered anew."""
    job = job_of(moe(1024, layers=4, count=16, topk=4, first_dense=2, ffn=1024), dp=8, **FUSED)
    assert {each.slices for each in issued(job) if isinstance(each, Collective) and each.axis == "ep"} == {7, 8}


@pytest.mark.parametrize(
    ("work", "faster"), [({"pass": "prefill", "sequence": 8192}, True), ({"pass": "decode", "batch": 64}, None)]
)
def test_serving_steps_take_it_too(work: dict[str, Any], faster: bool | None) -> None:
    """A prompt's exchange is long; a decoding step's is latency, of which slices have no more than the whole."""
    plans = [{"name": name, "dp": 8, **plan} for name, plan in (("plain", PLAIN), ("fused", FUSED))]
    workload = {"model": "qwen3-30b-a3b", "sequences_per_replica": 1, **work}
    if work["pass"] == "decode":
        workload = {"model": "qwen3-30b-a3b", "context": 1024, **work}
    asked = tspsim.load({"name": "serving", "cluster": {"device": "h100", "nodes": 1}, "workload": workload,
                         "plans": plans})  # fmt: skip
    result = tspsim.simulate(asked)
    check_below(bounds(asked), result)
    plain, fused = result.plans
    assert fused.memory == plain.memory
    assert fused.step_time_s < plain.step_time_s
    if faster:
        assert fused.step_time_s < 0.97 * plain.step_time_s


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"ep": 8, "overlap": "fused"}, "ranks is a library's way: use links"),
        ({**FUSED, "expert_pieces": 2}, "expert_pieces: 2 are calls of their own"),
        ({**FUSED, "expert_shards": 1}, "expert_shards: 1 is not built beside"),
        ({**FUSED, "fused_transport": "copy"}, "not built where experts are fused"),
        ({"overlap": "fused"}, "overlap: fused is of products and sums of tp > 1"),
    ],
)
def test_what_does_not_go_with_it_is_refused(tmp_path: Path, plan: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        tspsim.simulate(question(model_file(tmp_path, MANY), [{"name": "P", **plan}], sequence=4096))
