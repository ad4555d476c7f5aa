"""Memory of the fullest rank, by part, against the visible memory of the device."""

from __future__ import annotations

from typing import Any

from tspsim.base.units import GIB, gib, percent
from tspsim.report.figures import bars, bars_layout, limit, totals
from tspsim.report.numbers import label, words
from tspsim.report.view import View
from tspsim.step.result import PlanResult

from .section import PageSection

TEMPLATE = """
{{ figure("memory", "Peak memory of the fullest rank by part; the line is the memory that a program can use.
Refused plans are shown too.") }}
<ul class="verdicts" data-plans>{% for verdict in verdicts %}
<li data-place="{{ verdict.place }}"{% if not verdict.fits %} class="refused"{% endif %}>
<strong>{{ verdict.name }}</strong>
 {{ verdict.text }}</li>{% endfor %}</ul>
"""

#: Tol's muted palette (personal.sron.nl/~pault): parts of memory are not kinds of work, so their colours differ.
PALETTE = ("#332288", "#88ccee", "#44aa99", "#ddcc77", "#cc6677", "#882255", "#117733", "#999933", "#aa4499", "#777777")
#: Share of the capacity above which a bar's total is written beyond the line, which would cross it.
BESIDE = 0.8


def build(view: View) -> dict[str, Any]:
    """Stacked bars with the capacity as a line."""
    names = [plan.name for plan in view.plans]
    keys = list(dict.fromkeys(key for plan in view.plans for key in plan.memory.parts))
    data: list[dict[str, Any]] = [
        bars(
            label(words(key)),
            [plan.memory.parts.get(key, 0.0) / GIB for plan in view.plans],
            PALETTE[index % len(PALETTE)],
            [_hover(plan, key) for plan in view.plans],
        )
        for index, key in enumerate(keys)
    ]
    capacity = max(plan.memory.capacity_bytes for plan in view.plans) / GIB if view.plans else 0.0
    data.append(limit(f"capacity, {capacity:.1f} GiB", capacity, len(names)))
    peaks = [plan.memory.peak_bytes for plan in view.plans]
    ends = [capacity if BESIDE * capacity <= peak / GIB < capacity else peak / GIB for peak in peaks]
    data.append(totals(ends, [gib(peak) for peak in peaks]))
    verdicts = []
    for plan in view.plans:
        memory = plan.memory
        left = memory.capacity_bytes - memory.peak_bytes
        text = (
            f"fits: {gib(memory.peak_bytes)}, {gib(left)} left."
            if left >= 0
            else (f"does not fit: {gib(memory.peak_bytes)}, {gib(-left)} too many.")
        )
        refused = view.load is not None and not plan.ran
        if refused and left >= 0:  # the engine's rule leaves less for caches than there is
            text = f"does not run: {plan.error}."
        fits = memory.fits and not refused
        verdicts.append({"name": plan.name, "place": view.place(plan), "fits": fits, "text": text})
    layout = bars_layout(names, "memory per GPU (GiB)", places=[view.place(plan) for plan in view.plans])
    return {"verdicts": verdicts, "figures": {"memory": {"data": data, "layout": layout}}}


def _hover(plan: PlanResult, key: str) -> str:
    size, peak = plan.memory.parts.get(key, 0.0), plan.memory.peak_bytes
    share = f", {percent(size / peak)} of the peak" if peak else ""
    return f"<b>{label(plan.name)}</b><br>{label(words(key))}<br>{gib(size)}{share}"


SECTION = PageSection("memory", "Memory", build, TEMPLATE)
