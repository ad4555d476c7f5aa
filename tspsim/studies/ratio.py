"""The ratio of two plans' rates, and how sure it is: plans as plain data, which a page keeps and compares later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..step.result import PlanResult, Result


def likely_ratio(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[float, tuple[float, float] | None]:
    """Ratio of the rates of two plans, ``a`` over ``b``, and the range that holds nine times of ten.

    Errors that two plans on one device share cancel. Plans without errors of kernels (requests served, the iterations
    of a loop) have a ratio alone.

    Parameters
    ----------
    a, b
        What :func:`doubts` returns for a plan that ran.
    """
    from .uncertainty import Factor, PricedPlan
    from .uncertainty import likely_ratio as drawn

    ratio = float(a["tokens_per_s"] / b["tokens_per_s"])
    if not a["factors"] or not b["factors"]:
        return ratio, None
    offers = [
        PricedPlan(
            "",
            doubt["tokens"],
            doubt["step_s"],
            doubt["parts_s"],
            {name: Factor(*ends) for name, ends in doubt["factors"].items()},
        )
        for doubt in (a, b)
    ]
    return ratio, drawn(*offers)


def doubts(result: Result, plan: PlanResult) -> dict[str, Any]:
    """A plan that ran, as plain data for :func:`likely_ratio`: its rate, its step's parts, and how far each may be off.
    Parts are named by device, so that plans on one device share them."""
    from .uncertainty import priced_plan_of

    document: dict[str, Any] = {"tokens_per_s": plan.tokens_per_s, "factors": {}}
    if plan.serving or plan.loop:
        return document
    offer = priced_plan_of(plan)
    if offer is None:
        return document
    machine = str(result.cluster["device"]["name"])

    def named(name: str) -> str:
        return f"{machine} {name}"

    return document | {
        "tokens": offer.tokens,
        "step_s": offer.step_s,
        "parts_s": {named(name): seconds for name, seconds in offer.parts_s.items()},
        "factors": {named(name): (factor.low, factor.high) for name, factor in offer.factors.items()},
    }
