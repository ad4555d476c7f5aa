"""Single calls, which look at numbers, take what the same calls in arrays do."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tspsim.hardware import load_device


@pytest.mark.parametrize("name", ["h200", "mi300x"])
def test_single_calls_take_what_arrays_of_them_do(name: str) -> None:
    device, draw = load_device(name), random.Random(4)
    sizes = [(draw.randint(1, 9000), draw.randint(1, 9000), draw.randint(64, 9000)) for _ in range(12)]
    m, n, k = (np.array(column) for column in zip(*sizes, strict=True))
    for dtype in ("bf16", "fp8"):
        together = device.gemm(m, n, k, dtype).seconds
        assert together == pytest.approx([device.gemm(*each, dtype).seconds for each in sizes], rel=1e-12)
    moved = device.streaming(m * 1000.0, n).seconds
    assert moved == pytest.approx([device.streaming(a * 1000.0, b).seconds for a, b, _ in sizes], rel=1e-12)
    copied = device.memory_bound(m * 1000.0, "rmsnorm", n).seconds
    assert copied == pytest.approx(
        [device.memory_bound(a * 1000, "rmsnorm", b).seconds for a, b, _ in sizes], rel=1e-12
    )


def test_rows_of_no_tokens_are_one_row() -> None:
    device = load_device("h200")
    assert device.streaming(4096, 0) == device.streaming(4096.0)
