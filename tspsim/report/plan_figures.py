"""Pictures of the planner's answer as plotly dicts: two steps side by side, the front, the map of TSP."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tspsim.base.units import GIB, compact

from .figures import ACCENT, ALARM, bars, bars_layout, value_axis
from .fronts import front_figure, front_line, marks
from .numbers import label, seconds
from .plan import verdict

if TYPE_CHECKING:
    from tspsim.studies.planner import Planned

#: Colours of Okabe and Ito (2008).
COLOURS = ("#0072b2", "#8a94a6", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#882255")


def steps(planned: Planned) -> dict[str, Any]:
    """Both steps as stacked bars of their parts."""
    names = [planned.best[0].candidate.name, planned.rival]
    order = sorted(planned.why, key=lambda part: (part.name != "compute", part.name))
    traces = [
        bars(
            part.name,
            (part.best_s, part.other_s),
            COLOURS[index % len(COLOURS)],
            [f"<b>{label(part.name)}</b><br>{seconds(value)}" for value in (part.best_s, part.other_s)],
        )
        for index, part in enumerate(order)
    ]
    return {"data": traces, "layout": bars_layout(names, "seconds a step")}


def front(planned: Planned) -> dict[str, Any]:
    """Rate over memory left: best plans, stated ones, and the front."""
    stated = [(e.name, e.result) for e in planned.stated if e.result is not None and e.result.ran]
    groups = (
        ("best", ACCENT, [(f.candidate.name, f.result) for f in planned.best]),
        ("on the front", "#009e73", [(f.candidate.name, f.result) for f in planned.front if f not in planned.best]),
        ("stated", ALARM, stated),
    )
    traces = [
        marks(
            name,
            colour,
            [(r.memory.capacity_bytes - r.memory.peak_bytes) / GIB for _, r in plans],
            [r.tokens_per_s for _, r in plans],
            [f"<b>{label(n, 60)}</b><br>{compact(r.tokens_per_s)} tokens/s" for n, r in plans],
        )
        for name, colour, plans in groups
        if plans
    ]
    joined = sorted((f.headroom_bytes / GIB, f.result.tokens_per_s) for f in planned.front)
    line = front_line("front of the plans searched", joined, "vh")
    return front_figure([*traces, line], value_axis("memory left per GPU, GiB"), "tokens/s")


def scheme_map(planned: Planned) -> dict[str, Any]:
    """Sequence length against nodes: blue where TSP wins, orange where it loses."""
    cells = planned.scheme_map
    lengths = sorted({cell.sequence for cell in cells})
    nodes = sorted({cell.nodes for cell in cells})
    at = {(cell.sequence, cell.nodes): cell for cell in cells}

    def shade(ratio: float | None) -> float | None:
        """The shade of a ratio; a factor of two is the darkest."""
        if ratio is None:
            return None
        return max(-1.0, min(1.0, math.log2(ratio))) if 0.0 < ratio < math.inf else (1.0 if ratio else -1.0)

    def words(ratio: float | None) -> str:
        if ratio is None:
            return "–"
        return "only TSP" if ratio == math.inf else "only others" if not ratio else f"{ratio:.2f}"

    grid = [[at.get((length, count)) for length in lengths] for count in nodes]
    ratios = [[cell.ratio if cell is not None else None for cell in row] for row in grid]
    trace = {
        "type": "heatmap",
        "x": list(range(len(lengths))),
        "y": list(range(len(nodes))),
        "z": [[shade(ratio) for ratio in row] for row in ratios],
        "zmin": -1,
        "zmax": 1,
        "colorscale": [[0, "#e69f00"], [0.5, "#f2f2f2"], [1, "#0072b2"]],
        "showscale": False,
        "text": [[words(ratio) for ratio in row] for row in ratios],
        "hovertext": [[label(verdict(cell), 200) if cell is not None else "" for cell in row] for row in grid],
        "texttemplate": "%{text}",
        "textfont": {"color": "#1a1a1a"},
        "hoverinfo": "text",
        "xgap": 2,
        "ygap": 2,
    }
    tokens = [f"{length // 1024}Ki" if length % 1024 == 0 else str(length) for length in lengths]
    layout = {
        "height": 140 + 46 * len(nodes),
        "xaxis": _places(tokens, "tokens a sequence"),
        "yaxis": _places([f"{count:,}" for count in nodes], "nodes"),
    }
    return {"data": [trace], "layout": layout}


def _places(names: list[str], title: str) -> dict[str, Any]:
    return {
        "tickmode": "array",
        "tickvals": list(range(len(names))),
        "ticktext": [label(name) for name in names],
        "title": {"text": title, "standoff": 8},
        "automargin": True,
        "fixedrange": True,
        "showgrid": False,
        "zeroline": False,
    }
