"""A result as the sections of the report read it: its best plan, its names and the model's shape."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tspsim.base.units import digits
from tspsim.scenario.workload import Workload
from tspsim.step.result import PlanResult, Result
from tspsim.steps import STEPS, Load, Step

from ..base.memo import once


@dataclass(frozen=True)
class LayerShape:
    """The sizes that the volumes of a layer depend on: hidden size, attention width, group and FFN width."""

    hidden: float
    attention_width: float
    group: float
    ffn: float
    matrices: int

    @property
    def attention_ratio(self) -> float:
        """α = a / h; one in most models."""
        return self.attention_width / self.hidden

    @property
    def ffn_ratio(self) -> float:
        """F = f / h."""
        return self.ffn / self.hidden


class View:
    """A result as the report reads it; ``ranked``: the fastest plan first, refused plans last."""

    def __init__(self, result: Result, *, ranked: bool = False) -> None:
        self.result = result
        self.plans = tuple(sorted(result.plans, key=lambda plan: -plan.tokens_per_s)) if ranked else result.plans
        self.ran = tuple(plan for plan in self.plans if plan.ran)
        self.refused = tuple(plan for plan in result.plans if not plan.ran)

    @once
    def best(self) -> PlanResult | None:
        """The plan with the most tokens/s (the first of equal plans), if any ran."""
        return self.result.best

    @property
    def rivals(self) -> tuple[PlanResult, ...]:
        """The other plans that ran, the fastest first."""
        others = [plan for plan in self.ran if plan is not self.best]
        return tuple(sorted(others, key=lambda plan: -plan.tokens_per_s))

    def place(self, plan: PlanResult) -> int:
        """The plan's place in the scenario, from 0."""
        return next(place for place, other in enumerate(self.result.plans) if other is plan)

    @property
    def name(self) -> str:
        return str(self.result.scenario.get("name", "scenario"))

    @property
    def workload(self) -> Mapping[str, Any]:
        return _mapping(self.result.scenario.get("workload"))

    @property
    def step(self) -> Step | None:
        """The kind of a pass, where the result names it."""
        name = self.workload.get("pass")
        return STEPS.get(str(name)) if name in STEPS else None

    @once
    def load(self) -> Load | None:
        """The load of a serving step; None for other steps."""
        step, stated = self.step, self.workload
        if step is None or not step.serves:
            return None
        keys = ("model", "pass", *step.needs, *step.takes)
        return Workload.model_validate({key: stated[key] for key in keys if stated.get(key) is not None}).load()

    @property
    def rate_words(self) -> str:
        """The unit of the rates."""
        return "Prompt tokens/s" if self.load is not None and not self.load.batch else "Tokens/s"

    @property
    def model(self) -> Mapping[str, Any]:
        return _mapping(self.result.scenario.get("model"))

    @property
    def device(self) -> Mapping[str, Any]:
        return _mapping(self.result.cluster.get("device"))

    @property
    def shape(self) -> LayerShape | None:
        """The shape of the model's layers.

        None where the scenario does not state the architecture, or where the layers have experts or latent attention:
        the formulas of the volumes hold for dense layers only.
        """
        model = self.model
        if "experts" in model or "latent" in model:
            return None
        try:
            heads = float(model["heads"])
            return LayerShape(
                hidden=float(model["hidden"]),
                attention_width=heads * float(model["head_dim"]),
                group=heads / float(model["kv_heads"]),
                ffn=float(model["ffn"]),
                matrices=3 if model.get("gated", True) else 2,
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None

    @property
    def tokens_per_replica(self) -> int | None:
        """B·S: tokens of one replica in a step; None where the scenario states a global batch, or where it decodes."""
        if self.load is not None and self.load.batch:
            return None
        sequence, count = self.workload.get("sequence"), self.workload.get("sequences_per_replica")
        return int(sequence * count) if isinstance(sequence, int) and isinstance(count, int) else None

    @property
    def device_title(self) -> str:
        """The device's name as its vendor writes it."""
        return str(self.device.get("name", "GPU")).upper()


def dollars_per_million_tokens(plan: PlanResult) -> dict[str, float]:
    """The plan's price of a million tokens by market, the cheapest first; empty without prices."""
    value = plan.cost.get("usd_per_million_tokens")
    prices = {"": value} if isinstance(value, int | float) else _mapping(value)
    by_market = {str(market): float(price) for market, price in prices.items() if isinstance(price, int | float)}
    return dict(sorted(by_market.items(), key=lambda item: item[1]))


def price_range(plan: PlanResult) -> str:
    """The price of the cheapest and of the dearest market, ``0.0392 – 0.0543``; empty without prices."""
    return in_dollars(dollars_per_million_tokens(plan).values())


def in_dollars(prices: Collection[float]) -> str:
    """The cheapest and the dearest price; empty without prices."""
    if not prices:
        return ""
    low, high = min(prices), max(prices)
    return digits(low) + (f" – {digits(high)}" if high != low else "")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
