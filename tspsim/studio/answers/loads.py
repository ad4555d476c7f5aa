"""The points of a serving curve, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .plan_parts import table


def loads(document: Mapping[str, Any]) -> list[str]:
    """What the points of a serving curve are, in their order; none where there is one point."""
    curves = [plan["curve"] for plan in document["plans"] if plan.get("curve")]
    return [_load(point) for point in curves[0]] if curves else []


def _load(point: Mapping[str, Any]) -> str:
    for key in ("concurrency", "rate", "load"):
        if point.get(key) is not None:
            told = point[key]
            return f"{key} {told:g}" if isinstance(told, int | float) else f"{key} {told}"
    return str(point.get("name", ""))


def at_load(document: Mapping[str, Any], index: int) -> Any:
    """The figures of every plan at one point of its curve."""
    plans = []
    for plan in document["plans"]:
        curve = plan.get("curve") or []
        if "error" in plan or index >= len(curve):
            continue
        point = curve[index]
        rate = point.get("output_tokens_per_s", plan["tokens_per_s"])
        told = point.get("range", plan["range"])
        plans.append({**plan, "serving": point, "tokens_per_s": rate, "range": {**plan["range"], **told}, "cost": {}})
    if not plans:
        return None
    best = max(plans, key=lambda plan: plan["tokens_per_s"])
    return table({**document, "plans": plans}, best, "Figures at this load")
