"""TensorRT-LLM runs shared experts on a stream of their own, in time between the two kernels of the routed ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.strangers import Recorder

import tspsim
from tspsim import traces
from tspsim.step.question import look_up
from tspsim.traces.kinds import HEAVY
from tspsim.traces.lay import lay
from tspsim.traces.scenario import guess

LAYERS, DENSE = 27, 1
REDUCE = (
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<Pattern, __nv_bfloat16, 2, false>"
)
EXPERTS = "bmm_{}_E2m1E2m1_Fp32_t128x16x512_s5_et128x16_m128x16x64_cga1x1x1_16dp256b_TN_transOut_bN_dynBatch_sm100f"
ROUTING = "void moe::dev::routing::routingDeepSeek::routingMainKernel<moe::dev::routing::KernelParams>"
ARGMAX = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps<float>>>"
ATTENDS = (
    "fmhaSm100fKernel_QkvE4m3OBfloat16HQk576HV512HVPerCta256PagedKvDenseP64MultiCtasKvCgaVarSeqQ16Kv128StaticKeeps"
)


def decode(steps: int = 2) -> Recorder:
    """DeepSeek-V2-Lite as TensorRT-LLM decodes latents: kernels of its 1.2 on B200, over two ranks."""
    run = Recorder()
    beside = 22

    def of(*names: str, stream: int = 7, us: float = 5.0) -> None:
        for name in names:
            run.launch(name, us, stream=stream)

    def shared(stream: int) -> None:
        of("nvjet_sm100_tst_64x32_up", "void tensorrt_llm::kernels::silu_and_mul_kernel", "nvjet_sm100_tst_64x32_down",
           stream=stream, us=9.0)  # fmt: skip

    for step in range(steps):
        with run.note(f"[Executor] _forward_step {step}: 0 ctx reqs, 64 gen reqs"), run.replay():
            of("void tensorrt_llm::kernels::lookup_kernel<__nv_bfloat16>", REDUCE)
            for layer in range(LAYERS):
                of("nvjet_sm100_tst_64x32_a", "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>",
                   "nvjet_sm100_tst_48x64_b",
                   "void tensorrt_llm::kernels::applyMLARopeAndAssignQKVKernelGeneration<__nv_bfloat16, 256>", ATTENDS,
                   "nvjet_sm100_tst_128x64_v", "nvjet_sm100_tst_64x32_o", REDUCE)  # fmt: skip
                if layer < DENSE:
                    shared(7)
                else:
                    of("nvjet_sm100_tst_router", ROUTING)
                    run.ends[beside] = run.ends[7]
                    of(EXPERTS.format("E2m1") + "_swiGlu", us=20.0)
                    shared(beside)
                    of(EXPERTS.format("Bfloat16"), us=20.0)
                    of("void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams>")
                of(REDUCE)
            of("nvjet_sm100_tst_head", "ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs4K)", ARGMAX)
        run.wait()
    return run


def test_shared_experts_beside_routed_ones(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(decode().kineto("h100", world=2)))
    trace = traces.read([path])
    run = guess(trace)
    assert (run.stack, run.degrees, run.models[0]) == ("trtllm", {"tp": 2}, "deepseek-v2-lite")
    work = {"model": "deepseek-v2-lite", "pass": "decode", "batch": 64, "context": 2048, "stack": "trtllm"}
    plan = {"name": "P", "tp": 2, "ep": 2}
    scenario = {"name": "t", "cluster": "hgx-b200-8", "workload": work, "plans": [plan]}
    laid = lay(trace, look_up(tspsim.load(scenario)))
    assert laid.matched_share > 0.98, laid.left_over[:5]
    assert not [row for row in laid.left_over if row.kind in HEAVY], laid.left_over[:5]
    rows = {row.kind: row for row in laid.kinds}
    # Sums behind the two products are priced with them.
    assert rows["grouped_gemm"].measured_s == pytest.approx((LAYERS - DENSE) * 45e-6, rel=0.1)
