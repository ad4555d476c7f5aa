"""The answer of a search for plans that serve requests, and its objectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...scenario import PlanSpec, Scenario
from ...serving.steady import figures
from .service_answer import ServicePlanned, SimulatedService, stated_keys
from .service_names import plain as plain_keys


@dataclass(frozen=True)
class ServiceUnderLoad(SimulatedService):
    """A plan under one load."""

    #: The offer whose cluster it runs on; the scenario's name where there are no offers.
    offer: str
    #: ``concurrency`` or ``rate`` of the requests.
    load: Mapping[str, float]
    #: Share of requests that keep the bounds; 1 without bounds.
    share: float
    #: Whether enough requests keep them (:mod:`tspsim.serving.bounds`).
    kept: bool = True
    #: Whether it was served as ``tspsim run`` does; otherwise with few requests, for the search's ranking.
    whole: bool = False
    #: Number of equal parts, of which one was simulated (:mod:`.service_part`); all reported figures are of the whole.
    parts: int = 1

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"offer": self.offer, "load": dict(self.load), "good_share": self.share}

    @property
    def usd_per_hour(self) -> float | None:
        """Cost of all its GPUs at the mean of the known prices; None where none is known."""
        prices = list(self.result.cost.get("usd_per_gpu_hour", {}).values())
        return self.gpus * sum(prices) / len(prices) if prices else None

    @property
    def watts(self) -> float | None:
        """Power of all its GPUs, with their part of the node; None where it is not known."""
        kwh, wall_s = self.result.serving.get("energy_kwh"), self.result.serving["wall_s"]
        return self.parts * kwh * 3.6e6 / wall_s if kwh and wall_s else None

    @property
    def gpus(self) -> int:
        """GPUs of all parts."""
        return self.parts * self.result.gpus

    @property
    def tokens_per_s(self) -> float:
        """Tokens/s of all parts, in the steady part of the run."""
        return self.parts * self.result.lasting_tokens_per_s


def plain(plan: PlanSpec) -> str:
    """A plan without its name, as text."""
    return plain_keys(stated_keys(plan))


def a_dollar(rate: Callable[[ServiceUnderLoad], float]) -> Callable[[ServiceUnderLoad], float]:
    """A rate over the cost of its GPUs; without a price over their number."""
    return lambda tried: 3600.0 * rate(tried) / (tried.usd_per_hour or tried.gpus)


def a_joule(rate: Callable[[ServiceUnderLoad], float]) -> Callable[[ServiceUnderLoad], float]:
    """A rate over the all-in power of its GPUs; without a power over their number."""
    return lambda tried: rate(tried) / (tried.watts or tried.gpus)


def goodput(tried: ServiceUnderLoad) -> float:
    """Requests/s within bounds in the steady part; without bounds, all."""
    steady = figures(tried.result.serving)
    good = steady["goodput_requests_per_s"]
    return tried.parts * float(steady["requests_per_s"] if good is None else good)


#: Objectives, each with its merit; more is better.
OBJECTIVES: Mapping[str, Callable[[ServiceUnderLoad], float]] = {
    "goodput_per_dollar": a_dollar(goodput),
    "goodput_per_joule": a_joule(goodput),
    "goodput": goodput,
    "tokens_per_s": lambda tried: tried.tokens_per_s,
    "tokens_per_s_per_gpu": lambda tried: tried.tokens_per_s / tried.gpus,
    "tokens_per_dollar": a_dollar(lambda tried: tried.tokens_per_s),
    "tokens_per_joule": a_joule(lambda tried: tried.tokens_per_s),
    "time_to_first_token": lambda tried: -tried.result.serving["ttft_s"]["mean"],
    "time_per_output_token": lambda tried: -(tried.result.serving["tpot_s"] or {"mean": math.inf})["mean"],
}


@dataclass(repr=False)
class TrafficPlanned(ServicePlanned[ServiceUnderLoad]):
    """The planner's answer for requests.

    Attributes
    ----------
    bounds
        Bounds on ``ttft``, ``tpot``, ``e2e`` of a good request, in seconds.
    front
        Points of every offer that no other beats in tokens/s per GPU and per user.
    by_offer
        The best service of every offer.
    kept
        Whether the best keep the bounds; otherwise they come nearest.
    notes
        Explanations, such as why the plan of the fastest step does not serve best.
    """

    bounds: Mapping[str, float] = field(default_factory=dict)
    by_offer: tuple[ServiceUnderLoad, ...] = ()
    kept: bool = True
    notes: tuple[str, ...] = ()

    @property
    def scenario_to_run(self) -> Scenario:
        """A scenario to run: the best plan under its load. With offers, every offer with its own best plan, all under
        the loads of each."""
        if not self.scenario.offers:
            return self.best[0].source_scenario
        traffic = self.scenario.traffic
        assert traffic is not None
        loads = sorted({value for service in self.by_offer for value in service.load.values()})
        key = next((key for service in self.by_offer for key in service.load), None)
        if key is not None and not traffic.arrivals.searches:
            values = tuple(int(value) for value in loads) if key == "concurrency" else tuple(loads)
            traffic = traffic.model_copy(update={"arrivals": traffic.arrivals.model_copy(update={key: values})})
        plans: dict[str, PlanSpec] = {}
        own: dict[str, str] = {}
        for service in self.by_offer:
            plan = service.source_scenario.plans[0]
            same = next((name for name, other in plans.items() if plain(other) == plain(plan)), None)
            name = same or (plan.name if plan.name not in plans else f"{plan.name} ({service.offer})")
            plans.setdefault(name, plan.model_copy(update={"name": name}))
            own[service.offer] = name
        offers = [
            offer.model_copy(update={"plans": (own[offer.name],)})
            for offer in self.scenario.offers
            if offer.name in own
        ]
        return self.scenario.model_copy(
            update={"plans": tuple(plans.values()), "offers": tuple(offers), "traffic": traffic}
        )

    def plans_to_json(self) -> dict[str, Any]:
        def mark(tried: ServiceUnderLoad) -> dict[str, Any]:
            serving = tried.result.serving
            rates = {"tokens_per_s_per_gpu": tried.result.tokens_per_s_per_gpu}
            rates |= {
                "tokens_per_s_per_user": serving["tokens_per_s_per_user"],
                "goodput_requests_per_s": goodput(tried),
            }
            return {"name": tried.name, "offer": tried.offer, "load": dict(tried.load), **rates}

        return {
            "limits": [f"{name}<={seconds:g}" for name, seconds in self.bounds.items()],
            "kept": self.kept,
            "notes": list(self.notes),
            "best": [service.to_json() for service in self.best],
            "offers": [service.to_json() for service in self.by_offer],
            "front": [mark(service) for service in self.front],
            "stated": [service.to_json() for service in self.stated],
        }

    def why_none(self) -> str:
        return super().why_none() if self.refused else "no plan is legal, or has room"
