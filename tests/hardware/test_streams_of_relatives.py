"""Large memory-bound kernels on a device whose kernels are a relative's, against what others measured on it."""

from __future__ import annotations

import statistics

import pytest

from tspsim.hardware import load_device

#: pytorch/ao@55c56d08, benchmarks/prototype/blockwise_fp8_training/README.md, one H100: casts from bf16 to fp8 in
#: blocks, along rows, across, and of weights. Elements, microseconds.
CASTS = [
    (32768 * 4096, 154.46), (32768 * 4096, 150.53), (32768 * 4096, 150.86), (32768 * 4096, 148.70),
    (32768 * 4096, 144.99), (131072 * 4096, 581.89), (131072 * 4096, 586.98), (131072 * 4096, 581.47),
    (131072 * 4096, 562.56), (131072 * 4096, 555.30),
]  # fmt: skip


def test_an_h100_streams_large_sizes_as_measured_on_it() -> None:
    """H200's own copies of 1 GB take 1.4 times as long a byte as those of 134 MB; H100 has streamed them (BabelStream,
    2.90 TB/s)."""
    device = load_device("h100")
    off = [3.0 * elements / device.memory_bound(3.0 * elements).seconds / (3.0 * elements / us * 1e6) - 1.0
           for elements, us in CASTS]  # fmt: skip
    assert statistics.median(abs(error) for error in off) < 0.04
    assert max(abs(error) for error in off) < 0.08
    assert 1e9 / device.memory_bound(1e9).seconds == pytest.approx(2.90e12, rel=0.05)
