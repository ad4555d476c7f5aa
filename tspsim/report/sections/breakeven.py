"""The number of tokens from which on TSP moves fewer bytes than its rivals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tspsim.base.units import digits
from tspsim.report.numbers import label
from tspsim.report.view import LayerShape, View
from tspsim.step.result import PlanResult

from .section import PageSection

TEMPLATE = """
{% if shut %}<details><summary>Tokens from which on TSP moves fewer bytes than its rivals</summary>
{% endif %}{{ figure("breakeven", "Volume of TSP over that of a rival on as many GPUs, forward, at this model's g and F.
Blue: TSP moves fewer bytes; both move the same on the line; the cross is this scenario.", "Rival") }}
<p>{{ law }}</p>
{% if rows %}<div class="scroll"><table><thead><tr><th scope="col">TSP against</th>
<th scope="col">moves fewer bytes from</th>
<th scope="col">here, {{ here }}</th></tr></thead>
<tbody>{% for row in rows %}<tr><th scope="row">{{ row.name }}</th><td>{{ row.threshold }}</td><td>
{{ row.ratio }}</td></tr>{% endfor %}</tbody>
</table></div>{% endif %}
<p class="note">These are closed forms of the bytes alone (K and V as wide as the model's heads allow);
their time depends on links and overlap, above.</p>
{% if shut %}</details>{% endif %}
"""

COLUMNS, ROWS = 89, 61


def build(view: View) -> dict[str, Any] | None:
    """A map for every rival and a table of thresholds; None without a model's shape or a TSP plan. For a purchase the
    section is folded.
    """
    shape, tokens = view.shape, view.tokens_per_replica
    if shape is None or tokens is None or tokens <= 0:
        return None
    degree = max((int(plan.degrees.get("tsp", 1)) for plan in view.plans), default=1)
    if degree == 1:
        return None
    choices, rows = [], []
    for name, tensor, sequence in _rivals(view.plans, degree):
        choices.append({"label": name} | _map(shape, tokens, degree, tensor, sequence, name))
        limit = threshold(shape, degree, tensor, sequence)
        here = volume(shape, tokens, degree) / max(rival_volume(shape, tokens, tensor, sequence), 1e-300)
        rows.append(
            {
                "name": name,
                "threshold": "never" if limit is None else f"{limit:,.0f} tokens",
                "ratio": f"{here:.2f}× the bytes",
            }
        )
    return {
        "figures": {"breakeven": {"choices": choices}},
        "rows": rows,
        "here": f"{tokens:,} tokens",
        "law": _law(shape),
        "shut": bool(view.result.scenario.get("project")),
    }


def volume(shape: LayerShape, tokens: float, degree: int) -> float:
    """Elements a rank receives in a layer's forward under TSP.

    [(2 + 2/g)·h·a + 2·BS·a/g + n·F·h²]·(D−1)/D with n = 3 matrices of a gated FFN, 2 otherwise.
    """
    return (_weights(shape) + 2 * tokens * shape.attention_width / shape.group) * (degree - 1) / degree


def rival_volume(shape: LayerShape, tokens: float, tensor: int, sequence: int) -> float:
    """Elements a rank receives in a layer's forward under TP of degree T and SP of degree Σ.

    4·(T−1)/T·BS·h/Σ + 2·BS·a/(g·T)·(Σ−1)/Σ.
    """
    reduced = 4 * (tensor - 1) / tensor * tokens * shape.hidden / sequence
    gathered = 2 * tokens * shape.attention_width / (shape.group * tensor) * (sequence - 1) / sequence
    return reduced + gathered


def threshold(shape: LayerShape, degree: int, tensor: int, sequence: int) -> float | None:
    """BS above which TSP of degree D moves fewer bytes; None when it never does.

    Against TP alone, with a = h: BS = [(2 + 2/g) + 3F]·h / (4 − 2/g), which is 8h for g = 1, F = 4.
    """
    slope = 2 * shape.attention_width / shape.group * (degree - 1) / degree
    gained = rival_volume(shape, 1.0, tensor, sequence) - slope
    return _weights(shape) * (degree - 1) / degree / gained if gained > 1e-12 * slope else None


def _weights(shape: LayerShape) -> float:
    """Elements of a layer's attention and FFN matrices."""
    attention = (2 + 2 / shape.group) * shape.hidden * shape.attention_width
    return attention + shape.matrices * shape.ffn * shape.hidden


def _rivals(plans: tuple[PlanResult, ...], degree: int) -> list[tuple[str, int, int]]:
    """The scenario's plans of tensor and sequence parallelism on as many GPUs; TP alone always comes first."""
    rivals = [(f"TP{degree}", degree, 1)]
    for plan in plans:
        tensor, sequence = int(plan.degrees.get("tp", 1)), int(plan.degrees.get("sp", 1))
        if tensor * sequence == degree and all(entry[1:] != (tensor, sequence) for entry in rivals):
            rivals.append((plan.name, tensor, sequence))
    return rivals


def _map(shape: LayerShape, tokens: int, degree: int, tensor: int, sequence: int, name: str) -> dict[str, Any]:
    """The heat map against one rival, with the line of equal volumes and the scenario's point."""
    low, high = min(10, math.floor(math.log2(tokens)) - 1), max(21, math.ceil(math.log2(tokens)) + 1)
    widths = [2.0 ** (10 + 5 * row / (ROWS - 1)) for row in range(ROWS)]
    counts = [2.0 ** (low + (high - low) * column / (COLUMNS - 1)) for column in range(COLUMNS)]
    ratios = [
        [volume(scaled, count, degree) / rival_volume(scaled, count, tensor, sequence) for count in counts]
        for scaled in (_scaled(shape, width) for width in widths)
    ]
    line = [(threshold(_scaled(shape, width), degree, tensor, sequence), width) for width in widths]
    inside = [(limit, width) for limit, width in line if limit and counts[0] <= limit <= counts[-1]]
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": counts,
            "y": widths,
            "z": [[round(math.log2(ratio), 3) for ratio in row] for row in ratios],
            "customdata": [[round(ratio, 3) for ratio in row] for row in ratios],
            "zmin": -2,
            "zmax": 2,
            "colorscale": [[0, "#0072b2"], [0.5, "#f4f4f2"], [1, "#d55e00"]],
            "colorbar": {
                "title": {"text": "bytes, TSP / rival", "side": "right"},
                "tickvals": [-2, -1, 0, 1, 2],
                "ticktext": ["¼×", "½×", "1×", "2×", "4×"],
                "thickness": 12,
                "outlinewidth": 0,
            },
            "hovertemplate": "B·S %{x:,.0f}, h %{y:,.0f}<br>TSP moves %{customdata}× the bytes<extra/>",
        }
    ]
    if inside:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [x for x, _ in inside],
                "y": [y for _, y in inside],
                "line": {"color": "#111111", "width": 2.5},
                "hoverinfo": "skip",
            }
        )
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [tokens],
            "y": [shape.hidden],
            "marker": {"symbol": "x", "size": 13, "color": "#111111", "line": {"color": "#ffffff", "width": 2}},
            "hovertext": [f"this scenario against {label(name)}: B·S {tokens:,}, h {shape.hidden:,.0f}"],
            "hoverinfo": "text",
        }
    )
    layout = {
        "height": 440,
        "showlegend": False,
        "xaxis": _logarithmic("B·S, tokens of a replica (log scale)", range(low, high + 1), _power),
        "yaxis": _logarithmic("hidden size h (log scale)", range(10, 16), lambda exponent: f"{2**exponent}"),
    }
    return {"data": data, "layout": layout}


def _logarithmic(title: str, exponents: range, text: Callable[[int], str]) -> dict[str, Any]:
    """A logarithmic axis marked at powers of two."""
    return {
        "type": "log",
        "title": {"text": title, "standoff": 8},
        "tickmode": "array",
        "tickvals": [2**exponent for exponent in exponents],
        "ticktext": [text(exponent) for exponent in exponents],
        "range": [exponents[0] * math.log10(2), exponents[-1] * math.log10(2)],
        "automargin": True,
        "fixedrange": True,
        "showgrid": False,
    }


def _scaled(shape: LayerShape, hidden: float) -> LayerShape:
    """The same proportions at another hidden size."""
    return LayerShape(hidden, shape.attention_ratio * hidden, shape.group, shape.ffn_ratio * hidden, shape.matrices)


def _power(exponent: int) -> str:
    return f"{2 ** (exponent - 10)}Ki" if exponent < 20 else f"{2 ** (exponent - 20)}Mi"


def _law(shape: LayerShape) -> str:
    """The condition against TP alone, with the model's numbers."""
    group, factor = shape.group, f"{shape.matrices}F"
    if shape.attention_ratio == 1:
        formula, given = f"[(2 + 2/g) + {factor}]·h / (4 − 2/g)", ""
    else:
        formula = f"[(2 + 2/g)·α + {factor}]·h / (4 − 2α/g)"
        given = f", α = a/h = {digits(shape.attention_ratio)}"
    given = f"g = {group:g}, F = {digits(shape.ffn_ratio)}{given}"
    limit = threshold(shape, 2, 2, 1)
    if limit is None:
        return f"With {given} TSP never moves fewer bytes than TP alone."
    return (
        f"TSP moves fewer bytes than TP alone exactly when B·S > {formula}; with {given} that is "
        f"{limit / shape.hidden:.2f}·h = {limit:,.0f} tokens."
    )


SECTION = PageSection("breakeven", "Break-even of TSP", build, TEMPLATE, short="Break-even")
