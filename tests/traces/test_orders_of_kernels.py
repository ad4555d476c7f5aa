"""Frameworks run a layer's products in orders and pieces of their own: which kernel is which is told all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.profiles import Kernel, decode_step, kineto, written

import tspsim
from tspsim import traces
from tspsim.operators import Computes, Role
from tspsim.step.question import look_up
from tspsim.traces.alignment import matched
from tspsim.traces.kinds import HEAVY
from tspsim.traces.lay import lay
from tspsim.traces.names import narrow
from tspsim.traces.simulated import Operation, Simulated, ordered


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> list[Operation]:
    """What a rank does in a training step of deepseek-v2-lite over 8 GPUs: two layers of it, forward and back."""
    question = look_up(
        tspsim.load(
            {
                "name": "orders",
                "cluster": {"device": "h800", "nodes": 1},
                "workload": {"model": "deepseek-v2-lite", "pass": "training", "precision": "fp8_block",
                             "sequence": 2048, "sequences_per_replica": 1},
                "plans": [{"name": "EP8", "ep": 8, "zero": 1, "expert_dispatch": "ranks"}],
            }
        )
    )  # fmt: skip
    lane = Simulated(question, question.plans[0]).lane(0)
    return ordered([o for o in lane.operations if o.layer in (5, 6) and not o.is_transfer])


def name_of(operation: Operation) -> str:
    """A kernel's name as a library has it, with the type of its operands."""
    typed = "bf16f32" if operation.is_wide else "fp8_ptp128c"
    names = {"gemm": f"cutlass::{typed}_gemm", "grouped_gemm": "m_grouped_fp8_gemm", "attention": "flash_fwd_kernel"}
    return names.get(operation.kind, "")


def laid_out(operations: list[Operation], way: str) -> list[tuple[Operation, str, str]]:
    """Kernels in a framework's order: (operation, name, phase). ``wrapped``: shared experts around the routed ones;
    projections down to latents and dW of experts a kernel a weight."""
    own = list(operations)
    if way != "simulated":
        visits: dict[tuple[int, str], tuple[list[int], list[int]]] = {}
        for place, operation in enumerate(own):
            routed = operation.kind == "grouped_gemm"
            # Kernels of dW have one name: nothing but their order tells them apart.
            if (operation.of_dense_mlp or routed) and operation.computes is not Computes.WEIGHT_GRADIENT:
                key = (operation.layer, f"{operation.phase} {operation.computes}")
                visits.setdefault(key, ([], []))[routed].append(place)
        kept = list(own)
        for shared, others in visits.values():
            before = 1 if way == "wrapped" else 0
            moved = [*shared[:before], *others, *shared[before:]]
            for place, index in zip(sorted(moved), moved, strict=True):
                own[place] = kept[index]
    found = []
    for operation in own:
        if not name_of(operation):
            continue
        role = operation.operator.role if operation.operator is not None else Role.OTHER
        times = 2 if role is Role.LATENT_DOWN else 1
        name = name_of(operation)
        if operation.kind == "grouped_gemm" and operation.computes is Computes.WEIGHT_GRADIENT:
            times, name = operation.calls, "fp8_dptp128c_acc_gemm"
        found += [(operation, name, operation.phase)] * times
    return found


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("way", ["simulated", "wrapped", "routed first"])
def test_every_product_finds_its_operator(way: str, operations: list[Operation], tmp_path: Path) -> None:
    kernels = laid_out(operations, way)
    events: list[dict[str, Any]] = []
    for place, (_, name, _) in enumerate(kernels):
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1e6 + 10.0 * place, "dur": 9.0,
             "args": {"device": 0, "stream": 7, "correlation": place + 1}}
        )  # fmt: skip
    document = kineto([], device="h100")
    document["traceEvents"] = events
    trace = traces.read([written(tmp_path / "t.json", document)])
    words = [phase for _, _, phase in kernels]
    trace.words["phase"] = sorted(set(words))
    trace.columns["phase"] = trace.columns["phase"] * 0 + [trace.words["phase"].index(word) for word in words]
    found = matched(operations, trace)
    wrong = [
        (kernel[0].name, operations[index].name if index >= 0 else "left over")
        for kernel, index in zip(kernels, found.tolist(), strict=True)
        if kernel[0].kind in HEAVY and (index < 0 or operations[index] != kernel[0])
    ]
    assert not wrong


def test_names_state_narrow_operands() -> None:
    assert narrow("void deep_gemm::fp8_gemm_kernel<4096u>") and narrow("matmul_ogs_NNT_bf16xbf16xmxfp4_64x256x128")
    assert not narrow("nvjet_sm90_tst_128x256_64x4_bf16") and not narrow("Cijk_Alik_Bljk_BBS_BH_MT64x32x256")


@pytest.mark.parametrize("first", ["drafts", "verifies"])
def test_drafts_stand_before_or_behind_the_pass_that_verifies(first: str, tmp_path: Path) -> None:
    """SGLang drafts before it verifies, vLLM behind."""
    join = Kernel("Cijk_join", 20.0)
    drafts = [*[join, *decode_step(1)] * 2]
    kernels = [*drafts, *decode_step(36)] if first == "drafts" else [*decode_step(36), *drafts]
    path = written(tmp_path / "t.json", kineto([("step[TARGET_VERIFY bs=32 toks=96]", kernels)], graph=True))
    work = {"model": "qwen3-8b", "pass": "verify", "batch": 32, "context": 1024, "stack": "sglang"}
    scenario = {"name": "t", "cluster": "mi300x-8", "plans": [{"name": "P", "tp": 1}],
                "workload": {**work, "speculation": {"tokens": 2, "draft": "eagle"}}}  # fmt: skip
    laid = lay(traces.read([path]), look_up(tspsim.load(scenario)))
    assert not [row for row in laid.left_over if row.kind in HEAVY], laid.left_over
    rows = {row.name: row for row in laid.operators}
    assert rows["join projection"].measured_s == pytest.approx(2 * 20e-6)
