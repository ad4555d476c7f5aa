"""MXFP6: what is measured of it, where matrix units have it, and that it is no slower than eight bits."""

from __future__ import annotations

from typing import Any

import pytest

import tspsim
from tspsim.base.errors import InputError
from tspsim.hardware import load_device
from tspsim.operators import Gemm, element_bytes, weight_bytes


@pytest.mark.parametrize(("size", "measured"), [(16384, 3122e12), (8192, 2862e12)])
def test_six_bits_reach_what_the_one_published_kernel_does(size: int, measured: float) -> None:
    """HipKittens (arXiv:2511.08083), MI355X: cubes of 16k, which anchors the model, and of 8k, which does not."""
    product = Gemm(size, size, size, "mxfp6", quantised=True)
    assert product.flops / load_device("mi355x").time(product).seconds == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize("device", ["mi355x", "mi350x", "b200", "gb300"])
def test_six_bits_are_no_slower_than_eight_and_read_fewer_bytes(device: str) -> None:
    found = load_device(device)
    for tokens in (1, 64, 4096, 16384):
        six, eight = (found.time(Gemm(tokens, 8192, 8192, dtype)).seconds for dtype in ("mxfp6", "mxfp8"))
        assert six <= eight * (1 + 1e-9)
    assert element_bytes("mxfp6") == weight_bytes("mxfp6") == 0.78125


def test_six_bits_are_refused_where_no_matrix_unit_has_them() -> None:
    with pytest.raises(InputError, match="mxfp6"):
        load_device("h100").peak_of("mxfp6")


@pytest.mark.slow
def test_six_bits_of_a_model_with_experts_are_those_of_its_experts_alone() -> None:
    """As of four bits; every class in six bits is no slower than in eight."""
    work = {"model": "qwen3-30b-a3b", "pass": "decode", "batch": 128, "context": 4096}
    plans = [{"name": "P", "tp": 2, "dp": 4, "ep": 8}]

    def step_s(precision: Any) -> float:
        asked = {"name": "six", "cluster": "mi355x-8", "workload": {**work, "precision": precision}, "plans": plans}
        return float(tspsim.simulate(asked).plans[0].step_time_s)

    every = dict.fromkeys(("attention", "experts"), "mxfp6")
    assert step_s("mxfp6") == step_s({"weights": {"experts": "mxfp6"}})
    assert step_s({"weights": every}) <= step_s("mxfp8")
