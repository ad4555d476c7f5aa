"""Waits of users: the share of requests whose first token, and each further one, came within a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tspsim.report.figures import ALARM, LEGEND, plan_colour, value_axis
from tspsim.report.numbers import label, seconds

from .folded import folded
from .thinning import packed, thinned
from .view import Floats, LoadRun, Requests, ServingView

#: Most marks of a line.
MOST_MARKS = 300
#: Fewest requests for a line of shares.
LEAST = 2

TEMPLATE = """
<div class="pair">
{{ figure("ttft", "Share of requests whose first token came within a time." ~ limits, "Load") }}
{{ figure("tpot", "Share of requests whose further tokens came, on average, within a time each." ~ limits, "Load") }}
</div>
""" + folded("Plan")
COLUMNS = (
    "TTFT mean", "p50", "p90", "p99", "TPOT mean", "p50", "p90", "p99", "end to end, mean", "p99",
)  # fmt: skip


def build(view: ServingView) -> dict[str, Any] | None:
    """One line per plan, one choice per load (the highest first), and a table of all."""
    rows = [(view.title_of(served, run), cells(run)) for served in view.ranked for run in served.runs]
    figures = {}
    for key, value, words, limit in (
        ("ttft", lambda requests: requests.ttft_s, "time to the first token", view.slo.get("ttft")),
        ("tpot", lambda requests: requests.tpot_s, "time an output token", view.slo.get("tpot")),
    ):
        choices = [choice for load in loads(view) if (choice := drawn(view, load, value, words, limit))]
        if choices:
            figures[key] = {"choices": choices} if view.curve else choices[0]
    if not rows:
        return None
    limits = " Dashed: the stated limit." if view.slo else ""
    return {"figures": figures, "limits": limits, "columns": COLUMNS, "rows": rows}


def loads(view: ServingView) -> list[float]:
    """The highest and the lowest load and those between, at most six."""
    every = list(view.loads) or [float("nan")]
    return [every[place] for place in thinned(len(every), 6)][::-1]


def cells(run: LoadRun) -> list[str]:
    """Waits of a run, in the order of the columns."""
    figures_of = [("ttft_s", which) for which in ("mean", "p50", "p90", "p99")]
    figures_of += [("tpot_s", which) for which in ("mean", "p50", "p90", "p99")]
    figures_of += [("e2e_s", "mean"), ("e2e_s", "p99")]
    values = (run.mean(key, which) for key, which in figures_of)
    return ["–" if np.isnan(value) else seconds(value) for value in values]


def drawn(
    view: ServingView, load: float, value: Callable[[Requests], Floats], words: str, limit: float | None
) -> dict[str, Any] | None:
    """Lines of all plans under one load; None where no plan has enough requests."""
    traces: list[dict[str, Any]] = []
    longest = 0.0
    for place, served in enumerate(view.served):
        run = served.runs[0] if np.isnan(load) else served.at(load)
        if run is None or run.requests is None:
            continue
        waits = np.sort(value(run.requests)[run.requests.ended])
        waits = waits[np.isfinite(waits)]
        if len(waits) < LEAST:
            continue
        longest = max(longest, float(waits[-1]))
        traces.append(curve(served.name, waits, plan_colour(place)))
    if not traces:
        return None
    unit_s, unit = (1e-3, "ms") if longest < 2.0 else (1.0, "s")
    for trace in traces:
        trace["x"] = packed(trace["x"] / unit_s)
        trace["y"] = packed(trace["y"])
        trace["hovertemplate"] = f"<b>{trace['name']}</b><br>%{{y:.1f}} % within %{{x:,.4~g}} {unit}<extra></extra>"
    layout: dict[str, Any] = {
        "height": 360,
        "hovermode": "closest",
        "xaxis": value_axis(f"{words} ({unit})"),
        "yaxis": value_axis("share of requests (%)", range=[0, 101]),
        "showlegend": True,
        "legend": LEGEND,
    }
    if limit is not None and limit < 3.0 * longest:
        at = limit / unit_s
        layout["shapes"] = [
            {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1,
             "line": {"color": ALARM, "width": 1.5, "dash": "dash"}}
        ]  # fmt: skip
    return {"label": view.load_in_words(load), "data": traces, "layout": layout}


def curve(name: str, waits: Floats, colour: str) -> dict[str, Any]:
    """Ascending waits as a line of their shares, from zero to all."""
    chosen = thinned(len(waits), MOST_MARKS)
    x = np.concatenate((waits[:1], waits[chosen]))
    y = np.concatenate(([0.0], 100.0 * (chosen + 1) / len(waits)))
    return {
        "type": "scatter", "mode": "lines", "name": label(name), "x": x, "y": y,
        "line": {"color": colour, "width": 2, "shape": "hv" if len(waits) <= MOST_MARKS else "linear"},
    }  # fmt: skip
