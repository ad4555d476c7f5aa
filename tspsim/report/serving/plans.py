"""Every plan at its best load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tspsim.base.units import compact, digits, gib, percent, several, share_beside
from tspsim.report.numbers import seconds

from .view import LoadRun, ServedView, ServingView

TEMPLATE = """
{% if note %}<p class="note">{{ note }}</p>{% endif %}
<div class="scroll"><table class="plans tight">
<caption class="hidden">Every plan, the best first</caption>
<thead><tr><th scope="col">Plan</th>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}
</tr></thead>
<tbody>{% for row in rows %}<tr{% if row.best %} class="best"{% endif %}><th scope="row">{{ row.name }}
  <span class="small">{{ row.setting }}</span></th>
  {% for cell, small in row.cells %}<td data-label="{{ columns[loop.index0] }}">{{ cell }}
  {%- if small %} <span class="small">{{ small }}</span>{% endif %}</td>{% endfor %}</tr>
{% endfor %}{% for row in refused %}<tr class="refused"><th scope="row">{{ row.name }}</th>
  <td colspan="{{ columns|length }}">{{ row.why }}</td></tr>
{% endfor %}</tbody></table></div>
"""


@dataclass(frozen=True)
class Column:
    """A heading, and a run's cell with the small text below; shown where some run has a value."""

    title: str
    cell: Callable[[ServedView, LoadRun], tuple[str, str]]


def _likely(written: Callable[[float], str], bounds: Sequence[float]) -> str:
    """A range that breaks at its dash alone."""
    low, high = (written(end).replace(" ", NARROW) for end in bounds)
    return f"likely{NARROW}{low} –{NARROW}{high}"


def _wait(key: str) -> Callable[[ServedView, LoadRun], tuple[str, str]]:
    def cell(_: ServedView, run: LoadRun) -> tuple[str, str]:
        mean, last = run.mean(key), run.mean(key, "p99")
        if np.isnan(mean):
            return "–", ""
        bounds = run.ranges.get(key)
        small = [] if np.isnan(last) else [f"p99 {seconds(last)}"]
        small += [] if bounds is None else [_likely(seconds, bounds)]
        return seconds(mean), "\n".join(small)

    return cell


def _rate(_: ServedView, run: LoadRun) -> tuple[str, str]:
    """The rate that ranks plans; below it that of the whole run, where the two differ."""
    bounds = run.ranges.get("output_tokens_per_s")
    likely = "" if bounds is None else _likely(compact, bounds)
    whole = run.rate("output_tokens_per_s")
    if not run.metrics.get("steady"):
        return compact(whole), likely
    value, low, high = run.between("output_tokens_per_s")
    sure = [f"± {percent((high - low) / 2 / value)}"] if value else []
    return compact(value), "\n".join([*sure, *filter(None, [f"whole run {compact(whole)}", likely])])


def _each(served: ServedView, run: LoadRun) -> tuple[str, str]:
    return compact(run.lasting("output_tokens_per_s_per_gpu")), several(served.plan.gpus, "GPU")


def _user(_: ServedView, run: LoadRun) -> tuple[str, str]:
    value = run.rate("tokens_per_s_per_user")
    return ("–" if np.isnan(value) else digits(value)), ""


def _goodput(_: ServedView, run: LoadRun) -> tuple[str, str]:
    if np.isnan(run.goodput):
        return "–", ""
    bounds = run.metrics.get("bounds")
    if not bounds:
        served = run.lasting("requests_per_s")
        return digits(run.goodput), f"{percent(run.goodput / served, decimals=0)} of those served" if served else ""
    share = share_beside(bounds["share"], bounds["wanted"])
    return digits(run.goodput), f"{share} of requests{'' if run.kept else ': limits missed'}"


def _price(_: ServedView, run: LoadRun) -> tuple[str, str]:
    prices = sorted(run.prices("usd_per_million_output_tokens").values())
    if not prices:
        return "–", ""
    both = run.price("usd_per_million_tokens")
    spread = f"{digits(prices[0])}" + (f" – {digits(prices[-1])}" if prices[-1] != prices[0] else "")
    return spread, "" if np.isnan(both) else f"{digits(both)} with prompts"


def _cache(_: ServedView, run: LoadRun) -> tuple[str, str]:
    kv = run.metrics.get("kv") or {}
    share = kv.get("peak_share")
    sessions = f"room for {digits(kv['sessions'])} such" if kv.get("sessions") else ""
    return ("–" if share is None else percent(float(share))), sessions


def _preemptions(_: ServedView, run: LoadRun) -> tuple[str, str]:
    count = run.metrics.get("preemptions")
    return (f"{int(count):,}" if count else "–"), ""


def _hits(_: ServedView, run: LoadRun) -> tuple[str, str]:
    share = run.metrics.get("prefix_hit_share")
    return (percent(float(share)) if share else "–"), ""


def _tasks(_: ServedView, run: LoadRun) -> tuple[str, str]:
    tasks = run.metrics.get("tasks")
    if not tasks:
        return "–", ""
    return seconds(tasks["task_s"]["mean"]), f"tools {seconds(tasks['tool_s'])}"


def _memory(served: ServedView, _: LoadRun) -> tuple[str, str]:
    memory = served.plan.memory
    if not memory.capacity_bytes:
        return "–", ""
    return gib(memory.peak_bytes), f"of {gib(memory.capacity_bytes)}"


#: A space without a line break.
NARROW = "\N{NO-BREAK SPACE}"
#: Note on the part of a run that counts.
STEADY = (
    "The verdict rests on the steady part of a run, and so do tokens/s, per GPU, requests within the limits, dollars "
    "and the interval after ±. The small figure is of the whole run, with ramp and drain; waits are of all requests."
)

COLUMNS = (
    Column("Within the limits, requests/s", _goodput),
    Column("Output tokens/s", _rate),
    Column("per GPU", _each),
    Column("First token", _wait("ttft_s")),
    Column("Output token", _wait("tpot_s")),
    Column("Tokens/s per user", _user),
    Column("$/M output tokens", _price),
    Column("Cache at its peak", _cache),
    Column("Preemptions", _preemptions),
    Column("Found in caches", _hits),
    Column("A task", _tasks),
    Column("Memory per GPU", _memory),
)


def build(view: ServingView) -> dict[str, Any]:
    """Rows, the best first; columns with a value for some plan."""
    shown = [column for column in COLUMNS if any(column.cell(served, served.best)[0] != "–" for served in view.served)]
    leading = view.leading or view.ranked[0].name
    rows = [
        {
            "name": served.name,
            "best": served.name == leading,
            "setting": setting(view, served),
            "cells": [column.cell(served, served.best) for column in shown],
        }
        for served in view.ranked
    ]
    return {
        "columns": [column.title for column in shown],
        "rows": rows,
        "refused": [{"name": plan.name, "why": plan.error} for plan in view.refused],
        "note": " ".join(_notes(view)),
    }


def _notes(view: ServingView) -> Iterator[str]:
    """Notes on the load, and on the part of a run, that the rows are of."""
    if view.curve:
        yield "Each plan is shown at its best load; all loads are below."
    if any(served.best.metrics.get("steady") for served in view.served):
        yield STEADY


def setting(view: ServingView, served: ServedView) -> str:
    """The load of a row, on a page with several loads."""
    return view.load_in_words(served.best.load) if view.curve else ""
