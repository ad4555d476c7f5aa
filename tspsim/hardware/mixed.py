"""Machines with several kinds of devices, as one device with their common memory, price and power."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.errors import InputError
from .device import Device


def standing_for(device: Device, others: Sequence[tuple[Device, float]], dtype: str) -> Device:
    """One device that represents a machine: the fastest one, with the least memory and the mean price and power.

    Parameters
    ----------
    others
        Further devices and the share of the machine's GPUs that each is; the rest are ``device``.
    dtype
        Type of a step's matrix products.

    Raises
    ------
    InputError
        One of ``others`` does not multiply the type, or has more FLOP/s of it or more bytes/s of HBM than ``device``.
    """
    for other, _ in others:
        faster = other.peak_of(dtype) > device.peak_of(dtype)
        if faster or other.hbm_bytes_per_s > device.hbm_bytes_per_s:
            what = f"at {dtype}" if faster else "in memory"
            raise InputError(f"{other.name} is faster {what} than {device.name}; name it as the cluster's device")
    spec = device.spec
    every = [(device, 1.0 - sum(share for _, share in others)), *others]
    smallest = min((device for device, _ in every), key=lambda device: device.visible_memory_bytes).spec
    memory = {"memory": smallest.memory, "visible_memory": smallest.visible_memory}
    update: dict[str, object] = {**memory, "prices": None, "all_in_power": None}
    prices = [(device.spec.prices, share) for device, share in every]
    if all(price is not None for price, _ in prices) and spec.prices is not None:
        mean = {
            basis: sum(share * float(getattr(price, basis)) for price, share in prices)
            for basis in device.prices_usd_per_hour
        }
        update["prices"] = spec.prices.model_copy(update=mean)
    watts = [(device.all_in_watts, share) for device, share in every]
    if all(power is not None for power, _ in watts) and spec.all_in_power is not None:
        mean_watts = sum(share * power for power, share in watts if power is not None)
        update["all_in_power"] = spec.all_in_power.model_copy(update={"value": mean_watts})
    return replace(device, spec=spec.model_copy(update=update))
