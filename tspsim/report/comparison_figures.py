"""Pictures of a comparison as plotly dicts: cost against speed, scaling curves, tornados."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tspsim.base.units import compact, digits, percent
from tspsim.studies.front import front_of

from .figures import ACCENT, ALARM, LEGEND, QUIET, bars, category_axis, value_axis
from .fronts import front_figure, front_line, marks
from .numbers import label

if TYPE_CHECKING:
    from tspsim.studies.purchase.decision import Decision
    from tspsim.studies.purchase.row import OfferRow
    from tspsim.studies.uncertainty import Verdict

#: Colours of Okabe and Ito (2008), then darker relatives.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a94a6", "#882255", "#999933")


def colour_of(names: Sequence[str]) -> Mapping[str, str]:
    """A colour per name, the same in every figure of the page."""
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(dict.fromkeys(names))}


def pareto(points: Sequence[tuple[str, str, float, float]], colours: Mapping[str, str], price: str) -> dict[str, Any]:
    """Cost against speed: one mark per plan, and the Pareto front.

    Parameters
    ----------
    points
        Offer, plan, dollars per million tokens, tokens/s/GPU.
    """
    traces = []
    for offer in dict.fromkeys(point[0] for point in points):
        own = [point for point in points if point[0] == offer]
        texts = [
            f"<b>{label(offer)}, {label(plan)}</b><br>{digits(usd)} $/M tokens<br>{compact(rate)} tokens/s/GPU"
            for _, plan, usd, rate in own
        ]
        traces.append(marks(label(offer, 24), colours[offer], [p[2] for p in own], [p[3] for p in own], texts))
    front = sorted(front_of([(usd, rate) for _, _, usd, rate in points], lambda point: (-point[0], point[1])))
    line = front_line("no plan is cheaper and faster", front, "hv")
    x_axis = value_axis(f"$/M tokens, {price}", rangemode="normal")
    return front_figure([*traces, line], x_axis, "tokens/s/GPU")


#: A curve of efficiency: name, colour, GPUs, shares of the ideal, hover texts, and symbols of the marks.
Curve = tuple[str, str, Sequence[float], Sequence[float], Sequence[str], Sequence[str] | None]


def efficiency_figure(curves: Sequence[Curve]) -> dict[str, Any]:
    """Efficiency over GPUs, from the worst curve's value to a little above the ideal, which is a line; the loss at the
    last point stands beside it. Names and texts are escaped already."""
    traces: list[dict[str, Any]] = []
    sides = _apart([shares[-1] for _, _, _, shares, _, _ in curves])
    for side, (name, colour, gpus, shares, texts, symbols) in zip(sides, curves, strict=True):
        lost = 1.0 - shares[-1]
        last = f" {'−' if lost > 0 else '+'}{percent(abs(lost))}" if abs(lost) >= 0.0005 else " 0 %"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers+text",
                "name": name,
                "x": list(gpus),
                "y": [100.0 * share for share in shares],
                "line": {"color": colour, "width": 2},
                "marker": {"size": 9, "symbol": list(symbols) if symbols else "circle"},
                "text": [*[""] * (len(shares) - 1), last],
                "textposition": [side] * len(shares),
                "textfont": {"color": "THEME", "size": 12},
                "cliponaxis": False,
                "hovertext": list(texts),
                "hoverinfo": "text",
            }
        )
    sizes = sorted({x for trace in traces for x in trace["x"]})
    heights = [y for trace in traces for y in trace["y"]]
    room = max(0.5, 0.12 * (max(*heights, 100.0) - min(heights)))
    ideal = {"color": QUIET, "dash": "dot", "width": 1.5}
    layout = {
        "height": 400,
        "margin": {"r": 76},
        "xaxis": {
            "type": "log",
            "title": {"text": "GPUs", "standoff": 8},
            "automargin": True,
            "fixedrange": True,
            **_powers(sizes),
        },
        "yaxis": value_axis(
            "% of ideal", rangemode="normal", range=[max(0.0, min(heights) - room), max(*heights, 100.0) + room]
        ),
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 100, "y1": 100, "line": ideal}],
        "legend": LEGEND,
        "showlegend": True,
    }
    return {"data": traces, "layout": layout}


def _apart(ends: Sequence[float]) -> list[str]:
    """Position of the text at the end of each curve: of two that would overlap, one above and one below."""
    sides = ["middle right"] * len(ends)
    ranked = sorted(range(len(ends)), key=lambda index: -ends[index])
    near = 0.05 * max(1.0 - min(ends, default=1.0), 0.01)
    for upper, lower in pairwise(ranked):
        if ends[upper] - ends[lower] < near and sides[upper] == "middle right":
            sides[upper], sides[lower] = "top right", "bottom right"
    return sides


def _powers(sizes: Sequence[float]) -> dict[str, Any]:
    """Ticks at the sizes of machines; where they are many, at every other power of two."""
    if len(sizes) <= 8:
        return {"tickmode": "array", "tickvals": list(sizes), "ticktext": [f"{size:,.0f}" for size in sizes]}
    ticks = [2**power for power in range(1, 21, 2) if sizes[0] <= 2**power <= sizes[-1]]
    return {"tickmode": "array", "tickvals": ticks, "ticktext": [f"{size:,}" for size in ticks]}


def scaling(rows: Sequence[OfferRow], colours: Mapping[str, str]) -> list[dict[str, Any]]:
    """Weak and strong efficiency against the ideal of 100 %, over GPUs; open marks have groups across nodes."""
    choices = []
    for kind, words in (("weak", "weak: more nodes, more replicas"), ("strong", "strong: more nodes, the same work")):
        curves: list[Curve] = []
        for row in rows:
            points = row.weak if kind == "weak" else row.strong
            if not points:
                continue
            texts = [
                f"<b>{label(row.name)}</b><br>{point.gpus:,} GPUs in {point.nodes:,} nodes<br>"
                f"{compact(point.tokens_per_s)} tokens/s<br>{percent(point.efficiency)} of ideal"
                + ("<br>groups cross nodes" if point.crosses else "")
                for point in points
            ]
            symbols = ["circle-open" if point.crosses else "circle" for point in points]
            gpus, shares = [point.gpus for point in points], [point.efficiency for point in points]
            curves.append((label(row.name, 24), colours[row.name], gpus, shares, texts, symbols))
        if curves:
            choices.append({"label": words, **efficiency_figure(curves)})
    return choices


def tornado(verdict: Verdict, most: int = 10) -> dict[str, Any]:
    """The effect of each uncertain factor alone on the ratio of the winner to a rival."""
    swings = verdict.tornado[:most]
    names = [swing.factor for swing in swings]
    traces = []
    for words, colour, values in (
        ("low end of its range", ACCENT, [swing.at_low for swing in swings]),
        ("high end", ALARM, [swing.at_high for swing in swings]),
    ):
        texts = [
            f"<b>{label(name)}</b><br>at the {words}: {value:.3f}" for name, value in zip(names, values, strict=True)
        ]
        changes = [value - verdict.ratio for value in values]
        traces.append(bars(words, changes, colour, texts, base=[verdict.ratio] * len(values)))
    everything = [1.0, verdict.ratio, *(end for swing in swings for end in (swing.at_low, swing.at_high))]
    room = 0.05 * (max(everything) - min(everything))
    layout = {
        "barmode": "overlay",
        "bargap": 0.35,
        "height": 130 + 36 * len(names),
        "xaxis": value_axis(
            f"{label(verdict.a, 20)} over {label(verdict.b, 20)}",
            rangemode="normal",
            range=[min(everything) - room, max(everything) + room],
        ),
        "yaxis": category_axis(names, "uncertain factor"),
        "legend": {**LEGEND, "traceorder": "normal"},
        "showlegend": True,
        "shapes": [
            {
                "type": "line",
                "x0": 1,
                "x1": 1,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": QUIET, "dash": "dot"},
            }
        ],
    }
    return {"label": f"against {verdict.b}", "data": traces, "layout": layout}


def tornados(decision: Decision) -> list[dict[str, Any]]:
    """One tornado per rival, the nearest first."""
    return [tornado(verdict) for verdict in decision.verdicts if verdict.tornado]
