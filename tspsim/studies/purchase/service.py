"""The number of machines that a service needs: for its users or its requests, within their bounds.

An offer's machine serves what one point of its load reached in the steady part of its simulated run
(:mod:`tspsim.serving.steady`): c users in a closed loop (in an open one those in the system), and X requests/s, of
which only those within the bounds count, where there are bounds. Machines stand behind a router and share nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...base.units import digits
from ...scenario import Scenario
from ...serving.bounds import kept_in_words
from ...serving.steady import figures, interval
from ...step.result import PlanResult, Result
from .costs import Rates

HOURS_A_DAY = 24.0


@dataclass(frozen=True)
class LoadPoint:
    """A plan at the point of its load that represents the offer."""

    plan: PlanResult
    point: Mapping[str, Any]

    @property
    def label(self) -> dict[str, float]:
        """``concurrency`` or ``rate``; empty where the traffic has neither."""
        return {key: self.point[key] for key in ("concurrency", "rate") if key in self.point}

    @property
    def heaviest(self) -> bool:
        """Whether it is the largest of several stated loads of the plan."""
        stated = [value for point in self.plan.curve for value in LoadPoint(self.plan, point).label.values()]
        return len(stated) > 1 and max(stated) in self.label.values()

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second in the steady part."""
        return float(figures(self.point)["output_tokens_per_s"])

    @property
    def doubt(self) -> float:
        """Half the interval of that rate over the rate: how much a longer run may change it."""
        low, high = interval(self.point, "output_tokens_per_s")
        return (high - low) / 2.0 / self.tokens_per_s if self.tokens_per_s else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """Low and high end of the rate over the rate, by the errors of kernels."""
        whole = float(self.point["output_tokens_per_s"])
        ends = (self.point.get("range") or {}).get("output_tokens_per_s")
        if ends is None:
            range_ = self.plan.range
            assert range_ is not None
            low, high = range_.low, range_.high
        else:
            low, high = float(ends["low"]), float(ends["high"])
        return (low / whole, high / whole) if whole else (1.0, 1.0)

    @property
    def users(self) -> float:
        """Users of one machine."""
        steady = figures(self.point)
        if "users" in steady:
            return float(self.point.get("concurrency") or steady["users"])
        return float(self.point.get("concurrency") or steady["requests_per_s"] * (self.point["e2e_s"] or {})["mean"])

    @property
    def requests_per_s(self) -> tuple[float, float, float]:
        """Requests/s of one machine, within the bounds where there are some, and their range."""
        name = "requests_per_s" if self.point["goodput_requests_per_s"] is None else "goodput_requests_per_s"
        return float(figures(self.point)[name]), *interval(self.point, name)


@dataclass(frozen=True)
class ServiceMachines:
    """The machines that are enough for a service."""

    #: Number of machines, each the offer's cluster.
    machines: int
    #: Range of that number by the simulated sample, nine times of ten.
    machines_low: int
    machines_high: int
    #: The number before rounding, which offers are compared by, and half its interval over it.
    share: float
    share_doubt: float
    nodes: int
    gpus: int
    #: The plan on each machine, and the point of its load.
    plan: str
    load: Mapping[str, float]
    #: Whether the question states no heavier load: one might keep the bounds too, on fewer machines.
    heaviest: bool
    #: Users and requests/s of each machine.
    users: float
    requests_per_s: float
    requests_per_s_low: float
    requests_per_s_high: float
    #: Of all machines, by price basis.
    usd_per_hour: Mapping[str, float]
    #: Of all machines; None where the power is unknown.
    kwh_per_day: float | None

    def in_words(self, offer: str, basis: str | None) -> str:
        """The machines in a sentence."""
        nodes = f"{self.nodes:,} node{'s' * (self.nodes > 1)}"
        per = self.nodes // self.machines
        few, many = self.machines_low * per, self.machines_high * per
        nodes += f" ({few:,} to {many:,})" if few != many else ""
        text = f"{offer}: {nodes}, {self.gpus:,} GPUs, each machine with {digits(self.users)} users at "
        text += f"{digits(self.requests_per_s)} requests/s ({self.plan})"
        if basis is not None and basis in self.usd_per_hour:
            text += f"; ${digits(self.usd_per_hour[basis])} an hour ({basis})"
        if self.kwh_per_day is not None:
            text += f", {digits(self.kwh_per_day)} kWh a day"
        more = " No heavier load was stated, and this one keeps the bounds: fewer machines may do." * self.heaviest
        return f"{text}.{more}"


def load_of(scenario: Scenario, result: Result) -> LoadPoint | None:
    """The point of load that represents an offer, of those that keep the bounds: the one with the fewest machines for
    the project; without users and requests the one with the most requests/s. None where no point keeps them."""
    able = [load for load in loads_of(result) if (load.point.get("bounds") or {}).get("kept", True)]
    if asks(scenario):
        return min(able, key=lambda load: _needed(scenario, load)[0], default=None)
    return max(able, key=lambda load: load.requests_per_s[0], default=None)


def nearest_of(scenario: Scenario, result: Result) -> str:
    """For an offer that keeps the bounds at no point: the nearest point, in words; empty where no plan runs."""
    able = [load for load in loads_of(result) if load.point.get("bounds")]
    nearest = max(able, key=lambda load: float(load.point["bounds"]["share"]), default=None)
    if nearest is None:
        return next((f"{plan.name}: {plan.error}" for plan in result.plans if plan.error), "")
    at = "".join(f" at {value:g} {'clients' if key == 'concurrency' else 'requests/s'}" for key, value in
                 nearest.label.items())  # fmt: skip
    return f"{nearest.plan.name}{at}: {kept_in_words(nearest.point['bounds'])}"


def service_of(scenario: Scenario, result: Result, rates: Rates) -> ServiceMachines | None:
    """The machines that an offer needs for the project's users and requests; None where the project has none, or no
    point keeps the bounds."""
    best = load_of(scenario, result) if asks(scenario) else None
    if best is None:
        return None
    share, low, high = _needed(scenario, best)
    machines = whole(share)
    gpus = machines * int(result.cluster["gpus"])
    watts = rates.watts_per_gpu
    requests = best.requests_per_s
    return ServiceMachines(
        machines,
        whole(low),
        whole(high),
        share,
        (high - low) / 2.0 / share if math.isfinite(high) else 1.0,
        machines * int(result.cluster["nodes"]),
        gpus,
        best.plan.name,
        best.label,
        best.heaviest and bool(best.point.get("bounds")),
        best.users,
        *requests,
        {basis: usd * gpus for basis, usd in rates.usd_per_gpu_hour.items()},
        None if watts is None else watts * gpus * HOURS_A_DAY / 1000.0,
    )


def whole(share: float) -> int:
    """The share rounded up to whole machines; at least one."""
    return max(1, math.ceil(share - 1e-9))


def asks(scenario: Scenario) -> bool:
    project = scenario.project
    return project is not None and scenario.traffic is not None and bool(project.users or project.requests)


def _needed(scenario: Scenario, load: LoadPoint) -> tuple[float, float, float]:
    """Machines for the project before rounding, and their range."""
    project = scenario.project
    assert project is not None
    users = (project.users or 0) / load.users if load.users else math.inf
    value, low, high = load.requests_per_s

    def needed(rate: float) -> float:
        share = (project.requests or 0.0) / rate if rate > 0.0 else math.inf if project.requests else 0.0
        return max(users, share)

    return needed(value), needed(high), needed(low)


def loads_of(result: Result) -> Iterator[LoadPoint]:
    """Every point of every plan that ran."""
    for plan in result.plans:
        if plan.ran and plan.serving:
            yield from (LoadPoint(plan, point) for point in plan.curve or (plan.serving,))
