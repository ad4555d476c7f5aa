"""Experts in four bits where no matrix unit reads four bits: their weights are widened inside the kernel."""

from __future__ import annotations

import pytest

from tspsim.hardware import Device, load_device
from tspsim.operators import FusedMoE


def experts(tokens: int, weight: str | None = "mxfp4", experts: int = 32, ffn: int = 2880) -> FusedMoE:
    """gpt-oss's layer: 4 experts a token, 2,880 wide."""
    return FusedMoE(tokens, 2880, ffn, experts, 4, "bf16", weight)


def without(device: Device) -> Device:
    return Device(device.spec.model_copy(update={"widening": {}}), device.relatives)


@pytest.mark.parametrize("name", ["mi300x", "mi325x"])
@pytest.mark.parametrize("tokens", [1, 32, 512, 8192])
def test_widening_takes_time_for_every_tile(name: str, tokens: int) -> None:
    device = load_device(name)
    alone = without(device)
    assert device.time(experts(tokens)).seconds > alone.time(experts(tokens)).seconds
    wide = experts(tokens, None)
    assert device.time(wide) == alone.time(wide), "weights in bf16 are read as they are"


def test_few_tokens_an_expert_pay_most() -> None:
    """Rows of a tile share what widening its weights takes: 4 rows an expert more than 1,024."""
    device, alone = load_device("mi300x"), without(load_device("mi300x"))
    few, many = (device.time(experts(n)).seconds / alone.time(experts(n)).seconds for n in (32, 8192))
    assert few > 1.5 > 1.4 > many > 1.0


def test_few_tiles_divide_what_they_sum() -> None:
    """matmul_ogs splits the inner loop where tiles do not fill the units: one token on a shard of eight widens less
    than a tenth of a wave."""
    device, alone = load_device("mi300x"), without(load_device("mi300x"))
    shard = experts(1, experts=128, ffn=360)
    more_s = device.time(shard).seconds - alone.time(shard).seconds
    assert 0.0 < more_s < 0.2 * alone.time(shard).seconds


def test_devices_that_read_four_bits_or_were_measured_widen_nothing() -> None:
    for name in ("mi355x", "h100", "h200", "b200"):
        assert not load_device(name).spec.widening


def test_triton_s_experts_of_a_decode_step() -> None:
    """32 tokens of gpt-oss-20b on one MI300X, all kernels from the choice of experts to their sum: 324 us a layer
    (AMD-AGI/TraceLens, tests/traces/inference/graph_full), on which nothing is fitted."""
    measured_us = 136.4 + 156.7 + 5.7 + 5.1 + 5.0 + 5.0 + 5.1 + 5.5
    assert 1e6 * load_device("mi300x").time(experts(32)).seconds == pytest.approx(measured_us, rel=0.15)
