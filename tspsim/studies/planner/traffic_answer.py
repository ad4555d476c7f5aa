"""What a search of plans that serve requests answers, and what it chooses by."""

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
class Tried(SimulatedService):
    """A plan under one load."""

    #: On whose cluster; the scenario's name where nothing is offered.
    offer: str
    #: ``concurrency`` or ``rate`` of the requests.
    load: Mapping[str, float]
    #: Of requests that keep the bounds; 1 where there are none.
    share: float
    #: Whether they are kept by as many as are asked (:mod:`tspsim.serving.bounds`).
    kept: bool = True
    #: Served as ``tspsim run`` serves it; otherwise of few requests, as a search ranks it.
    whole: bool = False
    #: What was simulated is one of so many equal parts (:mod:`.service_part`); of all that is told it is the whole.
    parts: int = 1

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"offer": self.offer, "load": dict(self.load), "good_share": self.share}

    @property
    def usd_per_hour(self) -> float | None:
        """All its GPUs, at the mean of the prices that are known; None where none is."""
        prices = list(self.result.cost.get("usd_per_gpu_hour", {}).values())
        return self.gpus * sum(prices) / len(prices) if prices else None

    @property
    def watts(self) -> float | None:
        """That all its GPUs draw, with their part of the node; None where that is not known."""
        kwh, wall_s = self.result.serving.get("energy_kwh"), self.result.serving["wall_s"]
        return self.parts * kwh * 3.6e6 / wall_s if kwh and wall_s else None

    @property
    def gpus(self) -> int:
        """Of all parts."""
        return self.parts * self.result.gpus

    @property
    def tokens_per_s(self) -> float:
        """Of all parts, in the steady part of the run."""
        return self.parts * self.result.lasting_tokens_per_s


def plain(plan: PlanSpec) -> str:
    """A plan without its name, as text."""
    return plain_keys(stated_keys(plan))


def a_dollar(rate: Callable[[Tried], float]) -> Callable[[Tried], float]:
    """A rate over what its GPUs cost; where a price is missing over how many they are."""
    return lambda tried: 3600.0 * rate(tried) / (tried.usd_per_hour or tried.gpus)


def a_joule(rate: Callable[[Tried], float]) -> Callable[[Tried], float]:
    """A rate over what its GPUs draw, all in; where a power is missing over how many they are."""
    return lambda tried: rate(tried) / (tried.watts or tried.gpus)


def goodput(tried: Tried) -> float:
    """Requests/s within bounds in the steady part; where there are none, all."""
    told = figures(tried.result.serving)
    good = told["goodput_requests_per_s"]
    return tried.parts * float(told["requests_per_s"] if good is None else good)


#: What a plan may be chosen by → its merit, of which more is better.
OBJECTIVES: Mapping[str, Callable[[Tried], float]] = {
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
class TrafficPlanned(ServicePlanned[Tried]):
    """What was found for requests.

    Attributes
    ----------
    bounds
        Seconds of ``ttft``, ``tpot``, ``e2e`` that a good request keeps.
    front
        Points that no other beats in tokens/s per GPU and in tokens/s per user, of every offer.
    by_offer
        The best of every offer.
    kept
        Whether the best keep the bounds: otherwise they come nearest.
    notes
        What a reader may wonder at: why the plan of the fastest step does not serve best.
    """

    bounds: Mapping[str, float] = field(default_factory=dict)
    by_offer: tuple[Tried, ...] = ()
    kept: bool = True
    notes: tuple[str, ...] = ()

    @property
    def asked_again(self) -> Scenario:
        """What runs as it is: the best plan under its load, or where hardware is offered every offer with its own best
        plan, all of them under the loads of each."""
        if not self.scenario.offers:
            return self.best[0].asked
        traffic = self.scenario.traffic
        assert traffic is not None
        loads = sorted({value for each in self.by_offer for value in each.load.values()})
        key = next((key for each in self.by_offer for key in each.load), None)
        if key is not None and not traffic.arrivals.searches:
            values = tuple(int(value) for value in loads) if key == "concurrency" else tuple(loads)
            traffic = traffic.model_copy(update={"arrivals": traffic.arrivals.model_copy(update={key: values})})
        plans: dict[str, PlanSpec] = {}
        own: dict[str, str] = {}
        for each in self.by_offer:
            plan = each.asked.plans[0]
            same = next((name for name, other in plans.items() if plain(other) == plain(plan)), None)
            name = same or (plan.name if plan.name not in plans else f"{plan.name} ({each.offer})")
            plans.setdefault(name, plan.model_copy(update={"name": name}))
            own[each.offer] = name
        offers = [
            offer.model_copy(update={"plans": (own[offer.name],)})
            for offer in self.scenario.offers
            if offer.name in own
        ]
        return self.scenario.model_copy(
            update={"plans": tuple(plans.values()), "offers": tuple(offers), "traffic": traffic}
        )

    def plans_to_json(self) -> dict[str, Any]:
        def mark(tried: Tried) -> dict[str, Any]:
            told = tried.result.serving
            rates = {"tokens_per_s_per_gpu": tried.result.tokens_per_s_per_gpu}
            rates |= {"tokens_per_s_per_user": told["tokens_per_s_per_user"], "goodput_requests_per_s": goodput(tried)}
            return {"name": tried.name, "offer": tried.offer, "load": dict(tried.load), **rates}

        return {
            "limits": [f"{name}<={seconds:g}" for name, seconds in self.bounds.items()],
            "kept": self.kept,
            "notes": list(self.notes),
            "best": [each.to_json() for each in self.best],
            "offers": [each.to_json() for each in self.by_offer],
            "front": [mark(each) for each in self.front],
            "stated": [each.to_json() for each in self.stated],
        }

    def why_none(self) -> str:
        return super().why_none() if self.refused else "no plan is legal, or has room"
