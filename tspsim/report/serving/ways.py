"""Cache transfers: between the pools of a plan, and from the tiers of evicted blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tspsim.base.units import digits
from tspsim.report.figures import LEGEND, plan_colour, value_axis
from tspsim.report.numbers import label, seconds

from .engines import time_unit
from .folded import folded
from .thinning import thinned
from .view import LoadRun, ServedView, ServingView, Transfers

#: Most marks of a line.
MOST_MARKS = 300
TEMPLATE = """
{{ figure("serving-ways", "Share of caches whose request waited for them no longer than a time, after everything else
was ready.") }}
""" + folded("Plan")
COLUMNS = ("from", "to", "caches", "GB each", "GB in all", "on the way, mean", "waited for, mean", "p99", "GB/s")


def build(view: ServingView) -> dict[str, Any] | None:
    """One line per plan under its best load, and one row for each of its ways; None without transfers."""
    moved = [(served, served.best, sent) for served in view.ranked if (sent := transfers_of(served.best)) is not None]
    if not moved:
        return None
    unit_s, unit = time_unit(max(float(np.max(sent.exposed_s)) for *_, sent in moved))  # type: ignore[arg-type]
    traces = [drawn(view, served, sent, unit_s) for served, _, sent in moved]
    layout = {
        "height": 320, "hovermode": "closest", "xaxis": value_axis(f"wait of a request for its cache ({unit})"),
        "yaxis": value_axis("share of caches (%)", range=[0, 102]),
        "showlegend": True, "legend": LEGEND,
    }  # fmt: skip
    every = [(served, run, sent, way) for served, run, sent in moved for way in range(len(sent.ways))]
    rows = [(view.title_of(served, run), cells(sent, way)) for served, run, sent, way in every]
    return {"figures": {"serving-ways": {"data": traces, "layout": layout}}, "columns": COLUMNS, "rows": rows}


def transfers_of(run: LoadRun) -> Transfers | None:
    """A run's transfers, where their sizes are known."""
    sent = run.transfers
    return sent if sent is not None and sent.size_bytes is not None and len(sent.request) else None


def drawn(view: ServingView, served: ServedView, sent: Transfers, unit_s: float) -> dict[str, Any]:
    """Waits in order, over the share of caches."""
    assert sent.exposed_s is not None
    waited = np.sort(sent.exposed_s)
    share = np.arange(1, len(waited) + 1) / len(waited)
    kept = thinned(len(waited), MOST_MARKS)
    return {
        "type": "scatter", "mode": "lines", "name": label(served.name),
        "x": [float(waited[at]) / unit_s for at in kept],
        "y": [100.0 * float(share[at]) for at in kept],
        "line": {"color": plan_colour(view.served.index(served)), "width": 2, "shape": "hv"},
        "hovertext": [f"{share[at]:.0%} waited no longer than {seconds(float(waited[at]))}" for at in kept],
        "hoverinfo": "text",
    }  # fmt: skip


def cells(sent: Transfers, way: int) -> list[str]:
    """One way: ends, number, sizes, times, and exposed waits. The rate is that of all its bytes over the time from the
    first start to the last end."""
    assert sent.way is not None and sent.size_bytes is not None and sent.exposed_s is not None
    mine = sent.way == way
    size, start, end, waited = sent.size_bytes[mine], sent.start_s[mine], sent.end_s[mine], sent.exposed_s[mine]
    span_s = float(end.max() - start.min())
    return [
        *sent.ways[way], f"{len(size):,}", digits(float(size.mean()) / 1e9), digits(float(size.sum()) / 1e9),
        seconds(float((end - start).mean())), seconds(float(waited.mean())), seconds(float(np.quantile(waited, 0.99))),
        digits(float(size.sum()) / 1e9 / span_s) if span_s > 0 else "–",
    ]  # fmt: skip
