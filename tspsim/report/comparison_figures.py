"""Pictures of a comparison as plotly dicts: cost against speed, scaling curves, tornados."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tspsim.studies.front import front_of
from tspsim.units import compact, digits, percent

from .figures import ACCENT, ALARM, LEGEND, QUIET, bars, category_axis, value_axis
from .fronts import Line, Marks, front_figure
from .numbers import label

if TYPE_CHECKING:
    from tspsim.studies.purchase.decision import Decision
    from tspsim.studies.purchase.row import Row
    from tspsim.studies.uncertainty import Verdict

#: Colours of Okabe and Ito (2008), then darker relatives.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a94a6", "#882255", "#999933")


def colour_of(names: Sequence[str]) -> Mapping[str, str]:
    """A colour a name, the same in every figure of the page."""
    return {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(dict.fromkeys(names))}


def pareto(points: Sequence[tuple[str, str, float, float]], colours: Mapping[str, str], price: str) -> dict[str, Any]:
    """Cost against speed, one mark a plan, and the plans that no other beats in both.

    Parameters
    ----------
    points
        Offer, plan, dollars a million tokens, tokens/s/GPU.
    """
    groups = []
    for offer in dict.fromkeys(point[0] for point in points):
        own = [point for point in points if point[0] == offer]
        texts = [
            f"<b>{label(offer)}, {label(plan)}</b><br>{digits(usd)} $ a million tokens<br>{compact(rate)} tokens/s/GPU"
            for _, plan, usd, rate in own
        ]
        groups.append(Marks(label(offer, 24), colours[offer], [p[2] for p in own], [p[3] for p in own], texts))
    front = sorted(front_of([(usd, rate) for _, _, usd, rate in points], lambda point: (-point[0], point[1])))
    line = Line("nobody is cheaper and faster", front, "hv")
    x_axis = value_axis(f"$ a million tokens, {price}", rangemode="normal")
    return front_figure(groups, line, x_axis, "tokens/s/GPU")


def scaling(rows: Sequence[Row], colours: Mapping[str, str]) -> list[dict[str, Any]]:
    """Weak and strong efficiency against the ideal of one, over GPUs; open marks have groups across nodes."""
    choices = []
    for kind, words in (("weak", "weak: more nodes, more replicas"), ("strong", "strong: more nodes, the same work")):
        traces: list[dict[str, Any]] = []
        for row in rows:
            points = row.weak if kind == "weak" else row.strong
            if not points:
                continue
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": label(row.name, 24),
                    "x": [point.gpus for point in points],
                    "y": [100.0 * point.efficiency for point in points],
                    "line": {"color": colours[row.name], "width": 2},
                    "marker": {"size": 9, "symbol": ["circle-open" if point.crosses else "circle" for point in points]},
                    "hovertext": [
                        f"<b>{label(row.name)}</b><br>{point.gpus:,} GPUs in {point.nodes:,} nodes<br>"
                        f"{compact(point.tokens_per_s)} tokens/s<br>{percent(point.efficiency)} of ideal"
                        + ("<br>groups cross nodes" if point.crosses else "")
                        for point in points
                    ],
                    "hoverinfo": "text",
                }
            )
        if traces:
            sizes = sorted({x for trace in traces for x in trace["x"]})
            layout = {
                "height": 400,
                "xaxis": {
                    "type": "log",
                    "title": {"text": "GPUs", "standoff": 8},
                    "automargin": True,
                    "fixedrange": True,
                    "tickvals": [2**power for power in range(1, 15, 2) if sizes[0] <= 2**power <= sizes[-1]],
                },
                "yaxis": value_axis("% of ideal", range=[0, 105]),
                "legend": LEGEND,
                "showlegend": True,
            }
            choices.append({"label": words, "data": traces, "layout": layout})
    return choices


def tornado(verdict: Verdict, most: int = 10) -> dict[str, Any]:
    """What each doubt alone does to the ratio of the winner to a rival."""
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
        "yaxis": category_axis(names, "what errs"),
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
    """One a rival, the nearest first."""
    return [tornado(verdict) for verdict in decision.verdicts if verdict.tornado]
