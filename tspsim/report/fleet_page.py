"""The page of a fleet: nodes and use over time, waits by size, use of GPU-hours, power."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..base.units import duration, percent, several
from .figures import LEGEND, bars, bars_layout, plan_colour, value_axis
from .fleet import notes_of
from .fleet_gantt import TEMPLATE as NODES
from .fleet_gantt import nodes_figure
from .memo import sheet
from .memo.fleet import memo_of
from .numbers import label, words
from .page import render_sections
from .sections import assumptions, unexplained
from .view import View

if TYPE_CHECKING:
    from ..fleet import FleetAnswer, FleetQuestion
    from ..fleet.result import FleetFacts
    from ..studies.fleet_size import FleetSizes

Floats = NDArray[np.float64]

#: Most points of a line over time.
MOST_POINTS = 1_200
#: Most jobs in the page's list; the JSON has all.
MOST_JOBS = 200
DAY_S = 86_400.0

ANSWER = """
<h1>{{ name }}</h1>
{% if description %}<p>{{ description|prose }}</p>{% endif %}
<p>{{ kicker }}</p>
<p><b>Jobs have {{ allocated }} of all GPU-hours; {{ productive }} do work that lasts.</b> {{ sentence }}</p>
<div class="scroll"><table class="plans">
<thead><tr>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead><tbody>
{% for row in classes %}<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}
<td data-label="{{ columns[loop.index] }}">{{ cell }}</td>{% endfor %}
</tr>{% endfor %}</tbody></table></div>
{% for note in notes %}<p class="note">{{ note|prose }}</p>
{% endfor %}
"""

FIGURE = """
{{ figure(key, caption) }}
{% if rows %}<details><summary>{{ summary }}</summary>
<div class="scroll"><table class="plans">
<thead><tr>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}
<td data-label="{{ columns[loop.index] }}">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></details>{% endif %}
"""

SIZES = """
<h1>{{ name }}</h1>
{% if description %}<p>{{ description|prose }}</p>{% endif %}
<p><b>{{ headline }}</b></p>
<div class="scroll"><table class="plans">
<thead><tr>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}
<td data-label="{{ columns[loop.index] }}">{{ cell }}</td>{% endfor %}
</tr>{% endfor %}</tbody></table></div>
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
"""

Values = dict[str, Any]


def render(answer: FleetAnswer, plotly_js: str = "inline") -> str:
    """The whole page.

    Parameters
    ----------
    answer
        The answer for a fleet.
    plotly_js
        ``inline``, or the address of the plotly bundle.
    """
    facts = answer.facts
    parts: list[tuple[str, str, str, Mapping[str, Any]]] = [("answer", "", ANSWER, _answer(answer))]
    drawn: dict[str, Any] = {}
    nodes, beside, payload = nodes_figure(facts, *_axis(facts))
    if nodes is not None:
        drawn["nodes"] = nodes
        parts.append(("nodes", "Nodes over time", NODES + FIGURE, {"key": "nodes", **beside, "short": "Nodes"}))
    for key, title, short, (figure, values) in (
        ("use", "Use over time", "Use", _use(facts)),
        ("hours", "Where GPU-hours went", "GPU-hours", _hours(facts)),
        ("waits", "Waits by job size", "Waits", _waits(facts)),
        ("power", "Power over time", "Power", _power(facts)),
        ("steps", "Steps of the jobs", "Steps", _steps(answer)),
        ("jobs", "Jobs", "Jobs", _jobs(facts)),
    ):
        if values:
            drawn |= {key: figure} if figure else {}
            parts.append((key, title, FIGURE, {"key": key, "caption": "", **values, "short": short}))
    whole = View(answer)
    for section in (assumptions.SECTION, unexplained.SECTION):
        entries = section.build(whole)
        if entries is not None:
            parts.append((section.key, section.title, section.template, {**entries, "short": section.short}))
    return render_sections(
        parts,
        drawn,
        title=whole.name,
        plotly_js=plotly_js,
        styles=("page.css",),
        scripts=("fleet.js",),
        payload=payload,
    )


def render_sizes(sizes: FleetSizes, question: FleetQuestion, plotly_js: str = "inline") -> str:
    """The page of the nodes that a fleet needs of each offer: their table, the memo, and for each offer that is enough
    the figures of the fleet on its nodes."""
    able = [size for size in sizes.sizes if not size.error]
    fewest = ", ".join(f"{several(size.nodes, 'node')} of {size.offer}" for size in able)
    values: Values = {
        "name": sizes.name,
        "description": question.description,
        "headline": f"Enough in every draw: {fewest}. {sizes.verdict}".strip() if able else "No offer meets the needs.",
        "columns": sizes.COLUMNS,
        "rows": sizes.rows(),
        "sentences": sizes.in_words(),
    }
    parts: list[tuple[str, str, str, Mapping[str, Any]]] = [("answer", "", SIZES, values)]
    drawn: dict[str, Any] = {}
    parts.append(sheet.section(memo_of(sizes, question)))
    for number, size in enumerate(able):
        if size.answer is None:
            continue
        for key, title, (figure, figures) in (
            ("use", "use over time", _use(size.answer.facts)),
            ("hours", "where GPU-hours went", _hours(size.answer.facts)),
            ("waits", "waits by job size", _waits(size.answer.facts)),
        ):
            if figure and figures:
                own = f"{key}-{number}"
                drawn[own] = figure
                title = f"{size.offer}, {several(size.nodes, 'node')}: {title}"
                parts.append((own, title, FIGURE, {"key": own, **figures, "short": title}))
    return render_sections(
        parts, drawn, title=sizes.name, plotly_js=plotly_js, styles=("page.css", "memo.css"), scripts=("memo.js",)
    )


def drawn(answer: FleetAnswer) -> list[tuple[str, Values, str]]:
    """The page's figures without zoom: title, figure, and caption of the use over time and of GPU-hours."""
    figures = (("Where GPU-hours went", _hours(answer.facts)), ("Use over time", _use(answer.facts)))
    return [(title, figure, str(values["caption"])) for title, (figure, values) in figures if figure is not None]


def _answer(answer: FleetAnswer) -> Values:
    facts = answer.facts
    device = answer.cluster["device"]["name"].upper()
    hours = facts.gpu_hours
    lost = sorted(
        ((value, part) for part, value in facts.lost_gpu_hours.items() if value > 0.0005 * hours), reverse=True
    )
    most = ", ".join(f"{words(part)} {percent(value / hours)}" for value, part in lost[:3])
    cost = "" if facts.cost_usd is None else f", {facts.cost_usd:,.0f} USD"
    energy = "" if facts.energy_kwh is None else f", {facts.energy_kwh:,.0f} kWh"
    return {
        "name": str(answer.scenario.get("name", "fleet")),
        "description": answer.scenario.get("description", ""),
        "kicker": f"{several(len(facts.jobs), 'job')} on {several(facts.nodes, 'node')}, {facts.gpus:,} × {device}, "
        f"{duration(facts.horizon_s)}{cost}{energy}.",
        "allocated": percent(facts.allocated),
        "productive": percent(facts.productive),
        "sentence": f"Most of the rest: {most}." if most else "",
        "columns": (
            "class",
            "jobs",
            "done",
            "GPU-hours",
            "mean wait",
            "half wait up to",
            "95 % wait up to",
            "restarts",
        ),
        "classes": [
            (
                kind["class"],
                f"{kind['jobs']:,}",
                f"{kind['done']:,}",
                f"{kind['gpu_hours']:,.0f}",
                *(_time(kind[key]) for key in ("mean_wait_s", "p50_wait_s", "p95_wait_s")),
                f"{kind['restarts']:,}",
            )
            for kind in facts.classes()
        ],
        "notes": notes_of(answer),
    }


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else duration(seconds)


def _axis(facts: FleetFacts) -> tuple[float, str]:
    """Seconds of the unit in which the page shows time, and its name."""
    return (DAY_S, "days") if facts.horizon_s > 3 * DAY_S else (3600.0, "hours")


def _short(value: float) -> float:
    """Six decimals: about a tenth of a second of a day."""
    return round(float(value), 6)


def _thinned(facts: FleetFacts, values: Floats) -> tuple[Floats, Floats]:
    """Starts of at most :data:`MOST_POINTS` equal spans of time, and the mean of a step function over each."""
    at_s, end_s = facts.times.at_s, facts.horizon_s
    if len(at_s) <= MOST_POINTS:
        return at_s, values
    borders = np.linspace(0.0, end_s, MOST_POINTS + 1)
    # The integral of the step function up to each border; its differences are the integrals over the spans.
    spans = np.diff(at_s, append=max(end_s, float(at_s[-1])))
    sums = np.concatenate([[0.0], np.cumsum(values * spans)])
    places = np.clip(np.searchsorted(at_s, borders, side="right") - 1, 0, len(at_s) - 1)
    integral = sums[places] + values[places] * np.maximum(0.0, borders - at_s[places])
    return borders[:-1], np.diff(integral) / (end_s / MOST_POINTS)


def _line(name: str, place: int, x: Floats, y: Floats, **more: Any) -> Values:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [_short(value) for value in x],
        "y": [round(float(value), 3) for value in y],
        "line": {"shape": "hv", "color": plan_colour(place), "width": 1.5},
        **more,
    }


def _over_time(facts: FleetFacts, columns: Mapping[str, Floats]) -> list[tuple[str, ...]]:
    """Means per day or hour, one row each."""
    times, (unit_s, unit) = facts.times, _axis(facts)
    ends = np.append(times.at_s[1:], max(facts.horizon_s, float(times.at_s[-1])))
    count = min(int(np.ceil(facts.horizon_s / unit_s)), MOST_JOBS)
    rows = []
    for number in range(count):
        begin, end = number * unit_s, min((number + 1) * unit_s, facts.horizon_s)
        weight = np.clip(np.minimum(ends, end) - np.maximum(times.at_s, begin), 0.0, None)
        whole = max(float(weight.sum()), 1e-30)
        means = (f"{float((weight * values).sum()) / whole:,.1f}" for values in columns.values())
        rows.append((f"{unit[:-1]} {number + 1}", *means))
    return rows


def _use(facts: FleetFacts) -> tuple[Values | None, Values]:
    """Allocated GPUs, nodes that are down, and waiting jobs."""
    times, (unit_s, unit) = facts.times, _axis(facts)
    if not len(times.at_s):
        return None, {}
    traces = []
    lines = (("allocated GPUs", times.allocated_gpus, "y"), ("waiting jobs", times.waiting_jobs, "y2"))
    for place, (name, values, axis) in enumerate(lines):
        at_s, means = _thinned(facts, values)
        traces.append(_line(name, place, at_s / unit_s, means, yaxis=axis))
    columns = {"allocated GPUs": times.allocated_gpus, "waiting jobs": times.waiting_jobs}
    if times.nodes_down.any():
        at_s, means = _thinned(facts, times.nodes_down)
        traces.append(_line("nodes down", 4, at_s / unit_s, means, yaxis="y2"))
        columns["nodes down"] = times.nodes_down
    layout = {
        "height": 380,
        "dragmode": "zoom",
        "xaxis": {
            "title": {"text": f"{unit} since the start", "standoff": 8}, "zeroline": False, "automargin": True,
            "anchor": "y2",
        },
        "yaxis": value_axis("GPUs", domain=[0.45, 1.0], range=[0, 1.04 * facts.gpus]),
        "yaxis2": value_axis("jobs, nodes", domain=[0.0, 0.36]),
        "showlegend": True,
        "legend": LEGEND,
    }  # fmt: skip
    caption = f"Above: GPUs of {facts.gpus:,} that jobs have. Below: waiting jobs. Drag to zoom."
    return {"data": traces, "layout": layout}, {
        "caption": caption,
        "summary": f"Means of every {unit[:-1]}",
        "columns": (unit[:-1], *columns),
        "rows": _over_time(facts, columns),
    }


def _hours(facts: FleetFacts) -> tuple[Values | None, Values]:
    """From all GPU-hours down to those with lasting work."""
    whole = facts.gpu_hours
    lost = [(words(part), hours) for part, hours in facts.lost_gpu_hours.items() if hours > 1e-9 * whole]
    rows = [("all", whole), *lost, ("productive", facts.productive * whole)]
    left, base = whole, []
    for _, hours in lost:
        left -= hours
        base.append(left)
    texts = [f"{label(name)}: {hours:,.0f} GPU-hours, {percent(hours / whole)}" for name, hours in rows]
    layout = bars_layout([name for name, _ in rows], "GPU-hours", rows="", row_height=30, legend=False)
    starts = [0.0, *(round(max(0.0, value), 3) for value in base), 0.0]
    shades = [plan_colour(9), *[plan_colour(4)] * len(lost), plan_colour(2)]
    data = [bars("GPU-hours", [hours for _, hours in rows], "", texts, base=starts, marker={"color": shades})]
    return {"data": data, "layout": layout}, {
        "caption": "GPU-hours of the cluster, and what is lost of them, down to those with lasting work.",
        "summary": "As a table",
        "columns": ("where", "GPU-hours", "share"),
        "rows": [(name, f"{hours:,.1f}", percent(hours / whole)) for name, hours in rows],
    }


def _waits(facts: FleetFacts) -> tuple[Values | None, Values]:
    """Quantiles (50 and 95 %) of waits by job size, in powers of two."""
    waited = [(job.gpus, job.wait_s) for job in facts.jobs if job.wait_s is not None]
    if not waited:
        return None, {}
    sizes = np.array([gpus for gpus, _ in waited])
    waits = np.array([wait for _, wait in waited], dtype=np.float64)
    power = np.ceil(np.log2(np.maximum(1, sizes))).astype(np.int64)
    rows, points = [], []
    for value in np.unique(power).tolist():
        own = waits[power == value]
        half, most = (float(np.quantile(own, share)) for share in (0.5, 0.95))
        lower = 2 ** (value - 1) + 1 if value > 0 else 1
        name = f"{lower}–{2**value}" if lower < 2**value else str(2**value)
        points.append((2**value, (half, most), f"{name} GPU{'s' if value else ''}, {several(len(own), 'job')}"))
        rows.append((name, f"{len(own):,}", duration(float(own.mean())), duration(half), duration(most)))
    traces = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [size for size, _, _ in points],
            "y": [round(shares[place] / 3600.0, 5) for _, shares, _ in points],
            "hovertext": [f"{jobs}: {duration(shares[place])}" for _, shares, jobs in points],
            "hoverinfo": "text",
            "line": {"color": plan_colour(place), "width": 2},
        }
        for place, name in enumerate(("half wait up to", "95 % wait up to"))
    ]
    ticks = [size for size, _, _ in points]
    layout = {
        "height": 340,
        "xaxis": {
            "type": "log", "title": {"text": "GPUs of the job, at most", "standoff": 8}, "tickvals": ticks,
            "ticktext": [f"{tick:,}" for tick in ticks], "automargin": True,
        },
        "yaxis": value_axis("hours of wait"),
        "showlegend": True,
        "legend": LEGEND,
    }  # fmt: skip
    unstarted = len(facts.jobs) - len(waited)
    cut = f" {several(unstarted, 'job')} that had not started are left out." if unstarted else ""
    return {"data": traces, "layout": layout}, {
        "caption": f"Time from submission to the first start, by the job's size.{cut}",
        "summary": "As a table",
        "columns": ("GPUs", "jobs", "mean wait", "half wait up to", "95 % wait up to"),
        "rows": rows,
    }


def _power(facts: FleetFacts) -> tuple[Values | None, Values]:
    """Power of the machines over time, where it is known."""
    times, (unit_s, unit) = facts.times, _axis(facts)
    if not len(times.watts) or not times.watts.any():
        return None, {}
    at_s, means = _thinned(facts, times.watts / 1000.0)
    layout = {
        "height": 280,
        "dragmode": "zoom",
        "xaxis": {"title": {"text": f"{unit} since the start", "standoff": 8}, "zeroline": False, "automargin": True},
        "yaxis": value_axis("kW"),
        "showlegend": False,
    }
    energy = "" if facts.energy_kwh is None else f" {facts.energy_kwh:,.0f} kWh in all."
    return {"data": [_line("kW", 1, at_s / unit_s, means)], "layout": layout}, {
        "caption": f"Power of the machines, without the building.{energy}",
        "summary": f"Means of every {unit[:-1]}",
        "columns": (unit[:-1], "kW"),
        "rows": _over_time(facts, {"kW": times.watts / 1000.0}),
    }


def _steps(answer: FleetAnswer) -> tuple[None, Values]:
    """The simulated steps; `tspsim run` of a job's scenario writes their own pages."""
    rows = [
        (
            plan.name,
            duration(plan.step_time_s),
            f"{plan.tokens_per_s:,.0f}" if plan.tokens_per_s else "–",
            percent(plan.mfu) if plan.mfu else "–",
            str(plan.bottleneck or "–"),
        )
        for plan in answer.plans
        if plan.step_time_s
    ]
    columns = ("job and size", "step", "tokens/s", "MFU", "bottleneck")
    return None, {"summary": f"{len(rows)} simulated", "columns": columns, "rows": rows} if rows else {}


def _jobs(facts: FleetFacts) -> tuple[None, Values]:
    shown = list(_listed(facts))
    columns = ("job", "class", "user", "GPUs", "submitted", "wait", "ended", "ETTR", "slower", "restarts", "state")
    which = f"The first {len(shown):,} of {len(facts.jobs):,} jobs; all are in the JSON"
    return None, {"summary": which if len(shown) < len(facts.jobs) else "All jobs", "columns": columns, "rows": shown}


def _listed(facts: FleetFacts) -> Iterator[tuple[str, ...]]:
    for job in facts.jobs[:MOST_JOBS]:
        yield (
            job.name,
            job.kind,
            job.user,
            f"{job.gpus:,}",
            duration(job.submit_s),
            _time(job.wait_s),
            _time(job.end_s),
            "–" if job.ettr is None else percent(job.ettr),
            f"{job.slowdown:.3f} ×",
            f"{job.restarts:,}",
            job.state,
        )
