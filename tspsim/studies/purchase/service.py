"""How many machines a service takes: as many of an offer as its users, or its requests, need within their bounds.

An offer's machine serves what one point of its load was simulated to: c users in a closed loop (in an open one X·E, the
requests under way by Little's law, at X requests/s that take E seconds each), and X requests/s, of which the good ones
count where there are bounds. Machines stand beside each other behind a router; nothing is shared between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...result import Result
from ...scenario import Scenario
from ...units import digits
from .costs import Rates

HOURS_A_DAY = 24.0


@dataclass(frozen=True)
class Service:
    """The machines that are enough."""

    #: Of the offer: so many times its cluster.
    machines: int
    nodes: int
    gpus: int
    #: What each of them runs, and the point of its load.
    plan: str
    load: Mapping[str, float]
    #: That each of them serves.
    users: float
    requests_per_s: float
    #: Of all, by price basis.
    usd_per_hour: Mapping[str, float]
    #: Of all; None where the power is not known.
    kwh_per_day: float | None

    def in_words(self, offer: str, basis: str | None) -> str:
        """In a sentence."""
        nodes = f"{self.nodes:,} node{'s' * (self.nodes > 1)}"
        told = f"{offer}: {nodes}, {self.gpus:,} GPUs, each machine with {digits(self.users)} users at "
        told += f"{digits(self.requests_per_s)} requests/s ({self.plan})"
        if basis is not None and basis in self.usd_per_hour:
            told += f"; ${digits(self.usd_per_hour[basis])} an hour ({basis})"
        if self.kwh_per_day is not None:
            told += f", {digits(self.kwh_per_day)} kWh a day"
        return f"{told}."


def service_of(scenario: Scenario, result: Result, rates: Rates) -> Service | None:
    """What an offer needs for the project's users and requests; None where nothing is asked, or no point of it keeps
    the bounds."""
    project, traffic = scenario.project, scenario.traffic
    if project is None or traffic is None or (project.users is None and project.requests is None):
        return None
    bounded = bool(traffic.bounds(scenario.workload.model))
    best: tuple[int, float, str, Mapping[str, Any]] | None = None
    for plan, point in points(result):
        if bounded and (point.get("kept_share", point["good_share"]) or 0.0) < traffic.share:
            continue
        users, requests = capacity_of(point)
        shares = [(project.users or 0) / users if users else math.inf]
        shares.append((project.requests or 0.0) / requests if requests else math.inf)
        machines = max(1, math.ceil(max(shares) - 1e-9))
        if best is None or (machines, max(shares)) < best[:2]:
            best = machines, max(shares), plan, point
    if best is None:
        return None
    machines, _, plan, point = best
    users, requests = capacity_of(point)
    gpus = machines * int(result.cluster["gpus"])
    watts = rates.watts_per_gpu
    return Service(
        machines,
        machines * int(result.cluster["nodes"]),
        gpus,
        plan,
        {key: point[key] for key in ("concurrency", "rate") if key in point},
        users,
        requests,
        {basis: usd * gpus for basis, usd in rates.usd_per_gpu_hour.items()},
        None if watts is None else watts * gpus * HOURS_A_DAY / 1000.0,
    )


def points(result: Result) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every point of every plan that ran."""
    for plan in result.plans:
        if plan.ran and plan.serving:
            yield from ((plan.name, point) for point in plan.curve or (plan.serving,))


def capacity_of(point: Mapping[str, Any]) -> tuple[float, float]:
    """Users and requests/s that a machine serves at a point of its load."""
    good = point["goodput_requests_per_s"]
    requests = float(point["requests_per_s"] if good is None else good)
    users = float(point.get("concurrency") or point["requests_per_s"] * (point["e2e_s"] or {"mean": 0.0})["mean"])
    return users, requests
