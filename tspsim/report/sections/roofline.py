"""Kernels of a serving step by arithmetic intensity, under the device's roofs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tspsim.base.units import compact, digits, percent
from tspsim.report.figures import LEGEND, colours, in_order
from tspsim.report.numbers import label, words
from tspsim.report.view import View
from tspsim.step.result import PlanResult

from .section import PageSection

TEMPLATE = """
{{ figure("roofline", "Kernels that follow each other without a wait are one mark, as large as their share of the step:
FLOPs per byte of HBM against achieved FLOP/s. The slope is HBM's bandwidth, the flat lines are dense peaks. Marks far
below both have another limit: launches, few rows, small transfers.", "Plan") }}
<details><summary>The same as a table</summary><div class="scroll"><table>
  <thead><tr><th scope="col">{{ name }}</th><th scope="col">share of the step</th><th scope="col">FLOPs a byte</th>
  <th scope="col">FLOP/s</th><th scope="col">of the roof</th></tr></thead>
  <tbody>{% for row in rows %}<tr><th scope="row">{{ row.name }}</th>{% for cell in row.cells %}<td>{{ cell }}</td>
  {% endfor %}</tr>{% endfor %}</tbody>
</table></div></details>
<p class="note">Kernels without GEMMs (norms, copies, sampling) count no FLOPs and have no mark. Data in a cache of the
device may lie above HBM's slope.</p>
"""

#: Size of a mark in pixels: the smallest, and the addition for a share of the whole step.
SMALLEST, LARGEST = 7.0, 60.0


@dataclass(frozen=True)
class RooflineMark:
    """Kernels of one name and shape: FLOPs per byte, FLOP/s, share of the step, and the peak above them."""

    name: str
    kind: str
    shape: str
    intensity: float
    flops_per_s: float
    share: float
    peak_flops_per_s: float

    def roof(self, hbm_bytes_per_s: float) -> float:
        """The limit of FLOP/s by HBM and by the peak."""
        return min(self.intensity * hbm_bytes_per_s, self.peak_flops_per_s)


def build(view: View) -> dict[str, Any] | None:
    """One figure per plan; None for steps that do not serve, or without timelines."""
    hbm, peaks = view.device.get("hbm_bytes_per_s"), view.device.get("peak_flops_per_s")
    if view.load is None or not hbm or not peaks:
        return None
    drawn = {plan.name: marks(plan, peaks) for plan in view.ran if plan.timeline is not None}
    drawn = {name: of_plan for name, of_plan in drawn.items() if of_plan}
    best = view.best
    if not drawn or best is None or best.name not in drawn:
        return None
    first = sorted(drawn, key=lambda name: name != best.name)
    return {
        "name": best.name,
        "rows": [_row(mark, hbm) for mark in sorted(drawn[best.name], key=lambda mark: -mark.share)],
        "figures": {"roofline": {"choices": [{"label": name} | _figure(drawn[name], hbm, peaks) for name in first]}},
    }


def marks(plan: PlanResult, peaks: Mapping[str, float]) -> list[RooflineMark]:
    """One mark per name and shape of kernels with FLOPs; shares are means over ranks."""
    import numpy as np

    timeline = plan.timeline
    assert timeline is not None
    labels, number = timeline.kinds()
    columns = timeline.columns()
    sizes = {member.representative: member.size for member in plan.classes}
    weight = np.array([sizes.get(rank, 1) for rank in columns["rank"].tolist()], dtype=float)
    total = sum(sizes.values()) or len(set(columns["rank"].tolist()))
    spent = np.bincount(number, weights=weight * (columns["end_s"] - columns["start_s"]), minlength=len(labels))
    by_kernel: dict[tuple[str, str], list[float]] = {}
    kinds: dict[tuple[str, str], str] = {}
    for entry, spent_s in zip(labels, spent.tolist(), strict=True):
        if entry.is_compute and entry.flops > 0.0 and entry.size_bytes > 0.0 and entry.alone_s > 0.0 and spent_s > 0.0:
            key = (entry.name, entry.shape)
            kinds[key] = entry.kind
            sums = by_kernel.setdefault(key, [entry.flops / entry.size_bytes, entry.flops / entry.alone_s, 0.0])
            sums[2] += spent_s / total / plan.step_time_s
    return [
        RooflineMark(name, kinds[name, shape], shape, intensity, reached, share, _peak(shape, peaks))
        for (name, shape), (intensity, reached, share) in by_kernel.items()
    ]


def _peak(shape: str, peaks: Mapping[str, float]) -> float:
    """The peak of the fastest type that a shape names; of bf16 where it names none."""
    named = [rate for dtype, rate in peaks.items() if re.search(rf"\b{dtype}\b", shape)]
    return max(named, default=peaks.get("bf16", max(peaks.values())))


def _row(mark: RooflineMark, hbm: float) -> dict[str, Any]:
    of_roof = percent(mark.flops_per_s / mark.roof(hbm), decimals=0)
    cells = [percent(mark.share), digits(mark.intensity), compact(mark.flops_per_s, "FLOP/s"), of_roof]
    return {"name": mark.name, "cells": cells}


def _figure(shown: Sequence[RooflineMark], hbm: float, peaks: Mapping[str, float]) -> dict[str, Any]:
    kinds = in_order(mark.kind for mark in shown)
    tone = colours(kinds)
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": label(words(kind)),
            "x": [mark.intensity for mark in shown if mark.kind == kind],
            "y": [mark.flops_per_s for mark in shown if mark.kind == kind],
            "marker": {
                "size": [SMALLEST + LARGEST * math.sqrt(mark.share) for mark in shown if mark.kind == kind],
                "color": tone[kind],
                "opacity": 0.8,
                "line": {"width": 1, "color": "#ffffff"},
            },
            "hovertext": [_hover(mark, hbm) for mark in shown if mark.kind == kind],
            "hoverinfo": "text",
        }
        for kind in kinds
    ]
    used = sorted({mark.peak_flops_per_s for mark in shown})
    named = {rate: next(dtype for dtype, value in peaks.items() if value == rate) for rate in used}
    left = min(*(mark.intensity for mark in shown), used[0] / hbm) / 2.0
    right = max(*(mark.intensity for mark in shown), used[-1] / hbm) * 4.0
    roofs = [_line(f"HBM, {compact(hbm, 'B/s')}", [left, used[-1] / hbm], [left * hbm, used[-1]], "solid")]
    roofs += [
        _line(f"{named[rate]} peak, {compact(rate, 'FLOP/s')}", [rate / hbm, right], [rate, rate], "dash")
        for rate in used
    ]
    lowest = min(mark.flops_per_s for mark in shown)
    axis = {"type": "log", "automargin": True, "fixedrange": True, "zeroline": False}
    layout = {
        "height": 440,
        "hovermode": "closest",
        "xaxis": {
            **axis, "title": {"text": "FLOPs a byte of HBM", "standoff": 8}, **_ticks(left, right, 3, ""),
            "range": [math.log10(left), math.log10(right)],
        },
        "yaxis": {
            **axis, "title": {"text": "FLOP/s", "standoff": 8}, **_ticks(lowest / 10.0, used[-1], 1, "FLOP/s"),
            "range": [math.log10(lowest) - 0.4, math.log10(used[-1]) + 0.3],
        },
        "showlegend": True,
        "legend": {**LEGEND, "itemsizing": "constant"},
    }  # fmt: skip
    return {"data": [*roofs, *data], "layout": layout}


def _ticks(low: float, high: float, between: int, unit: str) -> dict[str, Any]:
    """Powers of ten, and ``between`` times them, with their unit."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = sorted({factor * 10.0**power for power in decades for factor in (1, between)})
    shown = [value for value in values if low <= value <= high]
    return {"tickmode": "array", "tickvals": shown, "ticktext": [_spelled(value, unit) for value in shown]}


def _spelled(value: float, unit: str) -> str:
    return f"{compact(value, unit)}".replace(".00", "").replace("0.0 ", "0 ") if unit else f"{value:g}"


def _line(name: str, x: list[float], y: list[float], dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": label(name),
        "x": x,
        "y": y,
        "line": {"color": "THEME", "width": 1.5, "dash": dash},
        "hoverinfo": "name",
    }


def _hover(mark: RooflineMark, hbm: float) -> str:
    shapes = [label(shape, 70) for shape in mark.shape.split("; ")]
    said = (
        f"{percent(mark.share)} of the step",
        f"{digits(mark.intensity)} FLOPs a byte, {compact(mark.flops_per_s, 'FLOP/s')}",
        f"{percent(mark.flops_per_s / mark.roof(hbm), decimals=0)} of the roof",
    )
    return "<br>".join([f"<b>{label(mark.name)}</b>", *said, *shapes])


SECTION = PageSection("roofline-section", "Kernels under the roofline", build, TEMPLATE, short="Roofline")
