"""Caches of a serving step against the memory that its engine leaves for them, and sessions by context."""

from __future__ import annotations

import math
from typing import Any

from tspsim.base.errors import TspsimError
from tspsim.base.units import GIB, digits, gib
from tspsim.report import served
from tspsim.report.figures import LEGEND, bars, bars_layout, limit, plan_line
from tspsim.report.numbers import label
from tspsim.report.view import View
from tspsim.step.result import PlanResult

from .section import PageSection

TEMPLATE = """
{{ figure("cache", "Memory of a GPU: weights, caches of the step, the engine's room for more caches, and the reserve for
activations, graphs and the runtime.") }}
<ul class="verdicts" data-plans>{% for verdict in verdicts %}
<li data-place="{{ verdict.place }}"><strong>{{ verdict.name }}</strong> {{ verdict.text }}</li>
{% endfor %}</ul>
{{ figure("sessions", "Resident sessions on the whole machine, by tokens of context in each. Lines end where a
replica has no room for one session.") }}
"""


def build(view: View) -> dict[str, Any] | None:
    """Bars per plan, and lines of sessions where the question is available."""
    plans = [plan for plan in view.ran if plan.inference.get("capacity")]
    if view.load is None or not plans:
        return None
    figures = {"cache": memory(view, plans)}
    lines = sessions(view, plans)
    if lines:
        figures["sessions"] = lines
    return {"figures": figures, "verdicts": [verdict(plan) | {"place": view.place(plan)} for plan in plans]}


def verdict(plan: PlanResult) -> dict[str, Any]:
    """Sessions and the longest context of one replica, with their range."""
    room = plan.inference["capacity"]
    low, high = room["sessions_range"]
    likely = f" (likely {served.whole(low)} to {served.whole(high)})" if served.whole(low) != served.whole(high) else ""
    text = (
        f"{served.whole(room['sessions'])} sessions of {room['context']:,} tokens a replica{likely}, or one of "
        f"{served.length(room['longest_context'])}."
    )
    return {"name": plan.name, "text": text}


def memory(view: View, plans: list[PlanResult]) -> dict[str, Any]:
    """Weights, caches of the step, free cache room, and the rest of the visible memory."""
    names = [plan.name for plan in plans]
    parts: dict[str, list[float]] = {"weights": [], "caches of the step": [], "room for more": [], "kept free": []}
    for plan in plans:
        weights, used = (plan.memory.parts.get(part, 0.0) for part in ("weights", "kv_cache"))
        room = max(used, plan.inference["capacity"]["cache_bytes"])
        rest = max(0.0, plan.memory.capacity_bytes - weights - room)
        for part, size in zip(parts, (weights, used, room - used, rest), strict=True):
            parts[part].append(size)
    tones = dict(zip(parts, ("#332288", "#44aa99", "#88ccee", "#c3c9d1"), strict=True))
    data: list[dict[str, Any]] = [
        bars(
            part,
            [size / GIB for size in sizes],
            tones[part],
            [f"<b>{label(name)}</b><br>{part}<br>{gib(size)}" for name, size in zip(names, sizes, strict=True)],
        )
        for part, sizes in parts.items()
    ]
    capacity = max(plan.memory.capacity_bytes for plan in plans) / GIB
    data.append(limit(f"visible, {capacity:.1f} GiB", capacity, len(names)))
    layout = bars_layout(names, "memory per GPU (GiB)", places=[view.place(plan) for plan in plans])
    return {"data": data, "layout": layout | {"margin": {}}}


def sessions(view: View, plans: list[PlanResult]) -> dict[str, Any] | None:
    """One line per plan; plans with the same sessions share one."""
    from tspsim.studies.serving_curves import sessions_over_context

    if view.result.source_scenario is None:
        return None
    try:
        by_plan = sessions_over_context(view.result.source_scenario, [plan.name for plan in plans])
    except TspsimError:  # files of the question are gone
        return None
    alike: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for name, line in by_plan.items():
        alike.setdefault(tuple((context, round(count, 6)) for context, count in line), []).append(name)
    lines = [(", ".join(names), points) for points, names in alike.items() if points]
    if not lines:
        return None
    data = [
        plan_line(
            name,
            place,
            points,
            [f"<b>{label(name)}</b><br>{tokens:,} tokens each<br>{digits(count)} sessions" for tokens, count in points],
            marker={"size": 6},
        )
        for place, (name, points) in enumerate(lines)
    ]
    ticks = sorted({context for _, points in lines for context, _ in points if context & (context - 1) == 0})
    log = {"type": "log", "automargin": True, "fixedrange": True, "zeroline": False}
    layout = {
        "height": 380,
        "hovermode": "closest",
        "xaxis": {
            **log, "title": {"text": "tokens of context, each", "standoff": 8}, "tickmode": "array",
            "tickvals": ticks[::2], "ticktext": [in_binary(tick) for tick in ticks[::2]],
            "range": [math.log10(ticks[0]) - 0.05, math.log10(ticks[-1]) + 0.05] if ticks else None,
        },
        "yaxis": {**log, "title": {"text": "sessions", "standoff": 8}, "tickformat": "~s"},
        "showlegend": True,
        "legend": LEGEND,
    }  # fmt: skip
    return {"data": data, "layout": layout}


def in_binary(count: int) -> str:
    """A power of two as scenarios write it.

    >>> in_binary(8192), in_binary(2**20)
    ('8Ki', '1Mi')
    """
    return f"{count >> 20}Mi" if count >= 1 << 20 else f"{count >> 10}Ki" if count >= 1 << 10 else str(count)


SECTION = PageSection("caches", "Caches and sessions", build, TEMPLATE, short="Caches")
