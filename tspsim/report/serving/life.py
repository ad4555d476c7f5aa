"""One request's life: its waits, the reading of its prompt, and the times of its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tspsim.base.units import percent
from tspsim.report.figures import ALARM, LEGEND
from tspsim.report.numbers import seconds

from .engines import COLOURS, _axis, line, stacked, strip, time_unit
from .thinning import columns, edges, packed, thinned
from .view import DECODE, PREFILL, EngineView, Floats, LoadRun, Requests, ServingView, StepRuns

#: Most columns of the engine's row, marks of the line of tokens, and plans.
MOST_COLUMNS, MOST_MARKS, MOST_PLANS = 400, 300, 6
#: Longest gaps between two tokens, which are drawn exactly.
MOST_GAPS = 50

PARTS = {
    "front end": "#8a93a6", "waits in the queue": "#b9a7c9", "prompt is read": COLOURS[PREFILL],
    "cache is sent": "#cc79a7", "tokens come": COLOURS[DECODE], "preempted, waits again": ALARM,
}  # fmt: skip

TEMPLATE = """
{{ figure("lives", "A request from its sending to its last token, its engine meanwhile, and its tokens as they came,
one step up per token. A step beside another request's prompt is longer, and so is the gap between two tokens; where the
line is flat the engine reads prompts alone.", "Request") }}
<ul class="verdicts">{% for name, text in stories %}<li><strong>{{ name }}</strong> {{ text }}</li>{% endfor %}</ul>
"""


def build(view: ServingView) -> dict[str, Any] | None:
    """Lives of every plan, under its highest load with requests; of the best plan more of them, and in sentences."""
    choices: list[dict[str, Any]] = []
    stories: list[tuple[str, str]] = []
    for served in view.ranked[:MOST_PLANS]:
        run = next((run for run in served.runs[::-1] if run.requests is not None and run.requests.ended.any()), None)
        if run is None or run.requests is None:
            continue
        notable = lives(run.requests)
        where = f"{served.name}, {view.load_in_words(run.load)}" if view.curve else served.name
        shown = list(notable.items())[: 2 if choices else None]
        choices += [{"label": f"{where}: {words}", **drawn(run, place)} for words, place in shown]
        stories = stories or [
            (f"{words[:1].upper()}{words[1:]}:", sentence(run, place)) for words, place in notable.items()
        ]
    return {"figures": {"lives": {"choices": choices}}, "stories": stories} if choices else None


def lives(requests: Requests) -> dict[str, int]:
    """Notable requests in words, and their places: the median, the longest wait, the slowest tokens, …"""
    ended = np.flatnonzero(requests.ended)
    order = ended[np.argsort(requests.e2e_s[ended], kind="stable")]
    notable = {"a typical request" if len(ended) > 1 else "the only request": int(order[(len(order) - 1) // 2])}
    tpot = np.nan_to_num(requests.tpot_s[ended], nan=0.0)
    extremes = (
        ("the longest wait", int(ended[np.argmax(requests.ttft_s[ended])]), True),
        ("the slowest tokens", int(ended[np.argmax(tpot)]), bool(tpot.max() > 0)),
        ("most preemptions", int(ended[np.argmax(requests.preemptions[ended])]),
         bool(requests.preemptions[ended].max() > 0)),
    )  # fmt: skip
    for words, place, said in extremes:
        if said and place not in notable.values():
            notable[words] = place
    return notable


def sentence(run: LoadRun, place: int) -> str:
    """Lengths and waits of a request."""
    assert run.requests is not None
    requests = run.requests
    wait = float(run.queued_s(requests)[place])
    read = float(requests.first_token_s[place] - requests.first_scheduled_s[place])
    prompt, output = int(requests.prompt_tokens[place]), int(requests.output_tokens[place])
    parts_in_words = [f"{prompt:,} tokens of prompt"]
    cached = int(requests.cached_tokens[place])
    if cached:
        parts_in_words[0] += f" ({percent(cached / prompt)} in the cache already)"
    if np.isfinite(wait):
        parts_in_words.append(f"{seconds(wait)} in the queue")
        parts_in_words.append(f"{seconds(read)} to the first token")
    else:
        parts_in_words.append(f"first token after {seconds(float(requests.ttft_s[place]))}")
    if output > 1:
        rest = float(requests.end_s[place] - requests.first_token_s[place])
        parts_in_words.append(f"{output - 1:,} more in {seconds(rest)}, one every {seconds(rest / (output - 1))}")
    back = int(requests.preemptions[place])
    if back:
        parts_in_words.append(f"preempted {back} time{'s' * (back > 1)}")
    return ", ".join(parts_in_words) + "."


# --- one figure ---------------------------------------------------------------------------------------------


def parts(run: LoadRun, place: int) -> Iterator[tuple[str, float, float]]:
    """``(what, from, to)`` of a request, in order; unknown parts are left out."""
    assert run.requests is not None
    requests = run.requests
    arrival, scheduled = float(requests.arrival_s[place]), float(requests.first_scheduled_s[place])
    first, end = float(requests.first_token_s[place]), float(requests.end_s[place])
    if not np.isfinite(scheduled):
        scheduled = arrival
    seen = min(scheduled, arrival + run.front_end_s)
    if seen > arrival:
        yield "front end", arrival, seen
    yield "waits in the queue", seen, scheduled
    yield "prompt is read", scheduled, first
    sent = run.transfers
    if sent is not None:
        for begin, done in zip(sent.start_s[sent.request == place], sent.end_s[sent.request == place], strict=True):
            yield "cache is sent", float(begin), float(done)
    yield "tokens come", first, end
    for begin, done in run.preemption_spans(place):
        yield "preempted, waits again", begin, done


def drawn(run: LoadRun, place: int) -> dict[str, Any]:
    """The request's bar, its engine's strip, and the tokens."""
    assert run.requests is not None
    requests = run.requests
    begin_s, end_s = float(requests.arrival_s[place]), float(requests.end_s[place])
    unit_s, unit = time_unit(end_s - begin_s)
    engine = run.engine_of(place)
    heights = [46] + [46] * (engine is not None) + [170]
    axes, total = stacked(heights, 16)
    traces = [
        {
            "type": "bar", "orientation": "h", "name": what, "base": [(since - begin_s) / unit_s],
            "x": [(until - since) / unit_s], "y": [0], "width": 0.8, "yaxis": "y",
            "marker": {"color": PARTS[what]},
            "hovertext": [f"<b>{what}</b><br>{seconds(until - since)}"], "hoverinfo": "text",
        }
        for what, since, until in parts(run, place)
        if until > since
    ]  # fmt: skip
    seen: set[str] = set()
    for trace in traces:
        trace["legendgroup"] = trace["name"]
        trace["showlegend"] = trace["name"] not in seen
        seen.add(str(trace["name"]))
    last = 1
    if engine is not None:
        at = edges([engine.steps], begin_s, end_s, MOST_COLUMNS)
        cut = columns(engine.steps.within(begin_s, end_s), at)
        traces += strip(cut, {"x": packed((at - begin_s) / unit_s)}, _axis(1), first=False)
        last = 2
    when, count, whole = tokens(run, place, engine)
    tokens_line = line("tokens out", count, {"x": packed((when - begin_s) / unit_s)}, _axis(last), COLOURS[DECODE])
    # No line between two times where the tokens between them are unknown.
    tokens_line |= {"y": packed(count), "mode": "lines" if whole and len(when) > 1 else "markers", "showlegend": False}
    traces.append(tokens_line)
    titles = ["request", *(["its engine"] if engine is not None else []), "tokens out"]
    layout: dict[str, Any] = {
        "height": total + 110, "hovermode": "closest", "barmode": "overlay", "margin": {"l": 96}, "dragmode": "zoom",
        "showlegend": True, "legend": LEGEND,
        "xaxis": {
            "title": {"text": f"time since it was sent ({unit})", "standoff": 8}, "zeroline": False,
            "automargin": True, "anchor": _axis(last), "range": [0.0, (end_s - begin_s) / unit_s],
        },
    }  # fmt: skip
    for index, (domain, title) in enumerate(zip(axes, titles, strict=True)):
        axis: dict[str, Any] = {"domain": domain, "fixedrange": True, "zeroline": False}
        if index == 0:
            axis |= {"range": [-0.5, 0.5], "tickvals": [0], "ticktext": [title], "showgrid": False}
        elif index < last:
            axis |= {"range": [0, 100], "tickvals": [50], "ticktext": [title], "showgrid": False}
        else:
            axis |= {"rangemode": "tozero", "title": {"text": title, "standoff": 4}, "nticks": 5}
        layout[_axis(index).replace("y", "yaxis")] = axis
    return {"data": traces, "layout": layout}


def tokens(run: LoadRun, place: int, engine: EngineView | None) -> tuple[Floats, Floats, bool]:
    """Times of tokens, the number of tokens from then on, and whether all times are known.

    An engine's log has every decode step, so tokens are placed at the ends of those in which the request took part.
    Where the engine is unknown, only the first and the last token have times. A step that puts out several tokens
    (drafts) counts as their mean.
    """
    assert run.requests is not None
    requests = run.requests
    first, end = float(requests.first_token_s[place]), float(requests.end_s[place])
    output = int(requests.output_tokens[place])
    away = [*run.preemption_spans(place), *((first, until) for until in sent_until(run, place))]
    moments = emitted(engine.steps, first, end, away) if engine is not None else np.empty(0)
    if not len(moments) or output < 2:
        return np.unique([first, end]), np.unique([1.0, float(output)]), output < 2
    count = 1.0 + (output - 1.0) * np.arange(1, len(moments) + 1) / len(moments)
    chosen = drawn_places(moments)
    return np.concatenate(([first], moments[chosen])), np.concatenate(([1.0], count[chosen])), True


def sent_until(run: LoadRun, place: int) -> Floats:
    """Ends of the transfers of a request's cache, after which the decoding engine continues it."""
    sent = run.transfers
    return sent.end_s[sent.request == place] if sent is not None else np.empty(0)


def emitted(steps: StepRuns, first_s: float, end_s: float, away: list[tuple[float, float]]) -> Floats:
    """Ends of the decode steps between a request's first token and its last, without those while it was away
    (preempted, or its cache under way); the last of them is the request's own end.

    A run of equal steps is one row of the log: its steps end at equal distances.
    """
    mine = steps.within(first_s, end_s)
    counts = np.where(mine.sequences > 0, mine.steps, 0)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    step_s = (mine.end_s - mine.start_s) / np.maximum(mine.steps, 1)
    ends = np.repeat(mine.start_s, counts) + np.repeat(step_s, counts) * number
    tick = 1e-9 * max(end_s - first_s, 1e-30)
    taking = (ends > first_s + tick) & (ends <= end_s + tick)
    for since, until in away:
        taking &= ~((ends > since + tick) & (ends <= until + tick))
    tokens_s: Floats = ends[taking]
    tokens_s[-1:] = end_s
    return tokens_s


def drawn_places(moments: Floats) -> NDArray[np.int64]:
    """Places of the drawn moments: at most :data:`MOST_MARKS` evenly, and both ends of the longest gaps, which the
    figure is about."""
    longest = np.argsort(-np.diff(moments), kind="stable")[:MOST_GAPS]
    return np.unique(np.concatenate((thinned(len(moments), MOST_MARKS), longest, longest + 1)))
