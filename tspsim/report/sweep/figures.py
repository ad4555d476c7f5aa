"""Figures of a sweep as plotly dicts: lines over one axis, a heat map of two, parallel coordinates of more, scaling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tspsim.base.units import compact, percent
from tspsim.report.comparison_figures import efficiency_figure
from tspsim.report.figures import LEGEND, QUIET, bars, category_axis, plan_colour, value_axis
from tspsim.report.numbers import label

from .effects import Effect, ScalingLine, times
from .view import PLAN, Measure, SweepAxis, SweepRow, SweepView

#: Most lines of one figure, and of parallel coordinates; a reader cannot tell more apart.
MOST_LINES, MOST_STRANDS = 10, 400
#: From light to dark, for small to large values; readable on white and on black.
SHADES = ("#9fb4c4", "#6f9fc4", "#3f86bd", "#d9a441", "#d55e00")
SCALE = [[0.0, "#f2e9d8"], [0.5, "#6f9fc4"], [1.0, "#0b3c66"]]


def axis_layout(axis: SweepAxis) -> dict[str, Any]:
    """An axis of a figure: numbers on a line (logarithmic where they lie far apart), names side by side."""
    common = {"title": {"text": label(axis.title, 60), "standoff": 8}, "automargin": True, "fixedrange": True}
    texts = [label(axis.words(value), 24) for value in axis.values]
    if not axis.numeric:
        return common | {"tickmode": "array", "tickvals": list(range(len(axis.values))), "ticktext": texts}
    common["type"] = "log" if axis.geometric else "linear"
    if len(axis.values) <= 12:
        common |= {"tickmode": "array", "tickvals": list(axis.values), "ticktext": texts}
    return common


def place(axis: SweepAxis, row: SweepRow) -> float:
    """The position of a row on an axis."""
    value = row.coordinates[axis.path]
    return float(value) if axis.numeric and isinstance(value, int | float) else float(axis.values.index(value))


def lines(
    view: SweepView, axis: SweepAxis, measure: Measure, among: Sequence[SweepRow] | None = None
) -> dict[str, Any]:
    """A measure over one axis, one line for each plan and value of the other axes; refused points are gaps."""
    others = [other for other in (*view.axes, view.plans) if other is not axis]
    groups: dict[str, list[SweepRow]] = {}
    for row in view.rows if among is None else among:
        named = [
            f"{'' if other.path == PLAN else other.name + ' '}{other.words(row.coordinates[other.path])}"
            for other in others
            if len(other.values) > 1 or other.path == PLAN
        ]
        groups.setdefault(", ".join(filter(None, named)), []).append(row)
    best = {name: _best(view, rows, measure) for name, rows in groups.items()}
    kept = sorted(groups, key=lambda name: -best[name])[:MOST_LINES]
    traces: list[dict[str, Any]] = []
    for number, name in enumerate(group for group in groups if group in kept):
        ordered = sorted(groups[name], key=lambda row: place(axis, row))
        values = [view.value(row, measure) for row in ordered]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers" if axis.numeric else "markers",  # nothing lies between names
                "name": label(name, 40),
                "x": [place(axis, row) for row in ordered],
                "y": [None if math.isnan(value) else value for value in values],
                "connectgaps": False,
                "line": {"color": plan_colour(number), "width": 2},
                "marker": {"size": 7},
                "hovertext": [_hover(view, row, measure) for row in ordered],
                "hoverinfo": "text",
            }
        )
    positive = [y for trace in traces for y in trace["y"] if y is not None and y > 0]
    wide = (
        {"type": "log", "rangemode": "normal", "dtick": 1} if positive and max(positive) >= 20 * min(positive) else {}
    )
    layout = {
        "height": 430,
        "xaxis": axis_layout(axis),
        "yaxis": value_axis(label(measure.title), **wide),
        "legend": LEGEND,
        "showlegend": list(groups) != [""],
    }
    return {"data": traces, "layout": layout}


def left_out(view: SweepView, axis: SweepAxis) -> int:
    """Number of lines that the figure of lines leaves out."""
    others = [other.path for other in (*view.axes, view.plans) if other is not axis]
    return max(0, len({tuple(row.coordinates[path] for path in others) for row in view.rows}) - MOST_LINES)


def heat(view: SweepView, plan: str | None, measure: Measure) -> dict[str, Any]:
    """A measure over two axes, of one plan or (None) of the best plan of each cell; refused cells are crossed."""
    across, up = view.axes[:2]
    if across.numeric < up.numeric or (across.numeric == up.numeric and len(up.values) > len(across.values)):
        across, up = up, across
    ran_rows: dict[tuple[Cell2, Cell2], SweepRow] = {}
    refused: dict[tuple[Cell2, Cell2], SweepRow] = {}
    for row in view.rows:
        if plan is not None and row.plan != plan:
            continue
        key = (row.coordinates[across.path], row.coordinates[up.path])
        value = row.numbers.get(measure.column)
        if value is None:
            refused.setdefault(key, row)
        elif key not in ran_rows or (value > ran_rows[key].numbers[measure.column]) == measure.more:
            ran_rows[key] = row
    z, hover, words = [], [], []
    for y in up.values:
        rows = [(ran_rows.get((x, y)), refused.get((x, y))) for x in across.values]
        z.append([None if ran is None else view.value(ran, measure) for ran, _ in rows])
        hover.append([_hover(view, shown, measure) if (shown := ran or lost) else "" for ran, lost in rows])
        words.append(["×" if ran is None else measure.words(ran.numbers[measure.column]) for ran, _ in rows])
    cells = len(across.values) * len(up.values)
    trace = {
        "type": "heatmap",
        "z": z,
        "x": list(range(len(across.values))),
        "y": list(range(len(up.values))),
        "hovertext": hover,
        "hoverinfo": "text",
        "colorscale": SCALE,
        "reversescale": not measure.more,
        "xgap": 2,
        "ygap": 2,
        "colorbar": {"title": {"text": label(measure.title), "side": "right"}, "thickness": 14, "outlinewidth": 0},
        **({"text": words, "texttemplate": "%{text}"} if cells <= 120 else {}),
    }
    crossed = [(x, y) for y, values in enumerate(z) for x, value in enumerate(values) if value is None]
    crosses = {
        "type": "scatter",
        "mode": "text",
        "x": [x for x, _ in crossed],
        "y": [y for _, y in crossed],
        "text": ["×"] * len(crossed),
        "textfont": {"color": "THEME", "size": 15},
        "hovertext": [hover[y][x] or "not in the sweep" for x, y in crossed],
        "hoverinfo": "text",
        "showlegend": False,
    }
    layout = {
        "height": 150 + 44 * len(up.values),
        "xaxis": _named_axis(across),
        "yaxis": _named_axis(up),
        "showlegend": False,
        "margin": {"t": 20},
    }
    return {"data": [trace, *([crosses] if crossed else [])], "layout": layout}


#: The value of a coordinate.
Cell2 = int | float | bool | str | None


def _named_axis(axis: SweepAxis) -> dict[str, Any]:
    return {
        "title": {"text": label(axis.title, 60), "standoff": 8},
        "tickmode": "array",
        "tickvals": list(range(len(axis.values))),
        "ticktext": [label(axis.words(value), 20) for value in axis.values],
        "automargin": True,
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
    }


def strands(view: SweepView, measure: Measure) -> dict[str, Any]:
    """Parallel coordinates: one line per row through all axes and the measure; a darker line is better.

    They are lines of an ordinary figure: plotly's own need a compiler that the page's security policy forbids.
    """
    axes = [axis for axis in (*view.axes, view.plans) if len(axis.values) > 1]
    ordered = sorted(
        (row for row in view.ran if measure.column in row.numbers), key=lambda row: view.value(row, measure)
    )
    ordered = ordered if measure.more else ordered[::-1]
    shown = _thinned(ordered)
    values = [view.value(row, measure) for row in ordered]
    low, high = min(values), max(values)
    traces: list[dict[str, Any]] = []
    for shade, colour in enumerate(SHADES):
        mine = [row for at, row in enumerate(shown) if at * len(SHADES) // len(shown) == shade]
        x, y, hover = [], [], []
        for row in mine:
            at = [_height(axis, row.coordinates[axis.path]) for axis in axes]
            at.append((view.value(row, measure) - low) / (high - low) if high > low else 0.5)
            x += [*range(len(at)), None]
            y += [*at, None]
            hover += [*([_hover(view, row, measure)] * len(at)), ""]
        if not mine:
            continue
        what = "best fifth" if shade == len(SHADES) - 1 else "worst fifth" if shade == 0 else f"{shade + 1} of 5"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": what,
                "x": x,
                "y": y,
                "line": {"color": colour, "width": 1.2 + 0.45 * shade},
                "opacity": 0.55 + 0.11 * shade,
                "hovertext": hover,
                "hoverinfo": "text",
            }
        )
    traces.append(_ticks(axes, measure, low, high))
    titles = [axis.title for axis in axes] + [measure.title]
    layout = {
        "height": 470,
        "xaxis": {
            "tickmode": "array",
            "tickvals": list(range(len(titles))),
            "ticktext": [label(title, 26) for title in titles],
            "range": [-0.35, len(titles) - 0.5],
            "title": {"text": "swept values, then the measure", "standoff": 8},
            "automargin": True,
            "fixedrange": True,
            "showgrid": True,
            "zeroline": False,
        },
        "yaxis": {"visible": False, "range": [-0.06, 1.06], "fixedrange": True},
        "legend": LEGEND,
        "showlegend": True,
    }
    return {"data": traces, "layout": layout}


def _thinned(ordered: list[SweepRow]) -> list[SweepRow]:
    """As many rows as a reader can tell apart: evenly chosen from the worst to the best, both ends kept."""
    if len(ordered) <= MOST_STRANDS:
        return ordered
    step = (len(ordered) - 1) / (MOST_STRANDS - 1)
    return [ordered[round(number * step)] for number in range(MOST_STRANDS)]


def _height(axis: SweepAxis, value: Cell2) -> float:
    """The height of a value on its vertical axis, in [0, 1]; values are evenly spaced in the order of the sweep."""
    return axis.values.index(value) / (len(axis.values) - 1) if value in axis.values else math.nan


def _ticks(axes: Sequence[SweepAxis], measure: Measure, low: float, high: float) -> dict[str, Any]:
    """The labels beside the vertical axes."""
    x, y, text = [], [], []
    for number, axis in enumerate(axes):
        step = max(1, math.ceil(len(axis.values) / 8))
        for value in axis.values[::step]:
            x.append(number)
            y.append(_height(axis, value))
            text.append(f" {label(axis.words(value), 16)}")
    for share in (0.0, 0.5, 1.0):
        x.append(len(axes))
        y.append(share)
        text.append(f" {measure.words((low + share * (high - low)) / measure.scale)}")
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": x,
        "y": y,
        "text": text,
        "textposition": ["top right"] * len(x),  # above the lines that meet there
        "marker": {"size": 5, "color": QUIET},
        "textfont": {"color": "THEME", "size": 12},
        "hoverinfo": "skip",
        "showlegend": False,
        "cliponaxis": False,
    }


def reach(effects: Sequence[Effect], measure: Measure) -> dict[str, Any]:
    """The reach of each axis, a bar each."""
    names = [effect.axis.title for effect in effects]
    texts = [f"<b>{label(name)}</b><br>{times(effect.reach)}" for name, effect in zip(names, effects, strict=True)]
    trace = bars(
        "moves", [effect.reach for effect in effects], plan_colour(0), texts, text=[times(e.reach) for e in effects]
    )
    layout = {
        "height": 90 + 40 * len(names),
        "bargap": 0.4,
        "xaxis": value_axis(f"{label(measure.name)}: largest over smallest along the axis, all else equal"),
        "yaxis": category_axis(names, "axis"),
        "showlegend": False,
    }
    return {"data": [trace], "layout": layout}


def efficiency(lines: Sequence[ScalingLine]) -> dict[str, Any]:
    """Tokens/s/GPU over that of the smallest machine; the axis begins at the largest loss."""
    shown = sorted(lines, key=lambda line: line.loss)[:MOST_LINES]
    every = [
        (
            label(line.name, 40),
            plan_colour(number),
            [gpus for gpus, _, _ in line.points],
            [share for _, share, _ in line.points],
            [
                f"<b>{label(line.name)}</b><br>{gpus:,.0f} GPUs<br>{compact(rate)} tokens/s<br>"
                f"{percent(share)} of ideal"
                for gpus, share, rate in line.points
            ],
            None,
        )
        for number, line in enumerate(shown)
    ]
    return efficiency_figure(every)


def _best(view: SweepView, rows: Sequence[SweepRow], measure: Measure) -> float:
    values = [value for row in rows if not math.isnan(value := view.value(row, measure))]
    if not values:
        return -math.inf
    return max(values) if measure.more else -min(values)


def _hover(view: SweepView, row: SweepRow, measure: Measure) -> str:
    """The text beside the pointer at a row."""
    parts = [f"<b>{label(row.plan)}</b>"] if row.plan else []
    parts += [
        f"{label(axis.name)} {label(axis.words(row.coordinates[axis.path]))}" for axis in (*view.axes, *view.together)
    ]
    if row.error:
        return "<br>".join([*parts, f"refused: {label(row.error, 120)}"])
    if measure.column in row.numbers:
        parts.append(f"{measure.words(row.numbers[measure.column])} {label(measure.name)}")
    return "<br>".join(parts)


def choices(view: SweepView, draw: Any) -> Iterator[dict[str, Any]]:
    """One figure for each measure."""
    for measure in view.measures:
        yield {"label": measure.title, **draw(measure)}
