"""A front as a plotly dict: marks by group, and a dotted line along the Pareto-optimal ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .figures import LEGEND, QUIET, value_axis


def marks(name: str, colour: str, x: Sequence[float], y: Sequence[float], texts: Sequence[str]) -> dict[str, Any]:
    """A trace of marks of one colour; ``name`` and ``texts`` are escaped already."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "marker": {"size": 11, "color": colour, "line": {"width": 1, "color": "#ffffff"}},
        "hovertext": list(texts),
        "hoverinfo": "text",
    }


def front_line(name: str, points: Sequence[tuple[float, float]], shape: str) -> dict[str, Any]:
    """A dotted trace from left to right; ``shape`` orders its steps: ``hv`` first along, ``vh`` first up or down."""
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [x for x, _ in points],
        "y": [y for _, y in points],
        "line": {"color": QUIET, "width": 1.5, "dash": "dot", "shape": shape},
        "hoverinfo": "skip",
    }


def front_figure(traces: Sequence[dict[str, Any]], x_axis: dict[str, Any], y_title: str) -> dict[str, Any]:
    """Traces of marks, and of the line, in one figure."""
    layout = {"height": 430, "xaxis": x_axis, "yaxis": value_axis(y_title), "legend": LEGEND, "showlegend": True}
    return {"data": list(traces), "layout": layout}
