"""Routed experts in one call: the limits of the form, whose kernels are asked, and how curves are fitted."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tspsim
from tspsim.base import catalog
from tspsim.calibration.kernels import fit_device, fit_generation, split_by, used_in_fit
from tspsim.hardware import Device, load_device
from tspsim.hardware.facts import maker_of
from tspsim.hardware.families import FAMILIES
from tspsim.hardware.kernels import limits_of
from tspsim.hardware.specification import DeviceSpec
from tspsim.operators import FusedMoE, element_bytes
from tspsim.validation.kernel_tables import calls

NVIDIA = ("h100", "h200", "b200", "b300", "gb200", "gb300")
MEASURED = ("a100-80gb", *NVIDIA, "mi300x", "mi355x")
ENGINES = ("vllm", "sglang", "trtllm")
EXACT = 1.0 - 1e-9
device = cache(load_device)
FORM = FAMILIES["fused_moe"]


def kernels(name: str) -> list[Any]:
    return [fit for fit in device(name).spec.kernels if fit.family == "fused_moe"]


def seconds(name: str, fit: Any, weights: str | None = None, **shape: Any) -> Any:
    """The form alone, with the parameters of one fit."""
    limits = limits_of(device(name).spec, fit.dtype)
    return FORM.seconds(limits, fit.parameters, {}, shape, fit.dtype, weights or fit.kv_dtype)


SHAPE = {
    "tokens": 700.0, "hidden": 4096.0, "expert_ffn": 768.0, "experts": 32.0, "topk": 8.0,
    "pairs": 1400.0, "touched": 30.0, "gated": 1.0,
}  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(MEASURED), st.integers(0, 99), st.sampled_from(sorted(SHAPE)), st.floats(1.0, 30.0),
    st.integers(1, 8192), st.floats(0.01, 1.0), st.integers(1, 512), st.sampled_from((64, 704, 2048, 16384)),
)  # fmt: skip
def test_more_of_anything_is_never_faster(
    name: str, which: int, what: str, factor: float, tokens: int, share: float, experts: int, ffn: int
) -> None:
    fit = kernels(name)[which % len(kernels(name))]
    pairs = tokens * 8.0 * share
    shape = SHAPE | {
        "tokens": float(tokens), "experts": float(experts), "expert_ffn": float(ffn), "pairs": pairs,
        "touched": min(float(experts), pairs) * share, "gated": 0.0,
    }  # fmt: skip
    more = shape | {what: 1.0 if what == "gated" else shape[what] * factor}
    if what == "topk":  # choices that fall on other ranks
        more["pairs"] = pairs
    assert seconds(name, fit, **more) >= seconds(name, fit, **shape) * EXACT


@pytest.mark.parametrize("name", MEASURED)
def test_never_above_the_roofline_and_wider_weights_never_faster(name: str) -> None:
    random = np.random.default_rng(0)
    rows = 300
    tokens = np.round(2.0 ** random.uniform(0, 17, rows))
    experts = np.round(2.0 ** random.uniform(0, 9, rows))
    pairs = tokens * 8 * random.uniform(0.02, 1.0, rows)
    touched = np.minimum(experts, pairs) * random.uniform(0.2, 1.0, rows)
    hidden, ffn = 2.0 ** random.uniform(8, 13, rows), 2.0 ** random.uniform(5, 14, rows)
    shape = {
        "tokens": tokens, "hidden": hidden, "expert_ffn": ffn, "experts": experts, "topk": np.full(rows, 8.0),
        "pairs": pairs, "touched": touched, "gated": random.integers(0, 2, rows) * 1.0,
    }  # fmt: skip
    matrices = 2.0 + shape["gated"]
    for fit in kernels(name):
        limits = limits_of(device(name).spec, fit.dtype)
        time = seconds(name, fit, **shape)
        assert (time >= 2.0 * matrices * pairs * hidden * ffn / limits.peak * EXACT).all()
        read = matrices * touched * hidden * ffn * element_bytes(fit.kv_dtype)
        assert (time >= read / limits.hbm * EXACT).all()
        assert (seconds(name, fit, "fp32", **shape) >= time * EXACT).all()


@pytest.mark.parametrize("name", NVIDIA)
@pytest.mark.parametrize("engine", ENGINES)
def test_limits_of_few_tokens_and_of_many(name: str, engine: str) -> None:
    """One token waits for launches and the weights of its experts; thousands run at a rate of the matrix units."""
    d = device(name)
    one = d.fused_moe(1, 7168, 2048, 256, 8, library=engine).seconds
    read = 8 * 3 * 7168 * 2048 * 2.0 / d.hbm_bytes_per_s
    assert read < one < 3.0 * read + 150e-6
    # As many tokens again touch no further expert, and double what is computed.
    few, all_touched = (d.fused_moe(n, 7168, 2048, 32, 8, library=engine).seconds for n in (1, 64))
    assert few < all_touched < 12.0 * few
    many, double = (d.fused_moe(n, 7168, 2048, 32, 8, library=engine).seconds for n in (65536, 131072))
    assert double == pytest.approx(2.0 * many, rel=0.1)
    assert 0.1 < 6.0 * 65536 * 8 * 7168 * 2048 / d.peak_of("bf16") / many < 1.0


def test_a_rank_of_an_expert_group_costs_by_what_falls_on_it() -> None:
    d = device("b200")
    whole = d.fused_moe(4096, 7168, 2048, 256, 8, "fp8_block").seconds
    rank = d.fused_moe(4096, 7168, 2048, 32, 8, "fp8_block", pairs=4096, touched=32).seconds
    assert whole / 8 < rank < whole / 2
    assert d.fused_moe(1, 7168, 2048, 32, 8, "fp8_block", pairs=0, touched=0).seconds < rank
    relu = d.fused_moe(4096, 7168, 2048, 256, 8, "fp8_block", gated=False).seconds
    assert 0.6 * whole < relu < 0.9 * whole


def test_numbers_and_arrays_agree_and_the_operator_costs_its_kernel() -> None:
    d = device("h200")
    tokens = np.array([1.0, 37.0, 4096.0])
    together = d.fused_moe(tokens, 4096, 1536, 128, 8, "bf16", "int4", library="vllm")
    for i, n in enumerate(tokens):
        single = d.fused_moe(float(n), 4096, 1536, 128, 8, "bf16", "int4", library="vllm")
        assert [part[i] for part in together] == pytest.approx(list(single), rel=1e-12)
    operator = FusedMoE(64, 4096, 1536, 16, 8, "bf16", "int4", pairs=64.0, touched=12.5)
    alone = d.fused_moe(64, 4096, 1536, 16, 8, "bf16", "int4", pairs=64.0, touched=12.5)
    assert alone.seconds <= d.time(operator).seconds <= alone.seconds / d.spec.sustained.gemm.value
    one = FusedMoE(1, 4096, 1536, 8, 8)
    assert one.experts_read == 8.0  # the choices of one token are distinct


def library(name: str, dtype: str, weights: str, asked: str | None, family: str = "fused_moe") -> str:
    return device(name).kernel(family, dtype, asked, weights).library


def test_an_engine_is_asked_for_by_its_name() -> None:
    for name in NVIDIA:
        assert library(name, "bf16", "bf16", "vllm").startswith("vLLM 0.24.0 unquantized")
        assert library(name, "bf16", "bf16", "trtllm") == "TensorRT-LLM 1.3.0rc20 cutlass"
        assert library(name, "bf16", "int4", "sglang").startswith("SGLang 0.5.14")
    # The newest of several, another kernel of it by a word of its name, and one in full.
    assert library("b200", "mxfp8", "mxfp4", "trtllm") == "TensorRT-LLM 1.3.0rc23 default"
    assert library("b200", "fp8_block", "fp8_block", "sglang triton") == "SGLang 0.5.14 fused_moe_triton"
    full = "TensorRT-LLM 1.3.0rc20 default"
    assert library("b200", "mxfp8", "mxfp4", full) == full
    # One that was not measured is nearest to the engine's others; a name that is no engine's leaves the default.
    assert library("b200", "nvfp4", "nvfp4", "vLLM 0.24.0 of_tomorrow").startswith("vLLM 0.24.0")
    assert library("b200", "nvfp4", "nvfp4", "of tomorrow") == library("b200", "nvfp4", "nvfp4", None)
    # ATOM runs AITER; the word serves every family.
    assert library("mi355x", "mxfp4", "mxfp4", "atom") == "aiter per_1x32"
    assert library("h200", "bf16", "bf16", "vllm", "attention_forward") == "vllm 0.24.0 vllm_flash_attn_fa3"
    assert library("b200", "bf16", "bf16", "TRTLLM", "gemm") == "TensorRT-LLM 1.3"


def test_a_default_may_be_an_engine() -> None:
    spec = catalog.load("devices", "b200", DeviceSpec)
    for engine, first in (("vllm", "vLLM"), ("trtllm", "TensorRT-LLM")):
        other = Device(spec.model_copy(update={"defaults": {**spec.defaults, "fused_moe": engine}}))
        assert other.kernel("fused_moe", "nvfp4", None, "nvfp4").library.startswith(first)


def test_plain_weights_do_not_take_the_kernel_of_others_and_unmeasured_ones_widen_the_range() -> None:
    d = device("mi355x")
    assert d.kernel("fused_moe", "bf16", None, "bf16").library == "aiter No"
    plain = device("mi300x").fused_moe(64, 4096, 1536, 128, 8, "bf16")
    int4 = device("mi300x").fused_moe(64, 4096, 1536, 128, 8, "bf16", "int4")
    assert int4.seconds < plain.seconds
    assert int4.high / int4.seconds > 1.5 * plain.high / plain.seconds


SIZES = [
    (2048, 768, 128), (4096, 1536, 16), (7168, 2048, 32), (4096, 14336, 8), (6144, 512, 160), (3072, 1024, 64),
    (5120, 8192, 4), (2880, 2880, 128),
]  # fmt: skip


def made_up(scatter: float) -> tuple[pd.DataFrame, dict[str, float]]:
    """A library on two devices of one generation, of known numbers."""
    truth = {name: parameter.default for name, parameter in FORM.parameters.items()}
    truth |= {"launch_us": 22.0, "hbm_efficiency": 0.7, "expert_us": 0.1}
    random = np.random.default_rng(5)
    parts = []
    for name in ("h100", "h200"):
        for hidden, ffn, experts in SIZES:
            tokens = 2.0 ** np.arange(0.0, 14.0, 1.5)
            frame = pd.DataFrame({"tokens": tokens, "hidden": hidden, "expert_ffn": ffn, "experts": experts})
            frame = frame.assign(topk=8.0, pairs=tokens * 8, gated=1.0).astype(float)
            frame["touched"] = np.minimum(frame["experts"], frame["pairs"])
            shape = {column: frame[column].to_numpy() for column in FORM.shape}
            spec = catalog.load("devices", name, DeviceSpec)
            time = FORM.seconds(limits_of(spec, "bf16"), truth, {}, shape, "bf16", "bf16")
            frame["time_us"] = time * 1e6 * np.exp(random.normal(0.0, scatter, len(frame)))
            parts.append(frame.assign(gpu=name))
    rows = pd.concat(parts, ignore_index=True)
    return rows.assign(family="fused_moe", dtype="bf16", second_dtype="bf16", library="made up", reason=""), truth


@pytest.mark.parametrize(
    ("name", "dtype", "library"),
    [("mi355x", "fp8_block", "aiter per_1x128"), ("mi350x", "fp8_block", "aiter per_1x128"), ("gb300", "mxfp8", "fp8")],
)
def test_experts_of_one_type_borrow_from_experts_of_one_type(name: str, dtype: str, library: str) -> None:
    """DeepSeek's blocks of 128 run AITER's per_1x128, which both tables call fp8, and not its kernel for four-bit
    weights, of which there are more rows."""
    kernel = load_device(name).kernel("fused_moe", dtype, None, dtype)
    assert library in kernel.library
    assert "of fp8/fp8" in kernel.basis


def test_of_unmeasured_weights_the_most_similar_lend() -> None:
    """Weights of eight bits beside bf16 are nearer to bf16 than to the four bits of which there are most rows."""
    for name in ("b200", "h200", "mi355x"):
        assert "of bf16/bf16" in load_device(name).kernel("fused_moe", "bf16", None, "fp8").basis
        assert "/bf16" not in load_device(name).kernel("fused_moe", "bf16", None, "mxfp4").basis


@pytest.mark.in_turn(5, group="fits")
def test_a_generation_is_fitted_together_and_whole_curves_are_left_out() -> None:
    rows, truth = made_up(0.03)
    specs = [catalog.load("devices", name, DeviceSpec) for name in ("h100", "h200")]
    used = used_in_fit(rows, split_by("fused_moe"))
    curves = rows.assign(used=used).groupby(["hidden", "expert_ffn", "experts", "gpu"])["used"]
    assert (curves.nunique() == 1).all()
    assert 0.3 < used.mean() < 1.0
    found = fit_generation(specs, rows, "fused_moe", date="2026-11", source="made up")
    for name in ("h100", "h200"):
        (fit,) = found[name]
        assert fit.parameters["launch_us"] == pytest.approx(truth["launch_us"], rel=0.2)
        assert fit.parameters["hbm_efficiency"] == pytest.approx(truth["hbm_efficiency"], rel=0.1)
        assert fit.held_out is not None
        assert fit.held_out.median < 0.05
        assert fit.rows_used == (used & (rows["gpu"] == name)).sum()
    # A device of which no curve may be used has what the others tell.
    only = rows[(rows["gpu"] == "h100") | ~used]
    (alone,), (lent,) = fit_generation(specs, only, "fused_moe", date="2026-11", source="made up").values()
    assert lent.parameters == pytest.approx(alone.parameters, rel=0.2)
    assert lent.rows_used == 0


@pytest.mark.in_turn(5, group="fits")
def test_one_device_is_calibrated_alone() -> None:
    rows, _ = made_up(0.03)
    spec = catalog.load("devices", "h200", DeviceSpec)
    (fit,) = fit_device(spec, rows, date="2026-11", source="made up").fits
    assert fit.held_out is not None
    assert fit.held_out.median < 0.06
    none = rows[~used_in_fit(rows, split_by("fused_moe"))]
    report = fit_device(spec, none, date="2026-11", source="made up")
    assert not report.fits
    assert "no curve" in report.skipped[0][1]


def test_nvidias_table_is_read_as_what_the_rank_holds() -> None:
    row = {
        "gpu": "B200", "dtype": "mxfp4_w4a8", "tokens": 64, "hidden": 7168, "expert_ffn": 2048, "experts": 256,
        "topk": 8, "gated": 1, "moe_tp": 2, "moe_ep": 8, "distribution": "balanced", "local_pairs": 64.0,
        "local_experts": 32.0, "time_us": 50.0, "library": "vLLM 0.24.0 x", "source": "made up",
    }  # fmt: skip
    (call,) = calls("kernels/fused_moe_nvidia.csv", pd.DataFrame([row])).to_dict("records")
    assert (call["expert_ffn"], call["experts"], call["tokens"]) == (1024.0, 32.0, 64.0)
    assert (call["pairs"], call["touched"], call["gated"]) == (64.0, 32.0, 1.0)
    assert (call["dtype"], call["second_dtype"], call["reason"]) == ("mxfp8", "mxfp4", "")


def test_experts_behind_an_all_to_all_compute_the_tokens_that_reach_them() -> None:
    row = {
        "gpu": "GB200", "dtype": "nvfp4", "tokens": 4096, "rank0_tokens": 900, "hidden": 7168, "expert_ffn": 2048,
        "experts": 256, "slots": 288, "topk": 8, "moe_tp": 1, "moe_ep": 32, "time_us": 90.0, "library": "x",
    }  # fmt: skip
    few, all_here, one = calls("kernels/wideep_moe.csv", pd.DataFrame(
        [row, row | {"rank0_tokens": 4096, "moe_ep": 1}, row | {"tokens": 1, "rank0_tokens": 1}]
    )).to_dict("records")  # fmt: skip
    assert (few["tokens"], few["experts"]) == (900.0, 9.0)
    assert 900.0 < few["pairs"] < 1100.0  # a token's eight choices seldom meet nine of 288 experts twice
    assert 8.9 < few["touched"] <= 9.0
    assert 4096.0 < all_here["pairs"] <= 8 * 4096.0
    assert one["pairs"] >= one["touched"] == 1.0


#: Hidden columns, columns of an expert, experts and choices of a token: what catalog models have on a rank.
RANKS_OF_MODELS = (
    (2048, 768, 128, 8), (4096, 384, 128, 8), (2880, 2880, 128, 4), (7168, 2048, 32, 8), (4096, 7168, 8, 2),
)  # fmt: skip
#: Weights that are widened as they are read, and take longer than bf16's in the mean of steps that decode:
#: TensorRT-LLM's kernels on Blackwell, vLLM's of Kimi-K3 there, SGLang's of gpt-oss on the H100 (docs/kernel-forms.md).
SLOWER_THAN_BF16 = {
    *((name, "trtllm", "mxfp4") for name in ("b200", "b300", "gb200", "gb300")),
    ("gb200", "vllm", "mxfp4"), ("h100", "sglang", "mxfp4"),
}  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NVIDIA)
def test_a_narrower_type_is_faster_in_decoding_or_was_looked_at(name: str, engine: str) -> None:
    """Fewer bytes are read, so an engine's kernels that take longer are not what the type costs but how they were
    measured: vLLM's fp8 on Hopper, untuned, took 2.3 and 2.5 times bf16's. What multiplies in the narrower type is
    always faster; the others that are not are listed."""
    running = device(name).with_engine(engine)

    def mean(dtype: str, kept: str) -> float:
        found = [
            np.log(running.fused_moe(float(tokens), *map(float, shape), dtype, kept).seconds)
            for shape in RANKS_OF_MODELS for tokens in (8, 64, 256)
        ]  # fmt: skip
        return float(np.exp(np.mean(found)))

    of_engine = [fit for fit in kernels(name) if maker_of(fit.library) == engine]
    plain = mean("bf16", "bf16")
    for dtype, kept in sorted({(fit.dtype, fit.kv_dtype) for fit in of_engine} - {("bf16", "bf16")}):
        ratio = mean(dtype, kept) / plain
        if dtype == "bf16":
            assert (ratio > 1.0) == ((name, engine, kept) in SLOWER_THAN_BF16), (kept, ratio)
        else:
            assert ratio < 0.95, (dtype, kept, ratio)


def test_an_untuned_table_is_asked_for_by_its_name_alone() -> None:
    for name in ("h100", "h200"):
        spec, running = device(name).spec, device(name).with_engine("vllm")
        (fit,) = [each for each in spec.kernels if each.untuned]
        assert (fit.family, fit.dtype, maker_of(fit.library)) == ("fused_moe", "fp8", "vllm")
        assert running.untuned_fit("fused_moe", "fp8") is fit
        assert running.untuned_fit("fused_moe", "fp8_block") is None
        assert device(name).untuned_fit("fused_moe", "fp8") is None
        assert running.kernel("fused_moe", "fp8", fit.library).library == fit.library
        for library in (None, "vllm", "vllm cutlass"):
            assert maker_of(running.kernel("fused_moe", "fp8", library).library) == "trtllm"
    borrowing = device("h800").with_engine("vllm").kernel("fused_moe", "fp8")
    assert "modeloptfp8moe_flashinfer_cutlass" not in borrowing.library


def test_a_reader_is_told_of_untuned_tables_and_of_types_that_are_slower() -> None:
    def notes(device: str, weights: str, batch: int) -> str:
        work = {"model": "qwen3-30b-a3b", "pass": "decode", "batch": batch, "context": 512, "stack": "vllm"}
        asked = {
            "name": "s", "cluster": {"device": device}, "workload": work | {"precision": {"weights": weights}},
            "plans": [{"name": "P", "dp": 8}],
        }  # fmt: skip
        return " ".join(tspsim.simulate(asked).plans[0].notes)

    assert "take the time of TensorRT-LLM" in notes("h200", "fp8", 64)
    assert "routed experts" not in notes("h200", "fp8_block", 64)
    assert "slower than in bf16 here" in notes("b200", "int4", 2048)


def test_vllm_decodes_in_fp8_as_fast_as_in_blocks_of_it() -> None:
    """Qwen3-30B-A3B, 64 sequences on an H200: 57 ms in fp8 once, 23 in bf16, 16 in blocks."""
    taken = {}
    for weights in ("bf16", "fp8", "fp8_block"):
        work = {"model": "qwen3-30b-a3b", "pass": "decode", "batch": 64, "context": 2048, "stack": "vllm"}
        asked = {
            "name": "s", "cluster": {"device": "h200"}, "workload": work | {"precision": {"weights": weights}},
            "plans": [{"name": "P", "dp": 8}],
        }  # fmt: skip
        taken[weights] = tspsim.simulate(asked).plans[0].step_time_s
    assert taken["fp8"] < 0.75 * taken["bf16"]
    assert taken["fp8"] == pytest.approx(taken["fp8_block"], rel=0.1)
