"""How many machines a service takes: as many of an offer as its users, or its requests, need within their bounds.

An offer's machine serves what one point of its load was simulated to in the steady part of its run
(:mod:`tspsim.serving.steady`): c users in a closed loop (in an open one those under way), and X requests/s, of which
the good ones count where there are bounds. Machines stand beside each other behind a router; nothing is shared between
them.
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
    """A plan at one point of its load: the one that an offer is judged by."""

    plan: PlanResult
    point: Mapping[str, Any]

    @property
    def label(self) -> dict[str, float]:
        """``concurrency`` or ``rate``; empty where the traffic has neither."""
        return {key: self.point[key] for key in ("concurrency", "rate") if key in self.point}

    @property
    def heaviest(self) -> bool:
        """Whether it is the last of several loads that were asked of the plan."""
        asked = [value for point in self.plan.curve for value in LoadPoint(self.plan, point).label.values()]
        return len(asked) > 1 and max(asked) in self.label.values()

    @property
    def tokens_per_s(self) -> float:
        """Outputs a second that last."""
        return float(figures(self.point)["output_tokens_per_s"])

    @property
    def doubt(self) -> float:
        """Half the interval of that rate over the rate: what a longer run may change."""
        low, high = interval(self.point, "output_tokens_per_s")
        return (high - low) / 2.0 / self.tokens_per_s if self.tokens_per_s else 0.0

    @property
    def spread(self) -> tuple[float, float]:
        """Low and high of the rate over the rate, by what kernels may be off."""
        whole = float(self.point["output_tokens_per_s"])
        ends = (self.point.get("range") or {}).get("output_tokens_per_s")
        if ends is None:
            found = self.plan.range
            assert found is not None
            low, high = found.low, found.high
        else:
            low, high = float(ends["low"]), float(ends["high"])
        return (low / whole, high / whole) if whole else (1.0, 1.0)

    @property
    def users(self) -> float:
        """That one machine serves."""
        told = figures(self.point)
        if "users" in told:
            return float(self.point.get("concurrency") or told["users"])
        return float(self.point.get("concurrency") or told["requests_per_s"] * (self.point["e2e_s"] or {})["mean"])

    @property
    def requests_per_s(self) -> tuple[float, float, float]:
        """That one machine serves, within the bounds where there are some; and where that lies nine times of ten."""
        name = "requests_per_s" if self.point["goodput_requests_per_s"] is None else "goodput_requests_per_s"
        return float(figures(self.point)[name]), *interval(self.point, name)


@dataclass(frozen=True)
class ServiceMachines:
    """The machines that are enough."""

    #: Of the offer: so many times its cluster.
    machines: int
    #: The fewest and the most that what was simulated allows, nine times of ten.
    machines_low: int
    machines_high: int
    #: Before they are whole: what offers are compared by, and half its interval over it.
    share: float
    share_doubt: float
    nodes: int
    gpus: int
    #: What each of them runs, and the point of its load.
    plan: str
    load: Mapping[str, float]
    #: Whether no heavier load of that plan was asked: one may be kept too, by fewer machines.
    heaviest: bool
    #: That each of them serves.
    users: float
    requests_per_s: float
    requests_per_s_low: float
    requests_per_s_high: float
    #: Of all, by price basis.
    usd_per_hour: Mapping[str, float]
    #: Of all; None where the power is not known.
    kwh_per_day: float | None

    def in_words(self, offer: str, basis: str | None) -> str:
        """In a sentence."""
        nodes = f"{self.nodes:,} node{'s' * (self.nodes > 1)}"
        per = self.nodes // self.machines
        few, many = self.machines_low * per, self.machines_high * per
        nodes += f" ({few:,} to {many:,})" if few != many else ""
        told = f"{offer}: {nodes}, {self.gpus:,} GPUs, each machine with {digits(self.users)} users at "
        told += f"{digits(self.requests_per_s)} requests/s ({self.plan})"
        if basis is not None and basis in self.usd_per_hour:
            told += f"; ${digits(self.usd_per_hour[basis])} an hour ({basis})"
        if self.kwh_per_day is not None:
            told += f", {digits(self.kwh_per_day)} kWh a day"
        more = " No heavier load was asked, and it keeps the bounds: with one fewer machines may do." * self.heaviest
        return f"{told}.{more}"


def load_of(scenario: Scenario, result: Result) -> LoadPoint | None:
    """The point that an offer is judged by: of those that keep the bounds the one that needs fewest machines for the
    project, and where nothing is asked the one that serves most. None where no point keeps them."""
    able = [each for each in loads_of(result) if (each.point.get("bounds") or {}).get("kept", True)]
    if asks(scenario):
        return min(able, key=lambda each: _needed(scenario, each)[0], default=None)
    return max(able, key=lambda each: each.requests_per_s[0], default=None)


def nearest_of(scenario: Scenario, result: Result) -> str:
    """Of an offer that keeps the bounds at no point: what comes nearest, in words; empty where no plan runs."""
    able = [each for each in loads_of(result) if each.point.get("bounds")]
    nearest = max(able, key=lambda each: float(each.point["bounds"]["share"]), default=None)
    if nearest is None:
        return next((f"{plan.name}: {plan.error}" for plan in result.plans if plan.error), "")
    at = "".join(f" at {value:g} {'clients' if key == 'concurrency' else 'requests/s'}" for key, value in
                 nearest.label.items())  # fmt: skip
    return f"{nearest.plan.name}{at}: {kept_in_words(nearest.point['bounds'])}"


def service_of(scenario: Scenario, result: Result, rates: Rates) -> ServiceMachines | None:
    """What an offer needs for the project's users and requests; None where nothing is asked, or no point of it keeps
    the bounds."""
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
    """So many machines, whole ones; at least one."""
    return max(1, math.ceil(share - 1e-9))


def asks(scenario: Scenario) -> bool:
    project = scenario.project
    return project is not None and scenario.traffic is not None and bool(project.users or project.requests)


def _needed(scenario: Scenario, load: LoadPoint) -> tuple[float, float, float]:
    """Machines for the project before they are whole, and where that lies nine times of ten."""
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
