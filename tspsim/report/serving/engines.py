"""The activity of every engine over time, with the queue, the running batch and the cache below."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tspsim.base.units import compact, percent
from tspsim.report.figures import ALARM, LEGEND, QUIET, plan_colour
from tspsim.report.numbers import label, seconds

from .folded import folded
from .thinning import Columns, columns, edges, packed
from .view import DECODE, KINDS, MIXED, PREFILL, EngineView, LoadRun, ServedView, ServingView, StepRuns

#: Most bytes of all these figures of a page, and most and fewest columns of time of one.
BUDGET_BYTES = 1_200_000
MOST_COLUMNS, LEAST_COLUMNS = 640, 40
#: Most engines of a figure; of more engines evenly chosen ones are shown.
MOST_ENGINES = 8
#: The row of caches that are sent over links.
SENT = "sent"
COLOURS = {PREFILL: "#e69f00", MIXED: "#009e73", DECODE: "#0072b2"}
WORDS = {PREFILL: "prefill alone", MIXED: "prefill beside decode", DECODE: "decode alone"}

TEMPLATE = """
<p>{{ lead }}</p>
{{ figure("engines", caption, "Show") }}
""" + folded("Engine")
CAPTION = (
    "One row per engine: colours are kinds of steps, empty is idle, half a colour is half of the column's time. Below: "
    "requests in the queues (the line is the mean, the pale line the longest queue in the column) and decoding "
    "sequences, then tokens in the caches. Drag to zoom, double-click to return; shorter windows are drawn finer."
)
COLUMNS = (
    "prefill alone", "prefill beside decode", "decode alone", "idle", "steps", "mean batch", "longest queue",
    "cache, at most",
)  # fmt: skip


@dataclass(frozen=True)
class Window:
    """A window of a run, with its name."""

    words: str
    from_s: float
    to_s: float


def build(view: ServingView) -> dict[str, Any] | None:
    """Windows of the runs with logs, and a table of all engines."""
    logged_runs = [(served, run) for served in view.ranked for run in shown(served) if logged(run)]
    if not logged_runs:
        return None
    rows = [(f"{name}", cells(engine, run)) for served, run in logged_runs for name, engine in named(view, served, run)]
    return {
        "figures": {"engines": {"choices": fitted(view, logged_runs)}},
        "lead": lead(view, *logged_runs[0]),
        "caption": CAPTION,
        "columns": COLUMNS,
        "rows": rows,
    }


def logged(run: LoadRun) -> bool:
    return any(len(engine.steps) for engine in run.engines)


def shown(served: ServedView) -> list[LoadRun]:
    """Its runs with logs under the most and the least load."""
    kept = [run for run in served.runs if logged(run)]
    return [kept[-1], kept[0]] if len(kept) > 1 else kept


def named(view: ServingView, served: ServedView, run: LoadRun) -> Iterator[tuple[str, EngineView]]:
    """Engines of a run with their names in the table."""
    where = f"{served.name}, {view.load_in_words(run.load)}" if view.curve else served.name
    for engine in run.engines:
        yield (f"{where}: {engine.name}" if len(run.engines) > 1 else where), engine


def lead(view: ServingView, served: ServedView, run: LoadRun) -> str:
    """Times of the best plan's engines, by kind of step."""
    end_s = run.end_s
    parts = {kind: float(np.mean([busy(engine.steps, kind) / end_s for engine in run.engines])) for kind in KINDS}
    idle = max(0.0, 1.0 - sum(parts.values()))
    shares = [f"{percent(share)} {WORDS[kind]}" for kind, share in parts.items() if share > 0.0005]
    shares += [f"{percent(idle)} idle"] if idle > 0.0005 else []
    whose = f"{served.name} under {view.load_in_words(run.load)}" if view.curve else served.name
    return f"{whose}: {', '.join(shares)} of {seconds(end_s)} from the first send to the last token."


def busy(steps: StepRuns, kind: int) -> float:
    """Seconds in steps of a kind."""
    chosen = steps.kind == kind
    return float(np.sum(steps.end_s[chosen] - steps.start_s[chosen]))


def cells(engine: EngineView, run: LoadRun) -> list[str]:
    """An engine's row."""
    steps, end_s = engine.steps, max(run.end_s, 1e-30)
    shares = [busy(steps, kind) / end_s for kind in KINDS]
    decoding = float(np.sum(steps.sequences * steps.steps)) / max(int(steps.steps.sum()), 1)
    most = float(steps.used_tokens.max(initial=0.0))
    cache = f"{compact(most)} tokens"
    if engine.capacity_tokens:
        cache += f", {percent(most / engine.capacity_tokens)}"
    counts = [f"{int(steps.steps.sum()):,}", f"{decoding:,.3g}", f"{int(steps.waiting.max(initial=0)):,}"]
    return [*(percent(share) for share in shares), percent(max(0.0, 1.0 - sum(shares))), *counts, cache]


# --- windows ------------------------------------------------------------------------------------------------


def windows(run: LoadRun) -> list[Window]:
    """The whole run, its opening, and the request with the longest wait for a first token."""
    end_s = run.end_s
    parts = [Window("the whole run", 0.0, end_s)]
    requests = run.requests
    if requests is None or not requests.ended.any():
        return parts
    waited = np.where(requests.ended, requests.ttft_s, -1.0)
    begin_s = float(requests.arrival_s[0])
    first = requests.ended & (requests.arrival_s <= begin_s + 1e-9)
    opened = float(np.max(requests.first_token_s[first])) - begin_s if first.any() else 0.0
    if 0 < 2.0 * opened < 0.5 * end_s:
        parts.append(Window("its opening", begin_s, begin_s + 2.0 * opened))
    worst = int(np.argmax(waited))
    margin = 0.5 * float(waited[worst])
    from_s = max(0.0, float(requests.arrival_s[worst]) - margin)
    to_s = min(end_s, float(requests.first_token_s[worst]) + margin)
    apart = len(parts) < 2 or from_s > parts[1].to_s
    if apart and 0 < to_s - from_s < 0.5 * end_s:
        parts.append(Window("around the longest wait", from_s, to_s))
    return parts


def fitted(view: ServingView, runs: Sequence[tuple[ServedView, LoadRun]]) -> list[dict[str, Any]]:
    """Every window of every run, with as many columns as :data:`BUDGET_BYTES` allows."""
    windowed = [(served, run, window) for served, run in runs for window in windows(run)]
    most = MOST_COLUMNS
    while True:
        choices = [
            {"label": _label(view, served, run, window), **drawn(run, window, most)} for served, run, window in windowed
        ]
        size = len(json.dumps(choices))
        if size <= BUDGET_BYTES:
            return choices
        if most > LEAST_COLUMNS:
            most = max(LEAST_COLUMNS, min(most // 2, int(most * BUDGET_BYTES / size)))
        else:
            windowed = windowed[: max(1, int(len(windowed) * BUDGET_BYTES / size))]


def _label(view: ServingView, served: ServedView, run: LoadRun, window: Window) -> str:
    where = f"{served.name}, {view.load_in_words(run.load)}" if view.curve else served.name
    return f"{where}: {window.words}"


# --- one figure ---------------------------------------------------------------------------------------------


def drawn(run: LoadRun, window: Window, most: int) -> dict[str, Any]:
    """Rows of engines over queue and cache, on one axis of time."""
    chosen = spread(run.engines)
    rows = 2 + len(chosen) + (run.transfers is not None)
    at = edges([engine.steps for engine in chosen], window.from_s, window.to_s, max(8, most * 3 // (rows + 2)))
    cut = [columns(engine.steps.within(window.from_s, window.to_s), at) for engine in chosen]
    unit_s, unit = time_unit(window.to_s - window.from_s)
    # `at` has one more value than there are columns; the last column is drawn to the end.
    even = len(at) > 2 and np.allclose(np.diff(at), at[1] - at[0], rtol=1e-9)
    across: dict[str, Any] = (
        {"x0": float(at[0] / unit_s), "dx": float((at[1] - at[0]) / unit_s)} if even else {"x": packed(at / unit_s)}
    )
    rows_px = 46 if len(chosen) == 1 else 30
    heights = [rows_px] * len(chosen) + [56] * (run.transfers is not None) + [150, 110]
    axes, total = stacked(heights, 16)
    traces: list[dict[str, Any]] = []
    for place, columns_of_engine in enumerate(cut):
        traces += strip(columns_of_engine, across, _axis(place), first=place == 0)
    place = len(chosen)
    titles = [label(engine.name, 18) for engine in chosen]
    if run.transfers is not None:
        flying = in_flight(run, at)
        traces.append(line("caches on their way", flying, across, _axis(place), "#cc79a7", fill=True))
        titles.append(SENT)
        place += 1
    traces += queue(cut, across, _axis(place))
    traces += cache(chosen, cut, across, _axis(place + 1))
    titles += ["requests", "tokens"]
    layout: dict[str, Any] = {
        "height": total + 110,
        "hovermode": "x",
        "dragmode": "zoom",
        "margin": {"l": 96},
        "showlegend": True,
        "legend": {**LEGEND, "traceorder": "normal"},
        "xaxis": {
            "title": {"text": f"time since the first send ({unit})", "standoff": 8},
            "range": [window.from_s / unit_s, window.to_s / unit_s],
            "zeroline": False, "automargin": True, "anchor": _axis(place + 1), "hoverformat": ",.5~g",
        },
    }  # fmt: skip
    for index, (domain, title) in enumerate(zip(axes, titles, strict=True)):
        narrow = index < len(chosen)
        layout[_axis(index).replace("y", "yaxis")] = {
            "domain": domain, "fixedrange": True, "zeroline": False, "rangemode": "tozero", "nticks": 4,
            "title": {"text": title if not narrow else "", "standoff": 4},
            **({"range": [0, 100], "showticklabels": True, "tickvals": [50], "ticktext": [title], "showgrid": False}
               if narrow else {"tickformat": ".2~g" if title == SENT else "~s"}),
        }  # fmt: skip
    if len(chosen) < len(run.engines):
        layout["annotations"] = [note(f"{len(chosen)} of {len(run.engines)} engines, evenly chosen")]
    return {"data": traces, "layout": layout}


def spread(engines: Sequence[EngineView]) -> list[EngineView]:
    """At most :data:`MOST_ENGINES` engines, evenly chosen."""
    if len(engines) <= MOST_ENGINES:
        return list(engines)
    return [engines[index * len(engines) // MOST_ENGINES] for index in range(MOST_ENGINES)]


def strip(cut: Columns, across: dict[str, Any], axis: str, *, first: bool) -> list[dict[str, Any]]:
    """Stacked shares of each column's time."""
    return [
        {
            "type": "scatter", "mode": "lines", "stackgroup": axis, "name": WORDS[kind], "legendgroup": WORDS[kind],
            "showlegend": first, **across, "y": packed(held(np.round(100.0 * cut.share[kind])), "u1"), "yaxis": axis,
            "line": {"width": 0, "shape": "hv", "color": COLOURS[kind]}, "fillcolor": COLOURS[kind],
            "hovertemplate": f"{WORDS[kind]}: %{{y}} %<extra></extra>",
        }
        for kind in KINDS
    ]  # fmt: skip


def queue(cut: Sequence[Columns], across: dict[str, Any], axis: str) -> list[dict[str, Any]]:
    """Queues and batches of all engines together."""
    waiting = np.sum([part.waiting for part in cut], axis=0)
    longest = np.sum([part.most_waiting for part in cut], axis=0)
    running = np.sum([part.sequences for part in cut], axis=0)
    return [
        line("longest queue", longest, across, axis, "#f0b98a", width=1.0),
        line("waiting", waiting, across, axis, ALARM),
        line("decoding", running, across, axis, plan_colour(0)),
    ]


def cache(
    chosen: Sequence[EngineView], cut: Sequence[Columns], across: dict[str, Any], axis: str
) -> list[dict[str, Any]]:
    """Tokens in all caches, and the capacity where it is bounded."""
    used = np.sum([part.used_tokens for part in cut], axis=0)
    traces = [line("tokens in caches", used, across, axis, "#44aa99", fill=True)]
    rooms = [engine.capacity_tokens for engine in chosen]
    if all(room is not None and np.isfinite(room) for room in rooms):
        room = float(sum(room or 0.0 for room in rooms))
        # A capacity far above the use would flatten the picture.
        if room < 4.0 * float(used.max(initial=0.0)):
            traces.append(line("capacity of the caches", np.full(len(used), room), across, axis, QUIET, dash="dash"))
    return traces


def in_flight(run: LoadRun, at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Mean number of caches under way, by column."""
    assert run.transfers is not None
    start, end = np.sort(run.transfers.start_s), np.sort(run.transfers.end_s)

    def integral(moments: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Seconds under way up to each of ``at``, of transfers that have begun (or ended)."""
        summed = np.concatenate(([0.0], np.cumsum(moments)))
        before = np.searchsorted(moments, at, "right")
        summed_up: np.ndarray[Any, Any] = at * before - summed[before]
        return summed_up

    flown: np.ndarray[Any, Any] = np.diff(integral(start) - integral(end)) / np.diff(at)
    return flown


def line(
    name: str, values: Any, across: dict[str, Any], axis: str, colour: str, *, width: float = 2.0, dash: str = "",
    fill: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """A step line over the columns."""
    return {
        "type": "scatter", "mode": "lines", "name": name, **across, "y": packed(held(values)), "yaxis": axis,
        "line": {"width": width, "shape": "hv", "color": colour, **({"dash": dash} if dash else {})},
        **({"fill": "tozeroy"} if fill else {}),
        "hovertemplate": f"{name}: %{{y:,.4~g}}<extra></extra>",
    }  # fmt: skip


def held(values: Any) -> Any:
    """The values with the last one repeated, for the end of its column."""
    return np.append(values, values[-1:])


def stacked(heights: Sequence[int], gap: int) -> tuple[list[list[float]], int]:
    """Domains of plots with these heights in pixels, one below the other from the top, and their total height."""
    total = sum(heights) + gap * (len(heights) - 1)
    domains, top = [], float(total)
    for height in heights:
        domains.append([round((top - height) / total, 5), round(top / total, 5)])
        top -= height + gap
    return domains, total


def note(text: str) -> dict[str, Any]:
    return {
        "text": label(text, 80), "xref": "paper", "yref": "paper", "x": 1, "y": 1.0, "xanchor": "right",
        "yanchor": "bottom", "showarrow": False, "font": {"size": 11, "color": "THEME"},
    }  # fmt: skip


def time_unit(length_s: float) -> tuple[float, str]:
    """Seconds of a readable unit for a length of time, and its name.

    >>> time_unit(0.2), time_unit(90.0), time_unit(40000.0)
    ((0.001, 'ms'), (1.0, 's'), (3600.0, 'h'))
    """
    return (1e-3, "ms") if length_s < 1.0 else (1.0, "s") if length_s < 7200.0 else (3600.0, "h")


def _axis(place: int) -> str:
    return "y" if place == 0 else f"y{place + 1}"
