"""A front as a plotly dict: marks by group, and a dotted line along the Pareto-optimal ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .figures import LEGEND, QUIET, value_axis


@dataclass(frozen=True)
class Marks:
    """Marks of one colour; ``name`` and ``texts`` are escaped already."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    texts: Sequence[str]


@dataclass(frozen=True)
class FrontLine:
    """The front from left to right; ``shape`` orders its steps: ``hv`` first along, ``vh`` first up or down."""

    name: str
    points: Sequence[tuple[float, float]]
    shape: str

    def trace(self) -> dict[str, Any]:
        """The line: dotted, without hover texts."""
        return {
            "type": "scatter",
            "mode": "lines",
            "name": self.name,
            "x": [x for x, _ in self.points],
            "y": [y for _, y in self.points],
            "line": {"color": QUIET, "width": 1.5, "dash": "dot", "shape": self.shape},
            "hoverinfo": "skip",
        }


def front_figure(groups: Sequence[Marks], line: FrontLine, x_axis: dict[str, Any], y_title: str) -> dict[str, Any]:
    """Marks and line in one figure."""
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": marks.name,
            "x": list(marks.x),
            "y": list(marks.y),
            "marker": {"size": 11, "color": marks.colour, "line": {"width": 1, "color": "#ffffff"}},
            "hovertext": list(marks.texts),
            "hoverinfo": "text",
        }
        for marks in groups
    ]
    traces.append(line.trace())
    layout = {"height": 430, "xaxis": x_axis, "yaxis": value_axis(y_title), "legend": LEGEND, "showlegend": True}
    return {"data": traces, "layout": layout}
