"""A machine that does what is simulated, under plans of all sorts: every kernel finds its own operator, whatever
the order of a file's events, its clock, its numbers of processes and the speed of the machine."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import kineto, of_lane, written

import tspsim
from tspsim import traces
from tspsim.step.question import Question, look_up
from tspsim.traces import match
from tspsim.traces.alignment import family_of, matched
from tspsim.traces.kinds import HEAVY
from tspsim.traces.lay import lay
from tspsim.traces.simulated import RankTimeline, Simulated

TRAINING = {"model": "llama-3.2-1b", "pass": "training", "sequence": 4096, "global_batch": 8}
PLANS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "shards of weights": (TRAINING, {"dp": 8, "zero": 3, "recomputation": "full"}, 0),
    "sums of gradients": (TRAINING, {"dp": 8, "zero": 1}, 0),
    "last stage": (TRAINING, {"tp": 2, "pp": 2, "dp": 2, "recomputation": "full"}, 1),
    "ring of contexts": (TRAINING | {"sequence": 32768, "global_batch": 1}, {"tp": 2, "cp": 4}, 0),
    "ring of weights": (TRAINING | {"sequence": 32768, "global_batch": 1}, {"tsp": 8}, 0),
    "experts": ({"model": "deepseek-v2-lite", "pass": "decode", "batch": 64, "context": 2048}, {"ep": 8}, 0),
    "windows": ({"model": "gpt-oss-20b", "pass": "decode", "batch": 16, "context": 2048}, {"tp": 2}, 0),
}


@cache
def machine(name: str) -> tuple[Question, RankTimeline]:
    workload, plan, stage = PLANS[name]
    question = look_up(
        tspsim.load(
            {"name": "trip", "cluster": {"device": "h100", "nodes": 1}, "workload": workload,
             "plans": [{"name": "P", **plan}]}
        )
    )  # fmt: skip
    simulated = Simulated(question, question.plans[0])
    stages = simulated.stages()
    return question, simulated.lane(stages[stage % len(stages)])


def numbered(lane: RankTimeline, factor: Any = lambda operation: 1.0, *, told: bool = False) -> list[dict[str, Any]]:
    """Events whose grid is the number of their operation; ``told``: with what launched them and a step's annotation."""
    order = sorted(range(len(lane.operations)), key=lambda index: lane.operations[index].start_s)
    events = of_lane(lane.operations, factor)
    for event, index in zip(events, order, strict=True):
        event["args"]["grid"] = [index + 1, 1, 1]
    if not told:
        return events
    host: list[dict[str, Any]] = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1, "ts": 999.0,
         "dur": len(events) + 9.0, "args": {}}
    ]  # fmt: skip
    for place, (event, index) in enumerate(zip(events, order, strict=True)):
        phase = lane.operations[index].phase
        back = phase in ("backward", "weight gradient")
        at = {"ph": "X", "pid": 1, "tid": 2 if back else 1}
        event["args"]["External id"] = place + 1
        host.append({**at, "cat": "cpu_op", "name": "aten::op", "ts": 1000.0 + place, "dur": 0.5,
                     "args": {"External id": place + 1}})  # fmt: skip
        host.append({**at, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 1000.1 + place, "dur": 0.2,
                     "args": {"correlation": place + 1}})  # fmt: skip
        outer = {"backward": "autograd::engine::evaluate_function: X", "optimizer": "Optimizer.step#AdamW.step"}
        if phase == "optimizer" or back:
            category, key = ("cpu_op", "backward") if back else ("user_annotation", phase)
            host.append({**at, "cat": category, "name": outer[key], "ts": 999.9 + place, "dur": 0.8, "args": {}})
    return events + host


def read(folder: Path, events: list[dict[str, Any]], name: str = "t.json") -> traces.RequestTrace:
    document = kineto([], device="h100")
    document["traceEvents"] = events
    return traces.read([written(folder / name, document)])


def given(laid: Any) -> list[tuple[str, int]]:
    """The grid of every kernel, which is the number of its operation, and the operation that it was given."""
    return sorted(zip(laid.trace.word("grid").tolist(), laid.operation.tolist(), strict=True))


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.in_turn(5)
def test_every_kernel_finds_its_operator(name: str, told: bool, tmp_path: Path) -> None:
    question, lane = machine(name)
    laid = lay(read(tmp_path, numbered(lane, told=told)), question, "P", rank=0)
    if lane.rank:  # the file is of one rank, whatever its number
        laid = lay(_as_rank(read(tmp_path, numbered(lane, told=told)), lane.rank), question, "P", rank=lane.rank)
    assert laid.matched_share == pytest.approx(1.0, abs=1e-3)
    # A message between stages may stand at the border of two phases.
    assert sum(item.count for item in laid.left_over if item.heavy) <= 1
    wrong = [
        (lane.operations[int(grid.split("×")[0]) - 1].name, lane.operations[index].name if index >= 0 else "left over")
        for grid, index in given(laid)
        if int(grid.split("×")[0]) - 1 != index and lane.operations[int(grid.split("×")[0]) - 1].kind in HEAVY
    ]
    assert len(wrong) <= 1, wrong[:5]
    for row in laid.kinds:
        assert row.measured_s == pytest.approx(row.simulated_s, rel=0.01, abs=1e-4 * laid.simulated_s), row.kind
    assert laid.measured_s == pytest.approx(laid.simulated_s, rel=1e-3)
    assert laid.causes.kernels_s == pytest.approx(0.0, abs=1e-4 * laid.simulated_s)


def _as_rank(trace: traces.RequestTrace, rank: int) -> traces.RequestTrace:
    trace.columns["rank"][:] = rank
    return trace


def test_order_clock_speed_and_processes_change_no_pair(tmp_path: Path) -> None:
    question, lane = machine("sums of gradients")
    events = numbered(lane)
    pairs = given(lay(read(tmp_path, events), question, "P"))
    shuffled = list(events)
    random.Random(3).shuffle(shuffled)
    ways = {
        "order": shuffled,
        "clock": [{**event, "ts": event["ts"] + 7.5e9} for event in events],
        "speed": [{**event, "ts": event["ts"] * 1.7, "dur": event["dur"] * 1.7} for event in events],
        "process": [{**event, "pid": 4711} for event in events],
    }
    for way, changed in ways.items():
        assert given(lay(read(tmp_path, changed, f"{way}.json"), question, "P")) == pairs, way
    document = kineto([], device="h100", rank=1, world_size=2)
    document["traceEvents"] = [{**event, "ts": event["ts"] + 11.0} for event in events]
    both = traces.read([tmp_path / "t.json", written(tmp_path / "second.json", document)])
    assert given(lay(both, question, "P", rank=0)) == pairs


def test_a_kind_at_half_its_time_moves_its_own_row_alone(tmp_path: Path) -> None:
    question, lane = machine("experts")
    rows = [
        {row.kind: row for row in lay(read(tmp_path, numbered(lane, factor)), question, "P").kinds}
        for factor in (lambda operation: 1.0, lambda operation: 0.5 if operation.kind == "attention" else 1.0)
    ]
    assert rows[1]["attention"].measured_s == pytest.approx(0.5 * rows[0]["attention"].measured_s, rel=1e-3)
    for kind, row in rows[0].items():
        assert rows[1][kind].simulated_s == row.simulated_s
        if kind != "attention":
            assert rows[1][kind].measured_s == pytest.approx(row.measured_s, rel=1e-3, abs=1e-9), kind


def test_long_steps_look_at_kernels_nearby_and_find_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, lane = machine("sums of gradients")
    events = numbered(lane)
    draw = random.Random(1)
    # Some small kernels are missing, and some products run twice.
    events = [event for event in events if "Cijk" in event["name"] or draw.random() < 0.9]
    trace = read(tmp_path, events)
    whole = matched(lane.operations, trace)
    monkeypatch.setattr(match, "_ALL_PAIRS", 1e3)
    monkeypatch.setattr(match, "_NEAR", 64)
    assert matched(lane.operations, trace).tolist() == whole.tolist()


def test_a_mask_makes_no_other_kernel() -> None:
    ways = [
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>, false, true, false>(flash::Params)",
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 32, 4>, false, false, true>(flash::Params)",
    ]
    assert len({family_of(name) for name in ways}) == 1
    assert family_of("void flash::flash_fwd_splitkv_combine_kernel<Traits<128>>(p)") != family_of(ways[0])
    bwd = "void cutlass::device_kernel<flash::FlashAttnBwdSm90<flash::CollectiveMainloopBwdSm90<2>>>(p)"
    assert family_of(bwd) != family_of(bwd.replace("Bwd", "Fwd"))
