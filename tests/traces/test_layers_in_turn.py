"""Layers whose attention differs in turn, and a step that begins inside a pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.profiles import Kernel, kineto, written

import tspsim
from tspsim import traces
from tspsim.cli import main
from tspsim.model import load_model
from tspsim.step.question import look_up
from tspsim.traces.kinds import HEAVY
from tspsim.traces.lay import lay
from tspsim.traces.scenario import guess

CIJK = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{}_MI16x16x1_SN"
NORM = "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassEEE"
NOTE = "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)"


def gpt_oss_decode() -> list[Kernel]:
    """vLLM's decode step of 32 sequences of gpt-oss-20b on MI300X, in a whole graph: names, order and mean times of
    AMD-AGI/TraceLens, tests/traces/inference/graph_full/perf_csvs/unified_perf_summary.csv (0d79b31f)."""
    kernels = [Kernel("triton_poi_fused_0", 10.6)]
    for layer in range(24):
        windows = [Kernel("kernel_unified_attention_2d", 13.48)]
        whole = [Kernel("kernel_unified_attention_3d", 40.0), Kernel("reduce_segments", 6.88)]
        kernels += [
            Kernel(NORM, 6.46), Kernel(CIJK.format("32x32x256"), 16.13),
            *([Kernel("triton_poi_fused__to_copy_1", 12.71)] if layer else []),
            Kernel("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", 6.24),
            Kernel("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16>", 5.68),
            *(whole if layer % 2 else windows),
            Kernel(CIJK.format("32x32x256"), 15.26), Kernel(NORM, 7.12), Kernel(CIJK.format("16x16x256"), 8.36),
            Kernel("triton_poi_fused_constant_pad_nd_moe_forward_0", 5.11), Kernel("_topk_forward", 4.99),
            Kernel("_sum_bitmatrix_rows", 5.04), Kernel("_combined_routing_memset", 5.12),
            Kernel("_combined_routing_compute", 5.48),
            Kernel("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", 136.36),
            Kernel("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1", 156.74),
            Kernel("_finalize_matmul_scatter_bf16", 5.71),
        ]  # fmt: skip
    return [*kernels, Kernel(NORM, 6.46), Kernel(CIJK.format("448x32x64"), 276.68)]


def test_windows_and_whole_contexts_in_turn_are_a_layer_each(tmp_path: Path) -> None:
    path = written(tmp_path / "decode.json", kineto([(NOTE, gpt_oss_decode())], device="mi300x"))
    trace = traces.read([path])
    assert int(trace.columns["layer"].max()) + 1 == 24
    # Without shapes, layers and experts say which model it is.
    assert guess(trace).models == ("gpt-oss-20b",)
    assert main(["trace", "scenario", str(path), "--out", str(tmp_path / "mine.yaml")]) == 0
    laid = lay(trace, look_up(tspsim.load(tmp_path / "mine.yaml")))
    assert laid.matched_share > 0.99
    assert not [row for row in laid.left_over if row.kind in HEAVY]
    experts = next(row for row in laid.kinds if row.kind == "grouped_gemm")
    # The choice, padding and sums around the two products are priced with them.
    assert experts.measured_s == pytest.approx(24 * (293.1 + 31.45) * 1e-6, rel=1e-3)
    # Nothing is fitted on this step: products and experts of the device, paces of two other traces.
    assert experts.simulated_s == pytest.approx(experts.measured_s, rel=0.15)
    assert laid.simulated_s == pytest.approx(sum(kernel.length for kernel in gpt_oss_decode()) * 1e-6, rel=0.15)


@pytest.mark.parametrize(("between", "layers"), [(0, 12), (1, 6)])
def test_linear_and_softmax_attention_in_turn(tmp_path: Path, between: int, layers: int) -> None:
    """A hybrid model's layers are one each; a layer that attends twice, to itself and to an encoder, is one."""
    mlp = [Kernel("nvjet_up", 9.0), Kernel("act_and_mul_kernel", 2.0), Kernel("nvjet_down", 9.0)]
    linear = [Kernel("nvjet_qkvz", 9.0), Kernel("nvjet_ba", 2.0), Kernel("fused_recurrent_gated_delta_rule_fwd", 4.0)]
    softmax = [Kernel("nvjet_qkv", 9.0), Kernel("flash_fwd_splitkv_kernel", 6.0)]
    out = [Kernel("nvjet_out", 5.0)]
    hybrid = [*linear, *out, *mlp, *softmax, *out, *mlp]
    twice = [*softmax, *out, *softmax, *out, Kernel("moe_gemm", 8.0), *mlp]
    path = written(tmp_path / "a.json", kineto([("step 1", (twice if between else hybrid) * 6)]))
    assert int(traces.read([path]).columns["layer"].max()) + 1 == layers


WIDTH, MLP, HEADS, TOKENS = 1024, 2816, 16, 2 * 512


def _mm(inner: int, columns: int) -> Kernel:
    return Kernel("sm90_xmma_gemm_bf16bf16", 30.0, "aten::mm", [[TOKENS, inner], [inner, columns]])


def _layer() -> list[Kernel]:
    heads = [[2, 512, HEADS, 64]] * 3
    norm = [Kernel("void at::native::reduce_kernel<512, 1>", 3.0, f"aten::{name}") for name in ("pow", "mean", "rsqrt")]
    flash = Kernel("void pytorch_flash::flash_fwd_kernel<64>", 20.0, "aten::_flash_attention_forward", heads)
    return [
        *norm, *([_mm(WIDTH, WIDTH)] * 3), flash, _mm(WIDTH, WIDTH), *norm, _mm(WIDTH, MLP), _mm(WIDTH, MLP),
        Kernel("silu_kernel", 4.0, "aten::silu"), _mm(MLP, WIDTH),
    ]  # fmt: skip


def test_a_step_that_begins_inside_a_pass_and_a_model_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A profiler's step of an eager forward pass holds the last layers of the pass before; the model is in no
    catalog, and its widths are in the shapes."""
    lookup = Kernel("void at::native::indexSelectLargeIndex<c10::BFloat16>", 3.0, "aten::embedding")
    kernels = [*_layer() * 4, lookup, *_layer() * 10]
    path = written(tmp_path / "t.json", kineto([("ProfilerStep#3", kernels)], device="h100"))
    trace = traces.read([path])
    assert int(trace.columns["layer"].max()) + 1 == 10
    assert main(["trace", "scenario", str(path), "--out", str(tmp_path / "mine.yaml")]) == 0
    scenario = tspsim.load(tmp_path / "mine.yaml")
    assert (Path(str(scenario.workload.model)).name, scenario.workload.stack) == ("mine-model.yaml", "torchtitan-eager")
    model = load_model(tmp_path / "mine-model.yaml")
    assert (model.layers, model.hidden, model.heads, model.kv_heads) == (10, WIDTH, HEADS, HEADS)
    laid = lay(trace, look_up(scenario))
    assert laid.matched_share > 0.95
    # Nothing is replaced, and without a file the model stands as a comment.
    (tmp_path / "mine.yaml").unlink()
    assert main(["trace", "scenario", str(path), "--out", str(tmp_path / "mine.yaml")]) == 2
    assert "mine-model.yaml" in capsys.readouterr().err
    assert not (tmp_path / "mine.yaml").exists()
    assert main(["trace", "scenario", str(path)]) == 0
    assert f"#   mlp: {{width: {MLP}, gated: true}}" in capsys.readouterr().out
