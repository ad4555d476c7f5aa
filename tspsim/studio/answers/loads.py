"""The points of a serving curve: all in a picture, one at a time in a table; taken from the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import dcc

from .parts import AXIS, LOOKS
from .plan_parts import table

#: Keys of a point on the axes of the picture.
ACROSS, UP = "tokens_per_s_per_user", "output_tokens_per_s_per_gpu"


def loads(document: Mapping[str, Any]) -> list[str]:
    """Names of the points of a serving curve, in order; empty where there is one point."""
    curves = [plan["curve"] for plan in document["plans"] if plan.get("curve")]
    return [_load(point) for point in curves[0]] if curves else []


def _load(point: Mapping[str, Any]) -> str:
    for key in ("concurrency", "rate", "load"):
        if point.get(key) is not None:
            load = point[key]
            return f"{key} {load:g}" if isinstance(load, int | float) else f"{key} {load}"
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
        spread = point.get("range", plan["range"])
        cost = {key: point[key] for key in ("usd_per_million_tokens",) if key in point}
        plans.append(
            {**plan, "serving": point, "tokens_per_s": rate, "range": {**plan["range"], **spread}, "cost": cost}
        )
    if not plans:
        return None
    best = max(plans, key=lambda plan: plan["tokens_per_s"])
    return [drawn(document, index), table({**document, "plans": plans}, best, "Figures at this load")]


def drawn(document: Mapping[str, Any], index: int) -> Any:
    """The serving curve: a line per plan over its loads, with the selected one filled."""
    import plotly.graph_objects as go

    figure = go.Figure()
    names = loads(document)
    for plan in document["plans"]:
        curve = plan.get("curve") or []
        if "error" in plan or not curve:
            continue
        figure.add_scatter(
            x=[point[ACROSS] for point in curve],
            y=[point[UP] for point in curve],
            name=plan["name"],
            text=names[: len(curve)],
            mode="lines+markers",
            hovertemplate="%{text}: %{y:.4g} at %{x:.4g}<extra>%{fullData.name}</extra>",
            marker={
                "size": [14 if at == index else 7 for at in range(len(curve))],
                "symbol": ["circle" if at == index else "circle-open" for at in range(len(curve))],
            },
        )
    figure.update_layout(
        **LOOKS,
        height=300,
        xaxis={**AXIS, "title": {"text": "tokens/s a user"}, "rangemode": "tozero"},
        yaxis={**AXIS, "title": {"text": "output tokens/s a GPU"}, "rangemode": "tozero"},
        legend={"orientation": "h", "y": 1.15},
    )
    return dcc.Graph(figure=figure, config={"displayModeBar": False}, responsive=True, id="load-graph")
