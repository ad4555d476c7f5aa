"""Traces as other versions, editors and machines leave them: read whole where they can be, else one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.profiles import Kernel, decode_step, kineto, written

from tspsim import traces
from tspsim.traces.names import kind_of
from tspsim.traces.scenario import guess

NOTE = "ProfilerStep#1"


@pytest.fixture(scope="module")
def text() -> str:
    return json.dumps(kineto([(NOTE, decode_step(6))], device="h100"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace('"grid": [1, 1, 1]', '"grid": [1, 1, 1], "est. occupancy": nan', 7),
        lambda text: text.replace('"grid": [1, 1, 1]', '"grid": [1, 1, 1], "more": [{"a": -inf}, {"b": 2}]', 7),
        lambda text: json.dumps(json.loads(text), indent=2),
        lambda text: text.replace("}], ", "},\n], ", 1),
    ],
    ids=["mark of encoding", "nan", "inf in lists", "indented", "comma behind the last"],
)
def test_every_kernel_is_read(damage: Callable[[str], str], text: str, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(damage(text), encoding="utf-8")
    found = traces.read([file])
    assert len(found) == len(decode_step(6))
    assert not [word for word in found.missing if "left out" in word]


def test_an_event_too_deep_is_left_out_and_said(text: str, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(text.replace('"grid": [1, 1, 1]', '"grid": ' + "[" * 5000 + "]" * 5000, 1), encoding="utf-8")
    found = traces.read([file])
    assert len(found) == len(decode_step(6)) - 1 and "1 events that are no valid JSON" in " ".join(found.missing)


def test_kernels_that_finish_a_norm_or_fill_descriptors_are_no_experts() -> None:
    assert kind_of("void layer_norm::ln_bwd_finalize_kernel<layer_norm::Kernel_traits_finalize<7168u>>") == "norm"
    assert kind_of("dpsk::grouped_gemm::cuda::utils::fill_tensormaps_kernel(CUtensorMap_st)") == "quantize"


def test_templates_of_kernels_tell_width_experts_ranks_and_framework(tmp_path: Path) -> None:
    """DeepSeek's profile has no shapes and no named groups; widths of norms and DeepEP's nodes stand in names."""
    layer = [
        Kernel("void layer_norm::ln_fwd_kernel<layer_norm::Kernel_traits<__nv_bfloat16, float, 7168u, 1u>>", 90.0),
        Kernel("dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel", 100.0),
        Kernel("flash::compute_attn_ws<Flash_fwd_kernel_traits<192>>", 900.0),
        Kernel("void dpsk::ep::internode::dispatch<false, 8, false, 8>(int4*)", 3000.0, stream=27),
        Kernel("m_grouped_fp8_ptp128c::GemmKernel", 2000.0),
        Kernel("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8>(int4*)", 6000.0, stream=27),
        Kernel("flash::FlashAttnBwd<Flash_bwd_kernel_traits<192>>", 2500.0),
    ]  # fmt: skip
    trace = traces.read([written(tmp_path / "t.json", kineto([("ProfilerStep#1", 4 * layer)], world_size=64))])
    found = guess(trace)
    assert (found.hidden, found.degrees, found.stack) == (7168, {"ep": 64, "pp": 16}, "hai-llm")
    assert "deepseek-v3" in found.models
