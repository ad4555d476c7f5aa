"""Whole steps of frameworks that no trace at hand is from, written by hand after their programs: each is read, laid
over its scenario, and refused by another plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.strangers import Recorder, moved_us, product_us, question, ring_us, shown

from tspsim import traces
from tspsim.base.errors import InputError
from tspsim.traces.kinds import HEAVY
from tspsim.traces.lay import lay

#: Llama 3.2 1B.
LAYERS, WIDTH, HEADS, GROUPS, HEAD, MLP, WORDS = 16, 2048, 32, 8, 64, 8192, 128256
APPLY = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{}>"


def torchtitan(steps: int = 3, tokens: int = 8192, ranks: int = 8) -> Recorder:
    """torchtitan 0.2: FSDP2 over 8 GPUs, every block compiled, no recomputation, fused AdamW; gathers on a stream of
    their own one block ahead, scatters on a third."""
    run = Recorder()
    block_mb = 2 * (2 * WIDTH * WIDTH + 2 * WIDTH * GROUPS * HEAD + 3 * WIDTH * MLP) / 1e6
    words_mb = 2 * WIDTH * WORDS / 1e6
    kv = GROUPS * HEAD
    engine = "autograd::engine::evaluate_function: CompiledFunctionBackward"

    def mm(m: int, n: int, k: int, tid: int = 1) -> float:
        return run.launch("nvjet_sm90_tst_256x128_64x4_2x1_v_bz_coopA_TNN", product_us(m, n, k), op="aten::mm",
                          dims=[[m, k], [k, n]], tid=tid)  # fmt: skip

    def gather(megabytes: float, tid: int = 1) -> float:
        """FSDP2's all-gather: its copies in and out run on the streams of who uses them."""
        run.launch("void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2>>",
                   moved_us(megabytes / ranks * 2), stream=16, op="fsdp::all_gather_copy_in", tid=tid)  # fmt: skip
        end = run.launch("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ring_us(megabytes, ranks),
                         stream=20, op="c10d::_allgather_base_", after=run.ends[16], tid=tid,
                         **{"Collective name": "_allgather_base", "In msg nelems": int(megabytes * 5e5 / ranks),
                            "Out msg nelems": int(megabytes * 5e5), "dtype": "BFloat16", "Group size": ranks,
                            "Process Group Name": "1", "Process Group Description": "mesh_fsdp"})  # fmt: skip
        return run.launch("at::native::detail::split_with_sizes_copy_out_contiguous_no_cast_kernel(char**, char**)",
                          moved_us(megabytes * 2), after=end, op="fsdp::split_with_sizes_copy", tid=tid)  # fmt: skip

    def scatter(megabytes: float) -> None:
        run.launch("void at::native::detail::chunk_cat_cuda_kernel<float, c10::BFloat16>(c10::BFloat16**, float*)",
                   moved_us(megabytes * 3), stream=24, after=run.ends[7], op="fsdp::chunk_cat", tid=2)  # fmt: skip
        run.launch("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                   ring_us(2 * megabytes, ranks), stream=28, after=run.ends[24], op="c10d::_reduce_scatter_base_",
                   tid=2, **{"Collective name": "_reduce_scatter_base", "In msg nelems": int(megabytes * 5e5),
                             "dtype": "Float",
                             "Out msg nelems": int(megabytes * 5e5 / ranks), "Group size": ranks})  # fmt: skip

    def forward(last: bool) -> None:
        run.launch("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", moved_us(tokens * WIDTH * 4 / 1e6))
        for width in (WIDTH, kv, kv):
            mm(tokens, width, WIDTH)
        run.launch(
            "triton_poi_fused__to_copy_cat_mul_view_as_complex_view_as_real_1", moved_us(tokens * WIDTH * 5 / 1e6)
        )
        run.launch("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_cga1x1x1_kernel0_0",
                   4 * tokens * tokens * WIDTH / 2 / 450e6, op="aten::_scaled_dot_product_cudnn_attention",
                   dims=[[1, HEADS, tokens, HEAD], [1, GROUPS, tokens, HEAD], [1, GROUPS, tokens, HEAD]])  # fmt: skip
        mm(tokens, WIDTH, WIDTH)
        run.launch("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2", moved_us(tokens * WIDTH * 8 / 1e6))
        mm(tokens, MLP, WIDTH), mm(tokens, MLP, WIDTH)
        run.launch("triton_poi_fused_mul_silu_3", moved_us(tokens * MLP * 6 / 1e6))
        mm(tokens, WIDTH, MLP)

    def backward() -> None:
        def both(inputs: int, outputs: int) -> None:
            mm(outputs, inputs, tokens, tid=2), mm(tokens, inputs, outputs, tid=2)

        with run.note(engine, "cpu_op", tid=2):
            both(MLP, WIDTH)
            run.launch("triton_poi_fused_mul_silu_silu_backward_4", moved_us(tokens * MLP * 10 / 1e6), tid=2)
            both(WIDTH, MLP), both(WIDTH, MLP)
            run.launch("triton_red_fused__to_copy_add_div_mul_pow_sum_5", moved_us(tokens * WIDTH * 10 / 1e6), tid=2)
            both(WIDTH, WIDTH)
            run.launch("void cudnn::fusion::compute_dot_do_o_specialized<true, 64, 128>", 20.0, tid=2)
            run.launch("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x1x1_kernel0_0",
                       10 * tokens * tokens * WIDTH / 2 / 400e6, tid=2,
                       op="aten::_scaled_dot_product_cudnn_attention_backward")  # fmt: skip
            run.launch("void cudnn::fusion::convert_dq_to_16bits<64>", 20.0, tid=2)
            run.launch("triton_poi_fused__to_copy_cat_mul_view_as_complex_6", moved_us(tokens * WIDTH * 5 / 1e6), tid=2)
            both(WIDTH, kv), both(WIDTH, kv), both(WIDTH, WIDTH)
            run.launch("triton_red_fused__to_copy_add_div_mul_pow_sum_7", moved_us(tokens * WIDTH * 10 / 1e6), tid=2)

    for step in range(steps):
        with run.note(f"ProfilerStep#{step + 9}"):
            gather(words_mb)
            run.launch("triton_poi_fused_embedding_0", moved_us(tokens * WIDTH * 4 / 1e6), op="aten::embedding")
            for _ in range(LAYERS):
                gather(block_mb)
                with run.note("Torch-Compiled Region: 0/0", "cpu_op"):
                    forward(False)
            run.launch("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_8", moved_us(tokens * WIDTH * 4 / 1e6))
            gather(words_mb)
            mm(tokens, WORDS, WIDTH)
            run.launch("triton_red_fused__log_softmax__to_copy_9", moved_us(tokens * WORDS * 2 / 1e6))
            run.launch("triton_per_fused_nll_loss_forward_10", 5.0)
            with run.note(engine, "cpu_op", tid=2):
                run.launch("triton_red_fused__log_softmax_backward_data_nll_loss_backward_11",
                           moved_us(tokens * WORDS * 6 / 1e6), tid=2)  # fmt: skip
                mm(WORDS, WIDTH, tokens, tid=2), mm(tokens, WIDTH, WORDS, tid=2)
                run.launch("triton_red_fused__to_copy_add_div_mul_pow_sum_12", moved_us(60.0), tid=2)
                scatter(words_mb)
            for _ in range(LAYERS):
                with run.note(engine, "cpu_op", tid=2):
                    gather(block_mb, tid=2)
                backward()
                with run.note(engine, "cpu_op", tid=2):
                    scatter(block_mb)
            with run.note(engine, "cpu_op", tid=2):
                run.launch("void at::native::(anonymous namespace)::embedding_backward_feature_kernel", 90.0, tid=2)
                scatter(words_mb)
            run.launch(APPLY.format("TensorListMetadata<1>, LpNormFunctor<float>"), 300.0, after=run.ends[28])
            run.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20.0, stream=32)
            run.launch(APPLY.format("TensorListMetadata<1>, BinaryOpScalarTensorFunctor<float>"), 300.0)
            with run.note("Optimizer.step#AdamW.step"):
                for _ in range(3):
                    run.launch(APPLY.format("FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float>"), 700.0,
                               op="aten::_fused_adamw_")  # fmt: skip
        run.wait()
    return run


#: Llama 3.1 8B on four H100s in two stages: a stage's layers.
M_LAYERS, M_WIDTH, M_MLP, M_KV = 16, 4096, 14336, 1024
TE = "void transformer_engine::{}"


def megatron(batches: int = 4, tokens: int = 4096, ranks: int = 4) -> Recorder:
    """Megatron-Core with Transformer Engine: the first of two stages (1F1B), TP 4 with sequence parallelism, gradients
    accumulated in the products, a distributed optimizer of one replica. Two steps."""
    run = Recorder(seed=19, launch_us=4.0)
    shard_mb = tokens * M_WIDTH * 2 / 1e6
    heads = M_WIDTH // 128 // ranks

    def mm(m: int, n: int, k: int, kind: str = "TNT", **extra: float) -> float:
        return run.launch(f"nvjet_hsh_256x128_64x4_2x1_v_bz_coopA_{kind}", product_us(m, n, k), **extra)

    def small(name: str, megabytes: float) -> float:
        return run.launch(name, moved_us(megabytes))

    def transfer(kind: str, after: float | None = None) -> float:
        return run.launch(f"ncclDevKernel_{kind}(ncclDevKernelArgsStorage<4096ul>)", ring_us(shard_mb, ranks),
                          stream=21, after=run.ends[7] if after is None else after)  # fmt: skip

    def gather() -> float:
        return transfer("AllGather_RING_LL")

    def scatter() -> float:
        return transfer("ReduceScatter_Sum_bf16_RING_LL")

    def hop() -> None:
        run.launch("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 8.0 + shard_mb * 1e3 / ranks / 40.0,
                   stream=29, after=run.ends[7])  # fmt: skip

    def forward() -> None:
        with run.note("forward_step"):
            small("void at::native::(anonymous namespace)::vectorized_gather_kernel<16, long>(char*, char*)", 34.0)
            after = scatter()
            for _ in range(M_LAYERS):
                run.launch(TE.format("normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits<bf16>>"), 6.0, after=after)
                mm(tokens, (M_WIDTH + 2 * M_KV) // ranks, M_WIDTH, after=gather())
                for width in (M_WIDTH, M_KV):
                    small(TE.format("fused_rope_forward_kernel<__nv_bfloat16>"), tokens * width * 4 / ranks / 1e6)
                run.launch("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_kernel0_0",
                           4 * tokens * tokens * 128 * heads / 2 / 450e6)  # fmt: skip
                mm(tokens, M_WIDTH, M_WIDTH // ranks)
                run.launch("triton_poi_fused_add_bias_dropout_0", 6.0, after=scatter())
                small(TE.format("normalization::rmsnorm_fwd_tuned_kernel<Kernel_traits<bf16>>"), 17.0)
                mm(tokens, 2 * M_MLP // ranks, M_WIDTH, after=gather())
                small("triton_poi_fused_mul_silu_split_1", tokens * M_MLP * 6 / ranks / 1e6)
                mm(tokens, M_WIDTH, M_MLP // ranks)
                after = run.launch("triton_poi_fused_add_bias_dropout_0", 6.0, after=scatter())
            hop()

    def backward() -> None:
        def both(outputs: int, inputs: int, after: float) -> None:
            """A product's gradients: of its input, scattered beside that of its weight."""
            mm(tokens, inputs, outputs, "NNT", after=after)
            scatter()
            mm(outputs, inputs, tokens, "NTT")

        def rows(outputs: int, inputs: int) -> None:
            mm(tokens, inputs, outputs, "NNT", after=gather())
            mm(outputs, inputs, tokens, "NTT")

        def norm() -> None:
            run.launch(TE.format("normalization::rmsnorm_bwd_tuned_kernel<Kernel_traits<bf16>>"), 12.0,
                       after=run.ends[21])  # fmt: skip
            small(TE.format("normalization::rmsnorm_bwd_finalize_tuned_kernel<Kernel_traits<bf16>>"), 4.0)
            small("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>", 25.0)

        with run.note("backward_step"):
            hop()
            for _ in range(M_LAYERS):
                rows(M_WIDTH, M_MLP // ranks)
                gathered = gather()
                small("triton_poi_fused_cat_mul_silu_silu_backward_split_2", tokens * M_MLP * 10 / ranks / 1e6)
                both(2 * M_MLP // ranks, M_WIDTH, gathered)
                norm()
                rows(M_WIDTH, M_WIDTH // ranks)
                small("void cudnn::fusion::compute_dot_do_o_specialized<true, 128>", 8.0)
                run.launch("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_kernel0_0",
                           10 * tokens * tokens * 128 * heads / 2 / 400e6)  # fmt: skip
                small("void cudnn::fusion::convert_dq_to_16bits<128>", 8.0)
                gathered = gather()
                for width in (M_WIDTH, M_KV):
                    small(TE.format("fused_rope_backward_kernel<__nv_bfloat16>"), tokens * width * 4 / ranks / 1e6)
                both((M_WIDTH + 2 * M_KV) // ranks, M_WIDTH, gathered)
                norm()
            gather()
            run.launch("void at::native::(anonymous namespace)::embedding_backward_feature_kernel", 120.0,
                       after=run.ends[21])  # fmt: skip

    for step in range(2):
        with run.note(f"iteration{step + 5}"):
            forward()
            for _ in range(batches - 1):
                forward()
                backward()
            backward()
            for _ in range(2):
                run.launch("void multi_tensor_apply_kernel<TensorListMetadata<1>, transformer_engine::"
                           "multi_tensor_l2norm::L2NormFunctor<float>>", 900.0)  # fmt: skip
            run.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 20.0, stream=33,
                       after=run.ends[7])  # fmt: skip
            for _ in range(4):
                run.launch("void multi_tensor_apply_kernel<TensorListMetadata<5>, transformer_engine::multi_tensor_adam"
                           "::AdamFunctorMasterParamRemainder<c10::BFloat16, float, int>>", 2500.0)  # fmt: skip
        run.wait()
    return run


def test_a_step_of_torchtitan_finds_its_operators(tmp_path: Path) -> None:
    """Gathers of FSDP2's backward belong to backward, copies behind them included; the loss is computed forward."""
    file = tmp_path / "rank0_trace.json"
    file.write_text(json.dumps(torchtitan().kineto("h100", 0, 8)))
    workload = {"model": "llama-3.2-1b", "pass": "training", "sequence": 8192, "global_batch": 8, "stack": "torchtitan"}
    plan = {"dp": 8, "zero": 3, "recomputation": "none"}
    trace = traces.read([file])
    assert trace.facts["steps_by"] == "annotation" and set(trace.columns["step"].tolist()) == {0, 1, 2}
    assert set(trace.columns["layer"].tolist()) >= set(range(LAYERS))
    laid = lay(trace, question(workload, plan), "P")
    assert laid.matched_share >= 0.999 and not [left for left in laid.left_over if left.kind in HEAVY], laid.left_over
    assert 0.7 < laid.measured_s / laid.simulated_s < 1.4, shown(laid)
    gathers = [item for item in laid.lane.operations if item.kind == "all_gather"]
    assert [sum(item.phase == phase for item in gathers) for phase in ("forward", "backward")] == [LAYERS + 1, LAYERS]
    for other, told in (
        ({**plan, "zero": 1}, r"expected \d+ all-gathers, found \d+"),
        ({**plan, "recomputation": "full"}, "attention of 16 layers computed again in the backward pass, found 0"),
        ({**plan, "recomputation": "selective"}, "attention of 16 layers computed again"),
    ):
        with pytest.raises(InputError, match=told):
            lay(trace, question(workload, other), "P")


def test_a_step_of_a_stage_of_megatron_finds_its_operators(tmp_path: Path) -> None:
    """Gathers of inputs of column-split products for their backward find their operators too."""
    file = megatron().nsight(tmp_path / "stage0.sqlite")
    workload = {
        "model": "llama-3.1-8b",
        "pass": "training",
        "sequence": 4096,
        "global_batch": 4,
        "stack": "megatron-core",
    }
    regions = {"sequence_regions": True, "recomputation": "none"}
    plan = {"tp": 4, "pp": 2, "dp": 1, "micro_batch": 1, **regions}
    trace = traces.read([file])
    assert trace.facts["steps_by"] == "annotation" and set(trace.columns["step"].tolist()) == {0, 1}
    laid = lay(trace, question(workload, plan), "P")
    assert laid.matched_share >= 0.995
    assert {left.kind for left in laid.left_over} <= {"all_gather", "all_reduce"}, laid.left_over
    assert sum(left.count for left in laid.left_over) <= 8, laid.left_over
    again = [item for item in laid.lane.operations if item.name.startswith("gather again")]
    assert len(again) == 2 * M_LAYERS * 4
    assert 0.6 < laid.measured_s / laid.simulated_s < 1.2, shown(laid)
    for other, told in (
        ({"tp": 2, "pp": 4, **regions}, "attention of 32 layers, found 64"),
        ({**plan, "sequence_regions": False}, r"expected \d+ all-reduces, found 1"),
        ({**plan, "recomputation": "full"}, "attention of 128 layers, found 64"),
    ):
        with pytest.raises(InputError, match=told):
            lay(trace, question(workload, other), "P")
