"""Plotly figures as plain dicts, and the few choices they all share.

Colours are those of Okabe and Ito (2008), which people of every colour vision can distinguish; compute is blue and
grey, each kind of communication has its own warm or green tone. Text from outside goes through
:func:`numbers.label`, and categories stand on numbered axes with tick texts, so that no name can be taken
for a number or a template.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .numbers import label

ACCENT = "#0072b2"
QUIET = "#5b7689"
ALARM = "#d55e00"

KIND_COLOURS: dict[str, str] = {
    "gemm": "#0072b2",
    "attention": "#56b4e9",
    "memory_bound": "#8a94a6",
    "all_gather": "#e69f00",
    "reduce_scatter": "#d9c229",
    "all_reduce": "#d55e00",
    "broadcast": "#009e73",
    "all_to_all": "#882255",
    "send_recv": "#cc79a7",
    "ring_shift": "#aa4499",
    "host": "#7a6f9b",
    "bubble": "#b9a7c9",
    "idle": "#c3c9d1",
}
#: Colours of lines and marks of plans.
_PLAN_COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#aa4499", "#999933", "#44aa99", "#8a94a6",
)  # fmt: skip
_MORE_COLOURS = ("#44aa99", "#999933", "#6699cc", "#661100", "#ddcc77")


def colour(kind: str, position: int = 0) -> str:
    """The colour of a kind of work; other kinds get a colour of a second palette, by position."""
    return KIND_COLOURS.get(kind, _MORE_COLOURS[position % len(_MORE_COLOURS)])


def plan_colour(place: int) -> str:
    """The colour of the plan at a place of a figure."""
    return _PLAN_COLOURS[place % len(_PLAN_COLOURS)]


def colours(kinds: Sequence[str]) -> dict[str, str]:
    """A colour for every kind, the same in every figure."""
    strange = [kind for kind in kinds if kind not in KIND_COLOURS]
    return {kind: colour(kind, strange.index(kind) if kind in strange else 0) for kind in kinds}


def in_order(kinds: Iterable[str]) -> list[str]:
    """Kinds without repetition, in the order of the palette; other kinds last, as they came."""
    palette = list(KIND_COLOURS)
    return sorted(dict.fromkeys(kinds), key=lambda kind: palette.index(kind) if kind in KIND_COLOURS else len(palette))


def category_axis(names: Sequence[str], title: str, **more: Any) -> dict[str, Any]:
    """An axis of names: numbered places, the first at the top, texts escaped; ``title`` names the category."""
    return {
        "title": {"text": title, "standoff": 8},
        "tickmode": "array",
        "tickvals": list(range(len(names))),
        "ticktext": [label(name, 28) for name in names],
        "range": [len(names) - 0.5, -0.5],
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
        "fixedrange": True,
        **more,
    }


def value_axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis of numbers with its unit in the title, from zero."""
    return {
        "title": {"text": title, "standoff": 8},
        "rangemode": "tozero",
        "automargin": True,
        "fixedrange": True,
        "zeroline": False,
        **more,
    }


#: A legend in a row above the figure.
LEGEND = {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"}


def bars(name: str, values: Sequence[float], colour: str, texts: Sequence[str], **more: Any) -> dict[str, Any]:
    """One series of horizontal bars, one per row; ``name`` and the hover ``texts`` are escaped already."""
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": list(values),
        "y": list(range(len(values))),
        "marker": {"color": colour},
        "hovertext": list(texts),
        "hoverinfo": "text",
        **more,
    }


def limit(name: str, value: float, rows: int) -> dict[str, Any]:
    """An upper limit of bars: a dashed line across ``rows`` of them."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [value, value],
        "y": [-0.5, rows - 0.5],
        "line": {"color": ALARM, "width": 2.5, "dash": "dash"},
        "hoverinfo": "name",
    }


def plan_line(
    name: str, place: int, points: Sequence[tuple[float, float]], texts: Sequence[str], **more: Any
) -> dict[str, Any]:
    """A plan's points, joined by a line in the colour of its place; ``texts`` are escaped already."""
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": label(name),
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": plan_colour(place), "width": 2},
        "hovertext": list(texts),
        "hoverinfo": "text",
        **more,
    }


#: Marks closer than this share of both axes get one text.
NEAR = 0.035


def beside(points: Sequence[tuple[float, float]], texts: Sequence[str]) -> dict[str, Any]:
    """Texts beside the marks of a line, without those that would overlap another.

    >>> beside([(1, 1), (1.001, 1), (9, 9)], ["a", "b", "c"])["text"]
    ['a', '', 'c']
    """
    wide, high = (NEAR * max((abs(point[axis]) for point in points), default=0.0) for axis in (0, 1))
    named: list[tuple[float, float]] = []
    words = []
    for (x, y), text in zip(points, texts, strict=True):
        free = all(abs(x - other[0]) > wide or abs(y - other[1]) > high for other in named)
        words.append(text if free else "")
        named += [(x, y)] if free else []
    style = {"text": words, "textposition": "top right", "textfont": {"size": 11}}
    return {"mode": "lines+markers+text", **style, "cliponaxis": False}


def totals(values: Sequence[float], texts: Sequence[str]) -> dict[str, Any]:
    """The total of each stack, at its end."""
    return {
        "type": "scatter",
        "mode": "text",
        "x": list(values),
        "y": list(range(len(values))),
        "text": [f" {text}" for text in texts],
        "textposition": "middle right",
        "textfont": {"color": "THEME"},
        "cliponaxis": False,
        "hoverinfo": "skip",
        "showlegend": False,
    }


def bars_layout(
    names: Sequence[str],
    title: str,
    *,
    rows: str = "plan",
    row_height: int = 44,
    legend: bool = True,
    places: Sequence[int] = (),
) -> dict[str, Any]:
    """The layout of horizontal bars, one row per name; ``rows`` is the title of their axis.

    ``places`` are the rows' places in the scenario. Where they are not in order, ``meta.rows`` has for the page's
    script the row of each place.
    """
    stated = sorted(places)
    moved = {"meta": {"rows": [stated.index(place) for place in places]}} if stated != list(places) else {}
    return moved | {
        "barmode": "stack",
        "margin": {"r": 84},
        "bargap": 0.35,
        "height": 90 + row_height * len(names) + (44 if legend else 0),
        "xaxis": value_axis(title),
        "yaxis": category_axis(names, rows),
        "showlegend": legend,
        "legend": {**LEGEND, "traceorder": "normal"},
    }
