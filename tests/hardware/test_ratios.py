"""Two devices differ by no more than their facts, and a narrower type is never slower but for its cast.

Held over a grid of shapes, in every type that both devices have: kernel tables of two devices come from different
libraries and laboratories, and what one of them times with a product must not look like silicon.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest

from tspsim.hardware import Device, load_device
from tspsim.operators import Gemm, element_bytes

ROWS, SIDES = (1, 128, 4096, 16384), (1024, 8192, 28672)
SHAPES = tuple(itertools.product(ROWS, SIDES, SIDES))
TYPES = ("bf16", "fp8", "fp8_block", "mxfp8", "nvfp4", "mxfp4")
#: Devices whose products were measured by the same programs, or that borrow those of the other.
PAIRS = (
    ("h100", "h200"), ("h800", "h100"), ("h100-96gb-500w", "h100"), ("b200", "gb200"), ("b200", "b300"),
    ("gb200", "gb300"), ("b300", "gb300"), ("h100", "b200"), ("h200", "b200"), ("mi300x", "mi325x"),
    ("mi350x", "mi355x"),
)  # fmt: skip
DEVICES = tuple(sorted({name for pair in PAIRS for name in pair}))
#: How far the fits of two tables lie from their rows together: the ends of either one's range are 10 to 20 % off.
FITS = 1.3
#: Seconds by which kernels of two libraries differ beside: steps along k, and parts of a split one put together.
OVERHEAD_S = 4e-6


@cache
def device(name: str) -> Device:
    return load_device(name)


@cache
def seconds(name: str, dtype: str) -> tuple[float, ...]:
    """Of every shape, where A comes in the type."""
    return tuple(device(name).time(Gemm(*shape, dtype, quantised=True)).seconds for shape in SHAPES)


#: Types of operands → those that are wider, in every one of which a kernel that reads them is there.
WIDER = {
    "fp8": ("bf16",), "fp8_block": ("bf16",), "mxfp8": ("bf16",),
    "nvfp4": ("mxfp8", "fp8_block", "fp8", "bf16"), "mxfp4": ("mxfp8", "fp8_block", "fp8", "bf16"),
}  # fmt: skip


def has(name: str, dtype: str) -> bool:
    return dtype in device(name).peak_flops_per_s


@pytest.mark.in_turn(5)
@pytest.mark.parametrize("name", DEVICES)
def test_a_narrower_type_is_never_slower_but_for_its_cast(name: str) -> None:
    for dtype in TYPES[1:]:
        if not has(name, dtype):
            continue
        for wide in (each for each in WIDER[dtype] if has(name, each)):
            pairs = zip(seconds(name, dtype), seconds(name, wide), strict=True)
            assert all(a <= b * (1.0 + 1e-9) for a, b in pairs), (dtype, wide)
        m, n, k = 4096, 4096, 4096
        copied = device(name).streaming(m * k * (2.0 + element_bytes(dtype)), m).seconds
        cast = copied + device(name).cast_start_s
        whole = device(name).time(Gemm(m, n, k, dtype)).seconds
        assert whole == pytest.approx(device(name).time(Gemm(m, n, k, dtype, quantised=True)).seconds + cast)


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_devices_differ_by_no_more_than_peaks_bandwidths_and_starts(one: str, other: str) -> None:
    """A ratio of times lies between the least and the largest ratio of the facts that decide it."""
    a, b = device(one), device(other)
    for dtype in (each for each in TYPES if has(one, each) and has(other, each)):
        clocks = a.spec.sustained.gemm.value / b.spec.sustained.gemm.value
        starts = [each.product_without_cast("gemm", dtype).parameters["launch_us"] for each in (a, b)]
        facts = (
            b.peak_of(dtype) / a.peak_of(dtype), b.peak_of(dtype) / a.peak_of(dtype) / clocks,
            b.hbm_bytes_per_s / a.hbm_bytes_per_s, starts[0] / starts[1], 1.0,
        )  # fmt: skip
        for shape, x, y in zip(SHAPES, seconds(one, dtype), seconds(other, dtype), strict=True):
            assert x <= max(facts) * FITS * y + OVERHEAD_S, (dtype, shape, x / y, facts)
            assert x + OVERHEAD_S >= min(facts) / FITS * y, (dtype, shape, x / y, facts)
