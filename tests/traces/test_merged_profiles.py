"""Several ranks in one file, steps under other frameworks' words, and steps that nobody annotated."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import Kernel, kineto, written

from tspsim import traces
from tspsim.traces import Trace
from tspsim.traces.steps import batch_of, step_marks
from tspsim.traces.table import Mark

LAYER = [
    Kernel("rms_norm_kernel", 3.0, "aten::rms_norm"),
    Kernel("Cijk_qkv", 20.0, "aten::mm", [[32, 64], [64, 96]]),
    Kernel("flash_fwd_kernel", 10.0, "aten::scaled_dot_product_attention"),
    Kernel("Cijk_out", 15.0, "aten::mm", [[32, 64], [64, 64]]),
]
STEP = [Kernel("indexSelect", 2.0), *LAYER * 6, Kernel("Cijk_head", 30.0, "aten::mm", [[32, 64], [64, 1000]])]


def of_rank(rank: int, late_us: float = 0.0) -> dict[str, Any]:
    return kineto([(f"step[DECODE bs={32 + rank}]", STEP)] * 2, rank=rank, world_size=2, origin_us=1e6 + late_us)


def as_alone(found: Trace, rank: int, alone: Trace) -> None:
    """What a merged file says of a rank is what its own file says."""
    own = found.of(found.columns["rank"] == rank)
    for word in ("name", "operator", "shapes", "kind"):
        assert own.word(word).tolist() == alone.word(word).tolist(), word
    for column in ("step", "layer", "duration_s"):
        assert own.columns[column].tolist() == pytest.approx(alone.columns[column].tolist()), column
    assert [mark.name for mark in found.marks if mark.rank == rank] == [mark.name for mark in alone.marks]


def test_sglang_s_merged_profile_is_its_ranks(tmp_path: Path) -> None:
    """Every process counts launches and operators from the same numbers."""
    parts = [of_rank(rank, 3.0 * rank) for rank in (0, 1)]
    alone = [traces.read([written(tmp_path / f"r{rank}.json", part)]) for rank, part in enumerate(parts)]
    merged = copy.deepcopy(parts[0])
    merged["traceEvents"] = [
        {**event, "pid": f"[TP{rank:02d}] {event.get('pid', 0)}"}
        for rank, part in enumerate(parts)
        for event in part["traceEvents"]
    ]
    found = traces.read([written(tmp_path / "merged.json.gz", merged)])
    assert (found.ranks, found.world_size) == ((0, 1), 2)
    for rank in (0, 1):
        as_alone(found, rank, alone[rank])


def test_devices_of_one_process_are_ranks(tmp_path: Path) -> None:
    parts = [of_rank(rank) for rank in (0, 1)]
    alone = [traces.read([written(tmp_path / f"r{rank}.json", part)]) for rank, part in enumerate(parts)]
    both = copy.deepcopy(parts[0])
    for event in copy.deepcopy(parts[1]["traceEvents"]):
        event["tid"] = f"other {event.get('tid')}"
        for key in ("correlation", "External id"):
            if key in event.get("args", {}):
                event["args"][key] += 100_000
        if "device" in event.get("args", {}):
            event["args"]["device"] = 1
        both["traceEvents"].append(event)
    found = traces.read([written(tmp_path / "both.json", both)])
    assert found.ranks == (0, 1)
    for rank in (0, 1):
        as_alone(found, rank, alone[rank])


def test_a_copy_on_another_device_is_no_rank(tmp_path: Path) -> None:
    document = of_rank(1)
    for event in document["traceEvents"]:
        if "device" in event.get("args", {}):
            event["args"]["device"] = 1
    stray = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "pid": 0, "tid": 7, "ts": 1e6 + 20.0, "dur": 1.0,
             "args": {"device": 0, "stream": 7}}  # fmt: skip
    document["traceEvents"].append(stray)
    assert traces.read([written(tmp_path / "stray.json", document)]).ranks == (1,)


@pytest.mark.parametrize(
    "name",
    ["train_step_10", ":train_step_11", "training_step", "iteration 3", "Iteration: 12", "iter_7", "global_step=4",
     "Step 10", "STEP_9", "ProfilerStep#6", "[Executor] _forward_step 7: 0 ctx reqs, 32 gen reqs"],
)  # fmt: skip
def test_words_that_frameworks_have_for_steps(name: str) -> None:
    assert len(step_marks([Mark(0, name, 0.0, 1.0, "1"), Mark(0, "forward", 0.1, 0.2, "1")], 0)) == 1


@pytest.mark.parametrize("name", ["stepwise_scheduler", "iterator", "training_step_loss_fn_setup", "steps"])
def test_words_that_are_none(name: str) -> None:
    assert not step_marks([Mark(0, name, 0.0, 1.0, "1")], 0)


def test_tensorrt_llm_s_batch() -> None:
    found = batch_of("[Executor] _forward_step 7: 0 ctx reqs, 32 gen reqs")
    assert found is not None
    assert (found.rows, found.tokens) == (32, 32)
    # Its prompts have no lengths there.
    assert batch_of("[Executor] _forward_step 7: 2 ctx reqs, 32 gen reqs") is None


def bare(kernels: list[Kernel]) -> dict[str, Any]:
    """As a profile without its host: names, streams and times."""
    document = kineto([("all", kernels)])
    document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") == "kernel"]
    return document


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_steps_of_products_with_one_name(steps: int, tmp_path: Path) -> None:
    """Seven products of a layer with one name look alike shifted by any number of them; they were steps of three
    layers once."""
    layer = [Kernel("sm90_xmma_gemm_bf16bf16", 9.0)] * 6 + [
        Kernel("flash_fwd", 5.0),
        Kernel("sm90_xmma_gemm_bf16bf16", 9.0),
    ]
    step = [*layer * 24, Kernel("nvjet_tst_256x8", 40.0)]
    found = traces.read([written(tmp_path / "bare.json", bare(step * steps))])
    assert len(set(found.columns["step"].tolist()) - {-1}) == steps
    assert len(set(found.columns["layer"].tolist()) - {-1}) == 24


def test_layers_alone_are_no_steps(tmp_path: Path) -> None:
    """A profile of four layers with nothing else, whose products have one name in stretches."""
    layer = [Kernel("gemm_a", 5.0)] * 4 + [Kernel("flash_fwd", 5.0)] + [Kernel("gemm_b", 5.0)] * 10
    found = traces.read([written(tmp_path / "layers.json", bare(layer * 4))])
    assert set(found.columns["step"].tolist()) == {0}
    assert len(set(found.columns["layer"].tolist()) - {-1}) == 4


def test_a_head_between_two_half_steps_keeps_single_layers(tmp_path: Path) -> None:
    layer = [Kernel("gemm_a", 5.0)] * 6 + [Kernel("flash_fwd", 5.0), Kernel("gemm_a", 5.0)]
    found = traces.read([written(tmp_path / "cut.json", bare([*layer * 10, Kernel("gemm_a", 30.0), *layer * 24]))])
    assert len(set(found.columns["layer"].tolist()) - {-1}) == 34
