"""Rates of users against rates of GPUs, over the load: the front, and every figure as a curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tspsim.base.units import compact, digits
from tspsim.report.figures import LEGEND, QUIET, beside, plan_colour, plan_line, value_axis
from tspsim.report.fronts import front_line
from tspsim.report.numbers import label, seconds
from tspsim.studies.front import front_of

from .folded import folded
from .view import LoadRun, Published, ServingView

TEMPLATE = (
    """
{% if joined %}{{ figure("serving-front", "Right is fast for a user, up is cheap; marks of a plan are its loads, and a
dotted line joins the Pareto-optimal ones." ~ whole ~ measured) }}{% endif %}
{{ figure("serving-curves", "Over the load." ~ limits ~ bands ~ whole ~ measured, "Figure") }}
"""
    + folded("Plan")
    + """
{% if sources %}<p class="note">Measured: {{ sources }}</p>{% endif %}
"""
)

#: Caption where the figure shows whole runs, and the table above the steady part.
WHOLE = " Output tokens/s include ramp and drain, as in benchmarks; the table's are of the steady part."


@dataclass(frozen=True)
class ServingFigure:
    """A figure of a run: its title, value and text; ``of`` and ``limit`` name its range and its limit.

    Where the range is of another measure that is proportional to it, the range is scaled.
    """

    title: str
    value: Callable[[LoadRun], float]
    words: Callable[[float], str]
    of: str = ""
    limit: str = ""
    measured: Callable[[Published], float] | None = None
    #: Drawn on a logarithmic axis.
    log: bool = False


def _plain(value: float) -> str:
    return digits(value)


MEASURES: tuple[ServingFigure, ...] = (
    ServingFigure(
        "output tokens/s per GPU", lambda run: each_gpu(run), compact, of="output_tokens_per_s",
        measured=lambda point: point.per_gpu,
    ),
    ServingFigure("output tokens/s", lambda run: run.rate("output_tokens_per_s"), compact, of="output_tokens_per_s"),
    ServingFigure(
        "time an output token, mean (s)", lambda run: run.mean("tpot_s"), seconds, of="tpot_s", limit="tpot",
        measured=lambda point: point.tpot_s,
    ),
    ServingFigure(
        "time to the first token, mean (s)", lambda run: run.mean("ttft_s"), seconds, of="ttft_s", limit="ttft",
        measured=lambda point: point.ttft_s, log=True,
    ),
    ServingFigure(
        "time to the first token, 99 of 100 (s)", lambda run: run.mean("ttft_s", "p99"), seconds, limit="ttft", log=True
    ),
    ServingFigure("tokens/s per user", lambda run: run.rate("tokens_per_s_per_user"), _plain,
            measured=lambda point: point.per_user),
    ServingFigure("requests/s within the limits", lambda run: run.goodput, _plain),
    ServingFigure("$/M output tokens", lambda run: run.price(), _plain),
    ServingFigure("most of the cache in use (%)", lambda run: 100.0 * cache_share(run), _plain),
)  # fmt: skip


def cache_share(run: LoadRun) -> float:
    value = (run.metrics.get("kv") or {}).get("peak_share")
    return float("nan") if value is None else float(value)


def build(view: ServingView) -> dict[str, Any] | None:
    """The front and the curves; None for a single plan under a single load."""
    points = sum(len(served.runs) for served in view.served)
    if points < 2:
        return None
    figures: dict[str, Any] = {}
    joined = front(view)
    if joined is not None:
        figures["serving-front"] = joined
    if view.curve:
        choices = [choice for measure in MEASURES if (choice := curve(view, measure)) is not None]
        if choices:
            figures["serving-curves"] = {"choices": choices}
    sources = list(dict.fromkeys(point.source for point in view.published))
    ranged = any(run.ranges for served in view.served for run in served.runs)
    lasting = any(run.metrics.get("steady") for served in view.served for run in served.runs)
    return {
        "figures": figures,
        "joined": joined is not None,
        "measured": " Crosses were measured." if view.published else "",
        "whole": WHOLE if lasting else "",
        "limits": " Dashed: the stated limit." if view.slo else "",
        "bands": " Pale: nine times of ten." if ranged else "",
        "columns": ("Load", *(measure.title.removesuffix(" (s)") for measure in present(view))),
        "rows": [(served.name, cells(view, run)) for served in view.served for run in served.runs],
        "sources": "; ".join(sources),
    }


def present(view: ServingView) -> list[ServingFigure]:
    """Measures with a value for some run."""
    runs = [run for served in view.served for run in served.runs]
    return [measure for measure in MEASURES if any(not np.isnan(measure.value(run)) for run in runs)]


def cells(view: ServingView, run: LoadRun) -> list[str]:
    values = [(measure, measure.value(run)) for measure in present(view)]
    return [view.load_in_words(run.load), *("–" if np.isnan(v) else measure.words(v) for measure, v in values)]


def front(view: ServingView) -> dict[str, Any] | None:
    """Output tokens/s per GPU over tokens/s per user, one line per plan; None without second tokens."""
    traces: list[dict[str, Any]] = []
    points: list[tuple[float, float]] = []
    few = len(view.served) < 3
    for place, served in enumerate(view.served):
        finite = [(run.rate("tokens_per_s_per_user"), each_gpu(run), run) for run in served.runs]
        finite = [point for point in finite if np.isfinite(point[0]) and np.isfinite(point[1])]
        if not finite:
            continue
        points += [(x, y) for x, y, _ in finite]
        traces.append(
            plan_line(
                served.name,
                place,
                [(x, y) for x, y, _ in finite],
                [hover(view, served.name, run) for *_, run in finite],
                **beside(
                    [(x, y) for x, y, _ in finite],
                    [f"{run.load:,.4g}" if few and view.curve else "" for *_, run in finite],
                ),
                marker={"size": 8},
            )
        )
    if not points:
        return None
    best = sorted(front_of(points, lambda point: point))
    if len(view.served) > 1:
        traces.append(front_line("no plan is faster and cheaper", best, "vh"))
    traces += crosses(view, lambda point: point.per_user, lambda point: point.per_gpu)
    layout = {
        "height": 440, "hovermode": "closest", "margin": {"r": 36},
        "xaxis": value_axis("tokens/s per user"),
        "yaxis": value_axis("output tokens/s per GPU", tickformat="~s"),
        "showlegend": True, "legend": LEGEND,
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def each_gpu(run: LoadRun) -> float:
    return run.rate("output_tokens_per_s_per_gpu")


def hover(view: ServingView, name: str, run: LoadRun) -> str:
    lines = [
        f"<b>{label(name)}</b>", view.load_in_words(run.load),
        f"{compact(run.rate('output_tokens_per_s_per_gpu'))} output tokens/s per GPU",
        f"{digits(run.rate('tokens_per_s_per_user'))} tokens/s per user",
        f"first token after {seconds(run.mean('ttft_s'))}, mean",
    ]  # fmt: skip
    return "<br>".join(lines)


def curve(view: ServingView, measure: ServingFigure) -> dict[str, Any] | None:
    """One line per plan over the load, with its range where it has one; None without values."""
    traces: list[dict[str, Any]] = []
    for place, served in enumerate(view.served):
        finite = [(run.load, measure.value(run), run) for run in served.runs if np.isfinite(measure.value(run))]
        if not finite:
            continue
        bounds = [ends for _, value, run in finite if (ends := spread(run, measure.of, value)) is not None]
        if len(bounds) == len(finite) > 1:
            traces += band([load for load, *_ in finite], bounds, plan_colour(place))
        traces.append(
            plan_line(
                served.name,
                place,
                [(load, value) for load, value, _ in finite],
                [
                    f"<b>{label(served.name)}</b><br>{view.load_in_words(load)}<br>{measure.words(value)}"
                    for load, value, _ in finite
                ],
                marker={"size": 7},
            )
        )
    if not traces:
        return None
    if measure.measured is not None:
        traces += crosses(view, lambda point: point.load, measure.measured)
    ticks = list(view.loads)
    limit = view.slo.get(measure.limit)
    layout: dict[str, Any] = {
        "height": 400, "hovermode": "closest",
        "xaxis": {
            "type": "log" if view.closed else "linear",
            "title": {"text": "requests at once" if view.closed else "requests/s sent", "standoff": 8},
            "automargin": True, "fixedrange": True, "zeroline": False,
            **({"tickvals": ticks, "ticktext": [f"{tick:,.4g}" for tick in ticks]} if len(ticks) <= 10 else {}),
        },
        "yaxis": value_axis(measure.title, tickformat="~s" if measure.words is compact else "", **_log(measure)),
        "showlegend": True, "legend": LEGEND,
    }  # fmt: skip
    if limit is not None:
        layout["shapes"] = [
            {"type": "line", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": limit, "y1": limit,
             "line": {"color": QUIET, "width": 1.5, "dash": "dash"}}
        ]  # fmt: skip
    return {"label": measure.title, "data": traces, "layout": layout}


def _log(measure: ServingFigure) -> dict[str, Any]:
    return {"type": "log", "rangemode": "normal", "dtick": 1} if measure.log else {}


def spread(run: LoadRun, of: str, value: float) -> tuple[float, float] | None:
    """The range of a measure of ``value``, in proportion to that of ``of``."""
    bounds = run.ranges.get(of)
    whole = run.mean(of) if isinstance(run.metrics.get(of), Mapping) else run.rate(of)
    if bounds is None or not whole > 0:
        return None
    return bounds[0] * value / whole, bounds[1] * value / whole


def band(x: list[float], bounds: list[tuple[float, float]], colour: str) -> list[dict[str, Any]]:
    """The range as an area without a legend entry."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return [
        {
            "type": "scatter", "mode": "lines", "x": [*x, *x[::-1]],
            "y": [*(high for _, high in bounds), *(low for low, _ in bounds[::-1])],
            "fill": "toself", "fillcolor": f"rgba({red},{green},{blue},0.14)", "line": {"width": 0},
            "hoverinfo": "skip", "showlegend": False,
        }
    ]  # fmt: skip


def crosses(
    view: ServingView, x: Callable[[Published], float], y: Callable[[Published], float]
) -> list[dict[str, Any]]:
    """Measured points, one trace per name."""
    traces = []
    for place, name in enumerate(dict.fromkeys(point.name for point in view.published)):
        points = [p for p in view.published if p.name == name and np.isfinite(x(p)) and np.isfinite(y(p))]
        if points:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": label(f"measured: {name}"),
                    "x": [x(point) for point in points],
                    "y": [y(point) for point in points],
                    "marker": {"symbol": "x-thin", "size": 11, "line": {"width": 2.5, "color": plan_colour(place)}},
                    "hovertext": [
                        f"<b>{label(name)}</b>, measured<br>{point.load:,.4g} at once<br>{label(point.source, 90)}"
                        for point in points
                    ],
                    "hoverinfo": "text",
                }
            )
    return traces
