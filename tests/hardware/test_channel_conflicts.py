"""Rows of weights that begin in the same channels of memory: slower where a device has them, and only there."""

from __future__ import annotations

import pytest

from tspsim.hardware import Device, load_device
from tspsim.hardware.pricers import price
from tspsim.operators import Gemm


def without(device: Device) -> Device:
    return Device(device.spec.model_copy(update={"channel_conflict": None}), device.relatives)


@pytest.mark.parametrize(
    ("product", "gain"),
    [
        (Gemm(46, 201088, 2880), 1.07),  # rows of 5,760 bytes, 11.25 times 512
        (Gemm(32, 151936, 4096), 1.0),  # 8,192 bytes, as the kernel tables' are
        (Gemm(8191, 5120, 2880), 1.0),  # takes as long as its arithmetic
        (Gemm(8191, 32, 2880), 1.0),  # streams rows, of which each is read where it was written
    ],
)
def test_products_whose_rows_spread_over_channels_are_quicker(product: Gemm, gain: float) -> None:
    for name in ("mi300x", "mi325x"):
        device = load_device(name)
        assert price(without(device), product).seconds == pytest.approx(gain * price(device, product).seconds)
    for name in ("h100", "b200", "mi355x"):
        assert load_device(name).spec.channel_conflict is None
