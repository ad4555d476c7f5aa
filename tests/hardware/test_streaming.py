"""Kernels of a step stream at the rate of a copy, without the loss of the driver's own copy of large buffers."""

from __future__ import annotations

import pytest

from tspsim.hardware import load_device
from tspsim.operators import MemoryBound

#: Device → (bytes moved by a call, TB/s, source) of kernels that stream, in published benchmarks. None is fitted but as
#: ``achieved.hbm``, which anchors the lender's curve (Azure/AI-benchmarking-guide, Azure_Results, BabelStream's copy of
#: two arrays of 268 MB).
STREAMED = {
    "h100": [(537e6, 2.90), (537e6, 2.97), (32768 * 4096 * 3.0, 2.70), (131072 * 4096 * 3.0, 2.77)],
    "h200": [(537e6, 4.01), (805e6, 4.15)],
    "a100-80gb": [(537e6, 1.61), (805e6, 1.70)],
}
#: NVIDIA/cccl#1672: cudaMemcpy reaches 3.29 TB/s of 4.8 with 8.59 GB moved; NVIDIA/nccl#1264: 2.57 TB/s on H100 with
#: 320 MB (p2pBandwidthLatencyTest).
COPIED = {"h100": [(320e6, 2.573)], "h200": [(8.59e9, 3.29)]}


@pytest.mark.parametrize("name", STREAMED)
def test_large_kernels_stream_as_published(name: str) -> None:
    device = load_device(name)
    for size, published in STREAMED[name]:
        seconds = device.time(MemoryBound("add_rmsnorm", size)).seconds
        assert size / seconds == pytest.approx(published * 1e12, rel=0.1)


@pytest.mark.parametrize("name", COPIED)
def test_the_drivers_own_copy_of_large_buffers_is_slower(name: str) -> None:
    device = load_device(name)
    for size, published in COPIED[name]:
        copied, streamed = device.memory_bound(size).seconds, device.streaming(size).seconds
        assert copied > 1.05 * streamed
        assert size / copied == pytest.approx(published * 1e12, rel=0.2)


@pytest.mark.parametrize("name", ["h100", "h800", "h200", "a100-40gb", "b200", "gb300", "mi300x", "mi355x"])
def test_a_byte_of_a_large_kernel_costs_no_more_than_one_of_a_smaller(name: str) -> None:
    device = load_device(name)
    rates = [size / device.time(MemoryBound("swiglu", size)).seconds for size in (1e7, 1e8, 4e8, 1e9, 4e9)]
    assert rates == sorted(rates)
    assert rates[-1] < 1.02 * rates[-2]
