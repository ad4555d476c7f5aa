"""Power of a fleet: by running jobs, under a cap, by hour of day."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..hardware import Device
from .clock import Fleet
from .jobs import FleetJob
from .life import Series
from .power_keys import HOURS, PowerKeys
from .running_job import RunningJob

#: Limits between the lowest and the device's own at which steps are simulated; speeds between them are interpolated.
LEVELS = 4
#: Speed of a job at a size with its GPUs limited to some watts, relative to no limit.
SpeedAt = Callable[[FleetJob, int, float], float]


class FleetPower:
    """The power of a running fleet.

    Attributes
    ----------
    watts
        Current power of the machines.
    limit_w
        Current limit of a job's GPU, without its share of server and fabric.
    """

    def __init__(
        self, keys: PowerKeys, device: Device, fleet: Fleet, speed_at: SpeedAt, own_w: Mapping[int, float] | None = None
    ) -> None:
        self.keys, self.fleet, self.device, self.speed_at = keys, fleet, device, speed_at
        self.limit_w = self.lowest_w = device.tdp_watts
        busy = keys.busy if keys.busy is not None else device.all_in_watts
        if busy is None:
            raise InputError(f"the power of {device.name} is not known; state it", key="power.busy")
        self.busy_w, self.idle_w = busy, busy * keys.idle
        #: Entry → power of a GPU at work for its jobs, where it is not ``busy_w``.
        self._own_w = dict(own_w or {})
        if keys.lowest is not None:
            try:
                device.power_limited(keys.lowest)
            except InputError as error:
                raise error.at(key="power.lowest") from None
            fleet.listeners.append(self.changed)
        self._least_limit_w = device.tdp_watts if keys.lowest is None else keys.lowest
        self._speeds: dict[tuple[int, int], list[float]] = {}
        least = self.idle_w * fleet.nodes.count * fleet.nodes.gpus
        if keys.cap is not None and keys.cap < least:
            problem = f"{keys.cap:,.0f} W are less than the {least:,.0f} W that the cluster draws idle"
            raise InputError(problem, key="power.cap")
        for job in fleet.jobs:
            wide = job.gpus_at(min(job.sizes), fleet.nodes.gpus)
            alone = least + wide * (self._drawn_w(job.entry, self._least_limit_w) - self.idle_w)
            if keys.cap is not None and keys.cap < alone:
                raise InputError(f"job {job.name} alone draws more than {keys.cap:,.0f} W", key="power.cap")

    @property
    def watts(self) -> float:
        """Current power of the machines: GPUs of jobs, idle GPUs; nodes that are down draw nothing."""
        nodes, fleet = self.fleet.nodes, self.fleet
        up = (nodes.count - len(nodes.down)) * nodes.gpus
        held = sum(gpus * self._drawn_w(entry, self.limit_w) for entry, gpus in fleet.occupancy.held_by.items())
        idle = up - fleet.occupancy.gpus_held
        for run in fleet.hung:
            dead = sum(run.job.gpus_at(1, nodes.gpus) for node in run.nodes if node in nodes.down)
            held -= dead * self._drawn_w(run.job.entry, self.limit_w)
            idle += dead
        return held + idle * self.idle_w

    def _of(self, entry: int) -> float:
        """Power of a GPU at work for an entry's jobs, without a limit."""
        return self._own_w.get(entry, self.busy_w)

    def _drawn_w(self, entry: int, limit_w: float) -> float:
        """Power of a GPU of an entry's job under a limit."""
        return min(self._of(entry), max(self.idle_w, self.busy_w - (self.device.tdp_watts - limit_w)))

    def allows(self, job: FleetJob, size: int) -> bool:
        """Whether a job may start now; nodes that are down count as idle."""
        if self.keys.cap is None:
            return True
        nodes, fleet, limit_w = self.fleet.nodes, self.fleet, self._least_limit_w
        more = job.gpus_at(job.sizes[size], nodes.gpus)
        drawn_w = sum(gpus * self._drawn_w(entry, limit_w) for entry, gpus in fleet.occupancy.held_by.items())
        drawn_w += more * self._drawn_w(job.entry, limit_w)
        idle = nodes.count * nodes.gpus - fleet.occupancy.gpus_held - more
        return drawn_w + idle * self.idle_w <= self.keys.cap * (1.0 + 1e-12)

    def changed(self, fleet: Fleet) -> None:
        """Limits all GPUs of jobs alike, to what the cap leaves them."""
        assert self.keys.cap is not None and self.keys.lowest is not None
        most_w, held, nodes = self.device.tdp_watts, fleet.occupancy.gpus_held, fleet.nodes
        if held:
            left_w = self.keys.cap - (nodes.count * nodes.gpus - held) * self.idle_w
            at_most_w = self._at_most(left_w)
            self.limit_w = min(most_w, max(self.keys.lowest, at_most_w - self.busy_w + most_w))
            self.lowest_w = min(self.lowest_w, self.limit_w)
        for run in fleet.dispatcher.running.values():
            assert isinstance(run, RunningJob)
            fleet.set_speed(run, "power", self._speed(run))

    def _at_most(self, left_w: float) -> float:
        """The power of each GPU where all together may draw ``left_w``; GPUs that draw less leave the rest."""
        rows = sorted((self._of(entry), gpus) for entry, gpus in self.fleet.occupancy.held_by.items())
        gpus = sum(count for _, count in rows)
        for own_w, count in rows:
            if own_w >= left_w / gpus:
                break
            left_w, gpus = left_w - own_w * count, gpus - count
            if not gpus:
                return self.busy_w
        return left_w / gpus

    def _speed(self, run: RunningJob) -> float:
        most_w = self.device.tdp_watts
        own_w = self._of(run.job.entry) - self.busy_w + most_w
        if self.limit_w >= min(own_w, most_w):
            return 1.0
        assert self.keys.lowest is not None
        limits_w = np.linspace(self.keys.lowest, most_w, LEVELS + 1)
        kind = run.job.entry, run.size
        if kind not in self._speeds:
            own = [self.speed_at(run.job, run.size, float(limit_w)) for limit_w in limits_w[:-1]]
            self._speeds[kind] = [*own, 1.0]
        # A job that draws less than the device's limit is slowed like one at the limit by the same share.
        limit_w = self.limit_w if own_w == most_w else self.limit_w * most_w / own_w
        return float(np.interp(limit_w, limits_w, self._speeds[kind]))

    def to_json(self) -> dict[str, Any]:
        """The entry ``power``."""
        series, ended_s = self.fleet.occupancy.series, self.fleet.ended_s
        by_hour = energy_by_hour(series, ended_s, self.keys.begins) * self.keys.pue / 3.6e6
        prices = np.resize(np.array(self.keys.electricity or (np.nan,)), HOURS)
        cost = float((by_hour * prices).sum()) if self.keys.electricity else None
        watts = np.array(series.watts)
        return {
            "pue": self.keys.pue,
            **({"lowest_limit_w": self.lowest_w} if self.keys.lowest is not None else {}),
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
    by_hour: NDArray[np.float64] = np.bincount(hour, weights=joules, minlength=HOURS).astype(np.float64)
    return by_hour
