"""What a search of plans that serve requests answers, and its JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...description import describe_cluster, describe_model, provenance
from ...question import Question
from ...result import SCHEMA_VERSION, PlanResult
from ...scenario import Scenario
from ...statements import defaults_in_words


@dataclass(frozen=True)
class Tried:
    """A plan under one load.

    Attributes
    ----------
    keys
        Of the scenario's plan.
    offer
        On whose cluster; the scenario's name where nothing is offered.
    load
        ``concurrency`` or ``rate`` of the requests.
    share
        Of requests that kept the bounds; 1 where there are none.
    asked
        The scenario with this plan alone under this load.
    """

    keys: Mapping[str, Any]
    offer: str
    load: Mapping[str, float]
    result: PlanResult
    share: float
    asked: Scenario = field(repr=False)

    @property
    def name(self) -> str:
        return self.result.name

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


@dataclass
class TrafficPlanned:
    """What was found.

    Attributes
    ----------
    bounds
        Seconds of ``ttft``, ``tpot``, ``e2e`` that a good request keeps.
    best
        The best plans, best first, each once.
    front
        Points that no other beats in tokens/s a GPU and in tokens/s a user, of every offer.
    by_offer
        The best of every offer.
    kept
        Whether the best keep the bounds: otherwise they come nearest.
    """

    scenario: Scenario
    question: Question
    objective: str
    bounds: Mapping[str, float]
    searched: tuple[str, ...]
    best: tuple[Tried, ...] = ()
    front: tuple[Tried, ...] = ()
    by_offer: tuple[Tried, ...] = ()
    stated: tuple[Tried, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    kept: bool = True
    simulated: int = 0
    bounded: int = 0
    complete: bool = True
    interrupted: bool = False
    known: list[Tried] = field(default_factory=list, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The answer as plain data (docs/planner.md)."""

        def entry(tried: Tried) -> dict[str, Any]:
            more = {"offer": tried.offer, "load": dict(tried.load), "good_share": tried.share}
            return tried.result.to_json() | {"keys": dict(tried.keys), **more}

        def mark(tried: Tried) -> dict[str, Any]:
            told = tried.result.serving
            rates = {"tokens_per_s_per_gpu": tried.result.tokens_per_s_per_gpu}
            rates |= {"tokens_per_s_per_user": told["tokens_per_s_per_user"], "goodput_requests_per_s": goodput(tried)}
            return {"name": tried.name, "offer": tried.offer, "load": dict(tried.load), **rates}

        return {
            "schema": SCHEMA_VERSION,
            "scenario": self.scenario.to_dict() | {"model": describe_model(self.question.model)},
            "cluster": describe_cluster(self.question.cluster, self.question.device),
            "plan": {
                "objective": self.objective,
                "limits": [f"{name}<={seconds:g}" for name, seconds in self.bounds.items()],
                "kept": self.kept,
                "best": [entry(each) for each in self.best],
                "offers": [entry(each) for each in self.by_offer],
                "front": [mark(each) for each in self.front],
                "stated": [entry(each) for each in self.stated],
                "refused": [{"name": name, "error": error} for name, error in self.refused],
                "search": {
                    "searched": list(self.searched),
                    "simulated": self.simulated,
                    "bounded": self.bounded,
                    "complete": self.complete,
                    "interrupted": self.interrupted,
                },
            },
            "provenance": [dict(row) for row in provenance(self.question)],
            "defaults": list(defaults_in_words(self.question, self.question.plans)),
        }
