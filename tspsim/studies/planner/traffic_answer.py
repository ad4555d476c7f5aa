"""What a search of plans that serve requests answers, and what it chooses by."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .service_answer import ServedPlan, ServicePlanned


@dataclass(frozen=True)
class Tried(ServedPlan):
    """A plan under one load.

    Attributes
    ----------
    offer
        On whose cluster; the scenario's name where nothing is offered.
    load
        ``concurrency`` or ``rate`` of the requests.
    share
        Of requests that kept the bounds; 1 where there are none.
    """

    offer: str
    load: Mapping[str, float]
    share: float

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"offer": self.offer, "load": dict(self.load), "good_share": self.share}

    @property
    def usd_per_hour(self) -> float | None:
        """All its GPUs, at the mean of the prices that are known; None where none is."""
        prices = list(self.result.cost.get("usd_per_gpu_hour", {}).values())
        return self.result.gpus * sum(prices) / len(prices) if prices else None


def a_dollar(rate: Callable[[Tried], float]) -> Callable[[Tried], float]:
    """A rate over what its GPUs cost; where a price is missing over how many they are."""
    return lambda tried: 3600.0 * rate(tried) / (tried.usd_per_hour or tried.result.gpus)


def goodput(tried: Tried) -> float:
    """Requests/s within bounds; where there are none, all."""
    good = tried.result.serving["goodput_requests_per_s"]
    return float(tried.result.serving["requests_per_s"] if good is None else good)


#: What a plan may be chosen by → its merit, of which more is better.
OBJECTIVES: Mapping[str, Callable[[Tried], float]] = {
    "goodput_per_dollar": a_dollar(goodput),
    "goodput": goodput,
    "tokens_per_s": lambda tried: tried.result.tokens_per_s,
    "tokens_per_s_per_gpu": lambda tried: tried.result.tokens_per_s_per_gpu,
    "tokens_per_dollar": a_dollar(lambda tried: tried.result.tokens_per_s),
    "time_to_first_token": lambda tried: -tried.result.serving["ttft_s"]["mean"],
    "time_per_output_token": lambda tried: -(tried.result.serving["tpot_s"] or {"mean": math.inf})["mean"],
}
#: Of them, those that count only requests within bounds: of the others a plan must keep the bounds first.
OF_GOODPUT = ("goodput_per_dollar", "goodput")


@dataclass(repr=False)
class TrafficPlanned(ServicePlanned[Tried]):
    """What was found for requests.

    Attributes
    ----------
    bounds
        Seconds of ``ttft``, ``tpot``, ``e2e`` that a good request keeps.
    front
        Points that no other beats in tokens/s a GPU and in tokens/s a user, of every offer.
    by_offer
        The best of every offer.
    kept
        Whether the best keep the bounds: otherwise they come nearest.
    """

    bounds: Mapping[str, float] = field(default_factory=dict)
    by_offer: tuple[Tried, ...] = ()
    kept: bool = True

    def plans_to_json(self) -> dict[str, Any]:
        def mark(tried: Tried) -> dict[str, Any]:
            told = tried.result.serving
            rates = {"tokens_per_s_per_gpu": tried.result.tokens_per_s_per_gpu}
            rates |= {"tokens_per_s_per_user": told["tokens_per_s_per_user"], "goodput_requests_per_s": goodput(tried)}
            return {"name": tried.name, "offer": tried.offer, "load": dict(tried.load), **rates}

        return {
            "limits": [f"{name}<={seconds:g}" for name, seconds in self.bounds.items()],
            "kept": self.kept,
            "best": [each.to_json() for each in self.best],
            "offers": [each.to_json() for each in self.by_offer],
            "front": [mark(each) for each in self.front],
            "stated": [each.to_json() for each in self.stated],
        }

    def why_none(self) -> str:
        return super().why_none() if self.refused else "no plan is legal, or has room"
