"""A training step whose ranks are in several groups at once: transfers find the operators of their own group, and a
first scenario has the degrees."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from helpers.strangers import Recorder

import tspsim
from tspsim import traces
from tspsim.step.question import look_up
from tspsim.traces.groups import axis_of
from tspsim.traces.lay import lay
from tspsim.traces.scenario import guess
from tspsim.traces.scenario_text import lines

LAYERS, RANKS, PASSES, TOKENS = 6, 4, 2, 2048
MODEL = f"""
name: small-dense
layers: {LAYERS}
hidden: 4096
attention: {{heads: 32, kv_heads: 8, head_dim: 128}}
mlp: {{width: 14336, gated: true}}
embedding: {{vocab: 128256}}
max_context: 8192
source: made here
"""
GROUPS = [("TENSOR_MODEL_PARALLEL_GROUP", RANKS), ("DATA_PARALLEL_GROUP_WITH_CP", 2)]


def step(*, named: bool = True) -> Recorder:
    """Megatron's: tensor ranks divide tokens around norms, replicas gather weights in a few pieces beside them."""
    run = Recorder(launch_us=1.0)

    def of(*names: str, tid: int = 1) -> None:
        for name in names:
            run.launch(name, 20.0, tid=tid)

    def transfer(kind: str, group: int, tid: int = 1, stream: int = 20) -> None:
        what = GROUPS[group][0] if named else ""
        own = {"Collective name": kind.lower(), "Process Group Name": str(group), "Process Group Description": what}
        run.ends[7] = run.launch(f"ncclDevKernel_{kind}_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 30.0 + 50 * group,
                                 stream=stream, tid=tid, after=run.ends.get(7, 0.0), **own)  # fmt: skip

    def forward() -> None:
        of("void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>")
        transfer("ReduceScatter", 0)
        for _ in range(LAYERS):
            of("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits<bf16>>")
            transfer("AllGather", 0)
            of("nvjet_tst_qkv", "void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>",
               "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "nvjet_tst_o")  # fmt: skip
            transfer("ReduceScatter", 0)
            of("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits<bf16>>")
            transfer("AllGather", 0)
            of("nvjet_tst_up", "triton_poi_fused_mul_silu_0", "nvjet_tst_down")
            transfer("ReduceScatter", 0)
        of("void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits<bf16>>")
        transfer("AllGather", 0)
        of("nvjet_tst_head")

    def backward() -> None:
        def back(kind: str) -> None:
            transfer(kind, 0, tid=2)

        back("AllGather")
        of("triton_poi_fused_log_softmax_backward_0", "nvjet_tst_dx", tid=2)
        back("ReduceScatter")
        of("nvjet_tst_dw", "void transformer_engine::normalization::rmsnorm_bwd_tuned_kernel<bf16>", tid=2)
        for _ in range(LAYERS):
            back("AllGather")
            of("nvjet_tst_dx", "nvjet_tst_dw", "triton_poi_fused_mul_silu_silu_backward_0", tid=2)
            back("AllGather")
            of("nvjet_tst_dx", tid=2)
            back("ReduceScatter")
            of("nvjet_tst_dw", "void transformer_engine::normalization::rmsnorm_bwd_tuned_kernel<bf16>", tid=2)
            back("AllGather")
            of("nvjet_tst_dx", "nvjet_tst_dw", "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16",
               "void transformer_engine::fused_rope_backward_kernel<__nv_bfloat16>", tid=2)  # fmt: skip
            back("AllGather")
            of("nvjet_tst_dx", tid=2)
            back("ReduceScatter")
            of("nvjet_tst_dw", "void transformer_engine::normalization::rmsnorm_bwd_tuned_kernel<bf16>", tid=2)
        back("AllGather")
        of("void at::native::(anonymous namespace)::embedding_backward_feature_kernel", tid=2)

    engine: dict[str, Any] = {"category": "cpu_op", "tid": 2}
    with run.note("ProfilerStep#3"):
        for _ in range(2):
            transfer("AllGather", 1, stream=24)
        for number in range(PASSES):
            forward()
            with run.note("autograd::engine::evaluate_function: CheckpointFunctionBackward", **engine):
                # A backward pass within another: what is launched behind it is the outer one's.
                with run.note("autograd::engine::evaluate_function: LinearBackward", **engine):
                    of("triton_poi_fused_zeros_0", tid=2)
                backward()
                for _ in range(2 * (number == PASSES - 1)):
                    transfer("ReduceScatter", 1, tid=2, stream=24)
        of("void multi_tensor_apply_kernel<TensorListMetadata<5>, transformer_engine::multi_tensor_adam::AdamFunctor>")
    run.wait()
    return run


def read(folder: Path, *, named: bool = True) -> traces.Trace:
    groups = [
        {"pg_name": str(number), "pg_desc": name if named else "undefined", "pg_size": size, "ranks": list(range(size))}
        for number, (name, size) in enumerate(GROUPS)
    ]
    path = folder / "t.json"
    path.write_text(json.dumps(step(named=named).kineto("h100", world=8, groups=groups)))
    return traces.read([path])


@pytest.mark.parametrize("named", [True, False])
def test_degrees_of_a_training_step(tmp_path: Path, named: bool) -> None:
    trace = read(tmp_path, named=named)
    phases = Counter(trace.word("phase").tolist())
    assert phases["backward"] > phases["forward"] > 0
    assert int(trace.columns["layer"].max()) + 1 == LAYERS
    run = guess(trace)
    assert (run.degrees, run.regions, run.zero, run.passes) == ({"tp": RANKS}, True, 1, PASSES)
    assert any("tp: 4, sequence_regions: true, zero: 1" in line for line in lines(trace, run))


def test_transfers_are_of_their_own_group(tmp_path: Path) -> None:
    trace = read(tmp_path)
    (tmp_path / "small.yaml").write_text(MODEL)
    work = {"model": str(tmp_path / "small.yaml"), "stack": "megatron-core", "pass": "training", "sequence": TOKENS,
            "sequences_per_replica": PASSES}  # fmt: skip
    plan = {"name": "P", "tp": RANKS, "zero": 1, "recomputation": "none", "sequence_regions": True}
    laid = lay(trace, look_up(tspsim.load({"name": "t", "cluster": "hgx-h100-8", "workload": work, "plans": [plan]})))
    assert laid.matched_share > 0.98
    groups, kinds = laid.trace.word("group"), laid.trace.word("kind")
    for row, index in enumerate(laid.operation.tolist()):
        if index >= 0 and kinds[row] in ("all_gather", "reduce_scatter"):
            assert laid.lane.operations[index].axis == axis_of(groups[row])
    # Gathers of tokens are exact, though replicas gather weights in fewer pieces than the plan has.
    taken = Counter(laid.operation.tolist())
    gathers = [n for n, item in enumerate(laid.lane.operations) if item.name in ("gather for QKV", "gather for MLP")]
    assert len(gathers) == 2 * LAYERS * PASSES and {taken[number] for number in gathers} == {1}
