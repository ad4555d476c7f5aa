"""Whole decode steps of serving engines that no trace at hand is from, written by hand after their programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.strangers import Recorder, moved_us, product_us, question, shown

from tspsim import traces
from tspsim.base.errors import InputError
from tspsim.traces.kinds import HEAVY
from tspsim.traces.lay import lay

NVJET = "nvjet_tst_64x32_64x16_4x1_v_bz_{}TNN"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, 3ul>>"


def vllm(steps: int = 4, batch: int = 32, context: int = 4096, ranks: int = 2, layers: int = 32) -> Recorder:
    """vLLM V1: Llama 3.1 8B on two H100s, whole graphs, FlashAttention 3, custom all-reduce; tokens are copied out on a
    stream of their own."""
    run = Recorder(seed=11)
    width, mlp, words = 4096, 14336, 128256

    def mm(n: int, k: int, split: str = "") -> None:
        run.launch(NVJET.format(split), product_us(batch, n, k, 500.0, 2.7))

    def reduce() -> None:
        run.launch(f"void vllm::cross_device_reduce_1stage<__nv_bfloat16, {ranks}>(vllm::RankData*, vllm::RankSignals, "
                   "vllm::Signal*, __nv_bfloat16*, int, int)", 8.0)  # fmt: skip

    cached_mb = 2 * 2 * batch * context * 8 / ranks * 128 / 1e6
    for _ in range(steps):
        with run.note("gpu_model_runner: preprocess"):
            run.launch("_compute_slot_mapping_kernel", 2.0, op="")
            run.launch(ELEMENTWISE.format("CUDAFunctorOnSelf_add<int>"), 1.5, op="aten::add_")
        with run.note(f"execute_context_0(0)_generation_{batch}({batch})"), run.replay():
            run.launch("triton_poi_fused_bitwise_and_bitwise_not_bitwise_or_embedding_ge_lt_masked_fill_0", 3.0)
            reduce()
            run.launch("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", 3.0)
            for layer in range(layers):
                mm(6144 // ranks, width)
                run.launch("triton_poi_fused_cat_index_select_mul_split_sub_1", 2.0)
                run.launch("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, "
                           "(vllm::Fp8KVCacheDataType)0>", 2.5)  # fmt: skip
                if not layer:
                    run.launch("void flash::prepare_varlen_num_blocks_kernel<1, true>(flash::...)", 2.0)
                run.launch(
                    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::"
                    "CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>>>>>>",
                    moved_us(cached_mb),
                )
                run.launch("void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>>, 5>>", 3.0)
                mm(width, width // ranks)
                reduce()
                run.launch("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2", 3.0)
                mm(2 * mlp // ranks, width)
                run.launch("triton_poi_fused_mul_silu_slice_3", 2.5)
                mm(width, mlp // ranks, "splitK_")
                run.launch("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>", 3.0)
                reduce()
                run.launch("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_4", 3.0)
        with run.note("gpu_model_runner: postprocess"):
            run.launch("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel>", 3.0,
                       op="aten::index")  # fmt: skip
            mm(words // ranks, width)
            run.launch("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 25.0, stream=23,
                       after=run.ends[7], op="c10d::_allgather_base_")  # fmt: skip
        with run.note("gpu_model_runner: sample"):
            run.launch("void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>", 6.0,
                       after=run.ends[23], op="aten::copy_")  # fmt: skip
            end = run.launch("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::ArgMaxOps"
                             "<float>, unsigned int, long, 4, 4>>", 20.0, op="aten::argmax")  # fmt: skip
            run.launch("Memcpy DtoH (Device -> Pinned)", 1.5, stream=31, after=end, op="aten::copy_",
                       category="gpu_memcpy")  # fmt: skip
        run.wait()
    return run


def sglang(steps: int = 4, batch: int = 64, context: int = 2048, layers: int = 36) -> Recorder:
    """SGLang with its overlap scheduler: Qwen3 8B on an H100; the next batch is prepared on the scheduler's stream
    while the graph of this one runs on its own."""
    run = Recorder(seed=13)
    width, mlp, words, here, plans = 4096, 12288, 151936, 17, 7
    cached_mb = 2 * 2 * batch * context * 8 * 128 / 1e6

    def on(name: str, us: float, op: str = "") -> float:
        return run.launch(name, us, stream=here, op=op)

    def mm(n: int, k: int) -> None:
        on(NVJET.format(""), product_us(batch, n, k, 500.0, 2.7))

    def norm(name: str = "FusedAddRMSNormKernel") -> None:
        on(f"void flashinfer::norm::{name}<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, unsigned int)", 3.0)

    results = [0.0]
    for _ in range(steps):
        with run.note(f"step[DECODE bs={batch}]"):
            run.launch("Memcpy HtoD (Pinned -> Device)", 1.2, stream=plans, op="aten::copy_", category="gpu_memcpy")
            ready = run.launch(ELEMENTWISE.format("CUDAFunctorOnSelf_add<long>"), 1.5, stream=plans, op="aten::add_")
            run.launch("triton_poi_fused_clamp_index_lt_neg_where_0", 2.0, stream=here, after=ready)
            run.launch("create_flashinfer_kv_indices_triton", 4.0, stream=here)
            with run.replay():
                on(
                    "void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>(char*, char*, long*)",
                    3.0,
                )
                norm("RMSNormKernel")
                for _ in range(layers):
                    mm(6144, width)
                    on("void fused_qknorm_warp<128, true, __nv_bfloat16>(QKNormParams)", 2.5)
                    on("void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheEnhancedHeadParallelismKernel<false, 128u>",
                       3.0)  # fmt: skip
                    on("void store_kvcache<2048l, 1, true, long>(StoreKVCacheParams)", 2.0)
                    on("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::"
                       "CollectiveMainloopFwdSm90<2>>>>", moved_us(cached_mb))  # fmt: skip
                    mm(width, width)
                    norm()
                    mm(2 * mlp, width)
                    on(
                        "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu<float>>",
                        3.0,
                    )
                    mm(width, mlp)
                    norm()
                mm(words, width)
            end = on("void at::native::reduce_kernel<512, 1, ReduceOp<ArgMaxOps>>", 30.0, "aten::argmax")  # fmt: skip
            run.launch("Memcpy DtoH (Device -> Pinned)", 1.5, stream=37, after=end, op="aten::copy_",
                       category="gpu_memcpy")  # fmt: skip
            results.append(run.ends[37])
            # The host waits for the batch before this one.
            run.clock = max(run.clock + 300.0, results[-2])
    return run


def aiter(steps: int = 4, batch: int = 64, context: int = 2048, layers: int = 48) -> Recorder:
    """vLLM on an MI355X: Qwen3 30B A3B with AITER's kernels, dispatches alone."""
    run = Recorder(seed=17)
    width, experts, mlp, words = 2048, 128, 768, 151936

    def mm(tile: str, n: int, k: int) -> None:
        run.launch(f"Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{tile}_MI16x16x1_SN_LDSB1_AFC1_WGM8.kd",
                   product_us(batch, n, k, 900.0, 5.0))  # fmt: skip

    weights_mb = experts * mlp * width * 2 / 1e6
    for _ in range(steps):
        run.launch("void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long>", 4.0)
        run.launch("_ZN5aiter24add_rmsnorm_quant_kernelItfLi256ELi8ELb1ELb0ELb0ELi1EEEvPT0_PT_.kd", 4.0)
        for _ in range(layers):
            mm("64x64x128", 5120, width)
            run.launch("_fused_qk_norm_rope_cache_quant_shuffle.kd", 5.0)
            run.launch("_ZN5aiter35pa_bf16_pertokenFp8_gqa8_2tg_4w_uhpE.kd",
                       moved_us(2 * 2 * batch * context * 4 * 128 / 1e6, 4.5))  # fmt: skip
            mm("32x64x256", width, 4096)
            run.launch("_ZN5aiter24add_rmsnorm_quant_kernelItfLi256ELi8ELb1ELb0ELb0ELi1EEEvPT0_PT_.kd", 4.0)
            mm("16x16x512", experts, width)
            run.launch("_ZN5aiter19topk_softmax_kernelIDF16bLi8ELi128EEEvPT_PfPi.kd", 4.0)
            run.launch(
                "_ZN7ck_tile6kentryILi2ENS_21MoeSortingMultiPhaseKernelINS_20MoeSortingProblemMpEEEEEvT1_.kd", 6.0
            )
            run.launch(
                "_ZN2ck15kernel_moe_gemmINS_27GridwiseMoeGemmBPreshuffleEEEvT_.kd", moved_us(2 * weights_mb, 4.5)
            )
            run.launch("_ZN2ck15kernel_moe_gemmINS_27GridwiseMoeGemmBPreshuffleEEEvT_.kd", moved_us(weights_mb, 4.5))
            run.launch("_ZN5aiter24add_rmsnorm_quant_kernelItfLi256ELi8ELb1ELb0ELb0ELi1EEEvPT0_PT_.kd", 4.0)
        mm("64x256x64", words, width)
        run.launch("void at::native::reduce_kernel<512, 1, ReduceOp<ArgMaxOps>>.kd", 60.0)
        run.wait()
    return run


def hybrid(steps: int = 4, batch: int = 32, context: int = 4096, ranks: int = 4, layers: int = 48) -> Recorder:
    """vLLM V1: Qwen3-Next 80B A3B on four H200, whole graphs; every fourth layer has full attention."""
    run = Recorder(seed=23)
    width, words = 2048, 151936

    def mm(n: int, k: int) -> None:
        run.launch(NVJET.format(""), product_us(batch, n, k, 500.0, 4.0))

    def all_of(*names: str) -> None:
        for name in names:
            run.launch(name, 3.0)

    reduce = f"void vllm::cross_device_reduce_1stage<__nv_bfloat16, {ranks}>(vllm::RankData*, vllm::Signal*)"
    norm = "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0"
    experts = "void fused_moe_kernel"
    for _ in range(steps):
        with run.note(f"execute_context_0(0)_generation_{batch}({batch})"), run.replay():
            all_of("triton_poi_fused_bitwise_and_bitwise_not_bitwise_or_embedding_ge_lt_masked_fill_0", reduce, norm)
            for layer in range(layers):
                if layer % 4 < 3:
                    mm(12288 // ranks, width), mm(64 // ranks, width)
                    all_of("_causal_conv1d_update_kernel", "fused_gdn_gating_kernel")
                    run.launch("fused_recurrent_gated_delta_rule_fwd_kernel", moved_us(2 * batch * 32 / ranks * 0.066))
                    all_of("layer_norm_fwd_kernel")
                    mm(width, 4096 // ranks)
                else:
                    mm(9216 // ranks, width)
                    all_of("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_split_5", "triton_poi_fused_cat_mul_sub_6",
                           "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>")  # fmt: skip
                    run.launch("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::"
                               "CollectiveMainloopFwdSm90<2>>>>", moved_us(batch * context / 1e3))  # fmt: skip
                    all_of("triton_poi_fused_mul_sigmoid_7")
                    mm(width, 4096 // ranks)
                all_of(reduce, norm)
                mm(512, width)
                all_of("void vllm::moe::topkGating<8, 512, 4, 16>", "void vllm::moe::moe_align_block_size_kernel<int>",
                       "void vllm::moe::count_and_sort_expert_tokens_kernel<int>")  # fmt: skip
                run.launch(experts, moved_us(240 * 2 * 2048 * 1024 / ranks / 1e6, 4.0))
                all_of("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>")
                run.launch(experts, moved_us(240 * 2 * 2048 * 512 / ranks / 1e6, 4.0))
                all_of("void vllm::moe::moe_sum_kernel<c10::BFloat16, 10>")
                mm(1024 // ranks, width)
                all_of("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, true>")
                mm(width, 512 // ranks), mm(1, width)
                all_of("triton_poi_fused_add_mul_sigmoid_8", reduce, norm)
        with run.note("gpu_model_runner: sample"):
            mm(words // ranks, width)
            run.launch("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 25.0, stream=23,
                       after=run.ends[7], op="c10d::_allgather_base_")  # fmt: skip
            run.launch("void at::native::reduce_kernel<512, 1, ReduceOp<ArgMaxOps>>", 20.0, after=run.ends[23],
                       op="aten::argmax")  # fmt: skip
        run.wait()
    return run


#: By engine: what it writes, its scenario, its plan, the device and what shows its steps.
STEPS: dict[str, Any] = {
    "vllm": (vllm, {"model": "llama-3.1-8b", "pass": "decode", "batch": 32, "context": 4096, "stack": "vllm"},
             {"tp": 2}, "h100", "annotation"),
    "hybrid": (hybrid, {"model": "qwen3-next-80b-a3b", "pass": "decode", "batch": 32, "context": 4096, "stack": "vllm"},
               {"tp": 4}, "h200", "annotation"),
    "sglang": (sglang, {"model": "qwen3-8b", "pass": "decode", "batch": 64, "context": 2048, "stack": "sglang"}, {},
               "h100", "annotation"),
    "aiter": (aiter, {"model": "qwen3-30b-a3b", "pass": "decode", "batch": 64, "context": 2048, "stack": "vllm"}, {},
              "mi355x", "repetition"),
}  # fmt: skip


@pytest.mark.parametrize("engine", sorted(STEPS))
def test_a_step_of_an_engine_finds_its_operators(engine: str, tmp_path: Path) -> None:
    program, workload, plan, device, by = STEPS[engine]
    run = program()
    written = run.rocprof() if device == "mi355x" else run.kineto(device, world=plan.get("tp", 1))
    file = tmp_path / f"{engine}.json"
    file.write_text(json.dumps(written))
    trace = traces.read([file])
    own = question(workload, plan, device)
    laid = lay(trace, own, "P")
    assert laid.matched_share >= 0.95, laid.left_over
    assert not [left for left in laid.left_over if left.kind in HEAVY]
    assert trace.facts["steps_by"] == by
    assert 0.5 < laid.measured_s / laid.simulated_s < 2.0, shown(laid)
    with pytest.raises(InputError, match=r"layers|exchange|all_reduce|transfer"):
        lay(trace, question({**workload, "model": "qwen3-14b"}, plan, device), "P")
