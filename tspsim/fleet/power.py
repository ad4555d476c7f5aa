"""What a fleet draws: by what runs, under a cap, by hour of day."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..hardware import Device
from .clock import Fleet
from .jobs import Job
from .life import Series
from .power_keys import HOURS, PowerKeys


class Power:
    """The draw of a fleet under way.

    Attributes
    ----------
    watts
        Of the machines now.
    """

    def __init__(self, keys: PowerKeys, device: Device, fleet: Fleet) -> None:
        self.keys, self.fleet = keys, fleet
        busy = keys.busy if keys.busy is not None else device.all_in_watts
        if busy is None:
            raise InputError(f"the power of {device.name} is not known; state it", key="power.busy")
        self.busy_w, self.idle_w = busy, busy * keys.idle
        least = self.idle_w * fleet.nodes.count * fleet.nodes.gpus
        if keys.cap is not None and keys.cap < least:
            told = f"{keys.cap:,.0f} W are less than the {least:,.0f} W that the cluster draws idle"
            raise InputError(told, key="power.cap")
        for job in fleet.jobs:
            wide = job.gpus_at(min(job.sizes), fleet.nodes.gpus)
            if keys.cap is not None and keys.cap < least + wide * (self.busy_w - self.idle_w):
                raise InputError(f"job {job.name} alone draws more than {keys.cap:,.0f} W", key="power.cap")

    @property
    def watts(self) -> float:
        nodes = self.fleet.nodes
        up = (nodes.count - len(nodes.down)) * nodes.gpus
        held = min(up, self.fleet.gpus_held)
        return held * self.busy_w + (up - held) * self.idle_w

    def allows(self, job: Job, size: int) -> bool:
        """Whether a job may start now."""
        if self.keys.cap is None:
            return True
        more = job.gpus_at(job.sizes[size], self.fleet.nodes.gpus) * (self.busy_w - self.idle_w)
        return self.watts + more <= self.keys.cap * (1.0 + 1e-12)

    def to_json(self) -> dict[str, Any]:
        """The entry ``power``."""
        series, ended_s = self.fleet.series, self.fleet.ended_s
        by_hour = energy_by_hour(series, ended_s, self.keys.begins) * self.keys.pue / 3.6e6
        prices = np.resize(np.array(self.keys.electricity or (np.nan,)), HOURS)
        cost = float((by_hour * prices).sum()) if self.keys.electricity else None
        watts = np.array(series.watts)
        return {
            "pue": self.keys.pue,
            "peak_w": float(watts.max(initial=0.0)),
            "mean_w": float(by_hour.sum() / self.keys.pue * 3.6e6 / ended_s) if ended_s else 0.0,
            "energy_kwh": float(by_hour.sum()),
            "electricity_usd": cost,
            "kwh_by_hour_of_day": by_hour.tolist(),
        }


def energy_by_hour(series: Series, ended_s: float, begins_h: float) -> NDArray[np.float64]:
    """Joules of the machines by hour of day: shape (24,)."""
    at_s, watts = np.array(series.at_s), np.array(series.watts)
    if not len(at_s):
        return np.zeros(HOURS)
    hours = np.arange(0.0, ended_s + 3600.0, 3600.0) - (begins_h % 1.0) * 3600.0
    edges = np.unique(np.concatenate((at_s, hours[(hours > at_s[0]) & (hours < ended_s)], [ended_s])))
    joules = watts[np.searchsorted(at_s, edges[:-1], side="right") - 1] * np.diff(edges)
    hour = np.floor(edges[:-1] / 3600.0 + begins_h + 1e-9).astype(np.int64) % HOURS
    found: NDArray[np.float64] = np.bincount(hour, weights=joules, minlength=HOURS).astype(np.float64)
    return found
