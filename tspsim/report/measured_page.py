"""The page of a measured step beside the simulated one: both timelines on one axis, losses, gaps, causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import shorten
from ..base.files import atomic_write
from ..base.units import duration, percent, signed_duration
from ..traces.comparison import Laid
from ..traces.kinds import KINDS
from ..traces.learned import Follows
from .figures import LEGEND, colours
from .numbers import label
from .page import render_sections
from .trace import _json

#: Most bars per timeline of the figure; of longer steps the longest are drawn.
MOST_BARS = 3000
MOST_ROWS = 60

SUMMARY = """
<h1>{{ name }}: measured beside simulated</h1>
<p>Plan {{ plan }}, rank {{ rank }}{% if step >= 0 %}, step {{ step }}{% endif %} of {{ files }}.
The step takes <b>{{ measured }}</b>, simulated <b>{{ simulated }}</b> ({{ off }}).
{% if layer %}A layer takes {{ layer[0] }}, simulated {{ layer[1] }} ({{ layer[2] }}). {% endif %}
{{ matched }} of the kernels' time found its operator. {{ sentence }}</p>
{% for note in notes %}<p class="note">{{ note }}.</p>{% endfor %}
<h2>Causes</h2>
<div class="scroll"><table>
<thead><tr><th>cause</th><th>adds</th><th>meaning</th></tr></thead><tbody>
{% for cause, seconds, what in causes %}
<tr><th scope="row">{{ cause }}</th><td>{{ seconds }}</td><td>{{ what }}</td></tr>{% endfor %}
</tbody></table></div>
"""

LANES = """
{{ figure("lanes", caption) }}
"""

TABLES = """
<h2>By kind</h2>
<div class="scroll"><table>
<thead><tr><th>kind</th><th>kernels</th><th>measured</th><th>simulated</th><th>lost</th></tr></thead><tbody>
{% for row in kinds %}<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<h2>By operator, most lost first</h2>
<div class="scroll"><table>
<thead><tr><th>operator</th><th>phase</th><th>kind</th><th>times</th><th>measured</th><th>simulated</th><th>lost</th></tr>
</thead><tbody>
{% for row in operators %}<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}
</tr>{% endfor %}</tbody></table></div>
{% if left %}
<details><summary>Kernels without an operator</summary>
<div class="scroll"><table>
<thead><tr><th>kernel</th><th>kind</th><th>times</th><th>total</th></tr></thead><tbody>
{% for row in left %}<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></details>
{% endif %}
{% if gaps %}
<h2>Gaps: the device waits for the host</h2>
<div class="scroll"><table>
<thead><tr><th>at</th><th>for</th><th>behind</th><th>before</th></tr></thead><tbody>
{% for row in gaps %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endif %}
"""

FOLLOWS = """
<p>With every kernel family corrected by this step's measurement ({{ factors }}), and transfers unchanged:</p>
<div class="scroll"><table>
<thead><tr><th>plan</th><th>step before</th><th>step corrected</th><th>tokens/s corrected</th></tr></thead><tbody>
{% for row in rows %}<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
"""

_CAUSES = (
    ("kernels", "kernels_s", "kernels take longer or shorter than the device's model says"),
    ("collectives", "collectives_s", "transfers take longer or shorter"),
    ("host", "host_s", "the device waits for the host longer than simulated"),
    ("schedule", "schedule_s", "kernels overlap in the program and not in the trace, or the reverse"),
)


def write_measured(laid: Laid, path: Path, follows: Follows | None = None) -> None:
    """Write the page.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    sections: list[tuple[str, str, str, Mapping[str, Any]]] = [
        ("summary", "", SUMMARY, _summary(laid)),
        ("lanes", "Both steps on one axis", LANES, {"caption": _caption(laid)}),
        ("tables", "Where the time goes", TABLES, _tables(laid)),
    ]
    if follows is not None and follows.plans:
        sections.append(("follows", "Your plans with this correction", FOLLOWS, _follows(follows)))
    name = laid.lane.question.scenario.name
    page = render_sections(
        sections, {"lanes": figure(laid)}, title=f"{name}: measured", plotly_js="inline", styles=("page.css",)
    )
    atomic_write(path, page)


def _off(measured_s: float, simulated_s: float) -> str:
    if not measured_s:
        return "not measured"
    share = simulated_s / measured_s - 1.0
    return f"{percent(abs(share))} {'longer' if share > 0 else 'shorter'} than measured"


def _summary(laid: Laid) -> dict[str, Any]:
    layer = laid.layer_s
    return {
        "name": laid.lane.question.scenario.name,
        "plan": laid.plan,
        "rank": laid.rank,
        "step": laid.step,
        "files": ", ".join(path.name for path in laid.trace.files[:3]),
        "measured": duration(laid.measured_s),
        "simulated": duration(laid.simulated_s),
        "off": _off(laid.measured_s, laid.simulated_s),
        "layer": (duration(layer[0]), duration(layer[1]), _off(*layer)) if layer else None,
        "matched": percent(laid.matched_share),
        "sentence": laid.in_a_sentence,
        "notes": laid.notes,
        "causes": [(name, signed_duration(getattr(laid.causes, key)), what) for name, key, what in _CAUSES],
    }


def _tables(laid: Laid) -> dict[str, Any]:
    return {
        "kinds": [
            (
                row.kind, f"{row.count:,}", duration(row.measured_s), duration(row.simulated_s),
                signed_duration(row.lost_s),
            )
            for row in sorted(laid.kinds, key=lambda row: -row.lost_s)
        ],
        "operators": [
            (row.name, row.phase, row.kind, f"{row.count:,}", duration(row.measured_s), duration(row.simulated_s),
             signed_duration(row.lost_s))
            for row in laid.operators[:MOST_ROWS]
        ],
        "left": [
            (shorten(x.name, 90), x.kind, f"{x.count:,}", duration(x.seconds)) for x in laid.left_over[:MOST_ROWS]
        ],
        "gaps": [
            (duration(gap.start_s), duration(gap.seconds), shorten(gap.after, 60), shorten(gap.before, 60))
            for gap in laid.gaps[:10]
        ],
    }  # fmt: skip


def _follows(follows: Follows) -> dict[str, Any]:
    factors = ", ".join(f"{family} × {factor:.2f}" for family, factor in follows.factors.items())
    rows = [
        (plan.name, duration(plan.before_s), duration(plan.after_s), f"{plan.tokens_per_s:,.0f}")
        for plan in follows.plans
    ]
    return {"factors": factors, "rows": rows}


def _caption(laid: Laid) -> str:
    return (
        f"{len(laid.trace):,} kernels above {len(laid.lane.operations):,} simulated operators, in milliseconds from "
        "the step's first; colours are kinds, drag to zoom, both timelines move together."
    )


def _bars(laid: Laid) -> Iterator[tuple[str, str, float, float, str]]:
    """Timeline, kind, start and length in milliseconds, text."""
    trace, first = laid.trace, float(laid.trace.columns["start_s"].min())
    kinds, names, streams = (trace.word(column) for column in ("kind", "name", "stream"))
    seconds = trace.columns["duration_s"]
    for row in sorted(np.argsort(-seconds, kind="stable")[:MOST_BARS].tolist()):
        index = int(laid.operation[row])
        item = laid.lane.operations[index] if index >= 0 else None
        operator = f"{item.name}, layer {item.layer}" if item is not None else "left over"
        start = (float(trace.columns["start_s"][row]) - first) * 1e3
        yield f"measured {streams[row]}", kinds[row], start, float(seconds[row]) * 1e3, f"{operator}: {names[row][:70]}"
    operations = sorted(laid.lane.operations, key=lambda operation: -operation.seconds)[:MOST_BARS]
    begin = min((operation.start_s for operation in laid.lane.operations), default=0.0)
    for operation in sorted(operations, key=lambda operation: operation.start_s):
        text = f"{operation.name}, layer {operation.layer} ({operation.phase}): {operation.shape}"
        yield (
            f"simulated {operation.stream}",
            operation.kind,
            (operation.start_s - begin) * 1e3,
            operation.seconds * 1e3,
            text,
        )


#: What a colour is mixed with when a further kind has it: white, then black, and how much of that.
_TINTS = (("#ffffff", 0.0), ("#ffffff", 0.55), ("#000000", 0.45))


def _distinct(shades: Mapping[str, str]) -> dict[str, str]:
    """Colours of kinds, lighter and then darker where the palette has fewer than there are kinds."""
    times: dict[str, int] = {}
    distinct = {}
    for kind, shade in shades.items():
        turn = times[shade] = times.get(shade, -1) + 1
        other, share = _TINTS[turn % len(_TINTS)]
        parts = zip(*(bytes.fromhex(colour[1:]) for colour in (shade, other)), strict=True)
        distinct[kind] = "#" + bytes(round(own + share * (mixed - own)) for own, mixed in parts).hex()
    return distinct


def figure(laid: Laid) -> dict[str, Any]:
    """Bars of both timelines, one colour per kind."""
    bars = list(_bars(laid))
    lanes = list(dict.fromkeys(bar[0] for bar in bars))
    kinds = sorted({bar[1] for bar in bars}, key=lambda kind: KINDS.index(kind) if kind in KINDS else len(KINDS))
    shades = _distinct(colours(kinds))
    traces = []
    for kind in kinds:
        own = [bar for bar in bars if bar[1] == kind]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": label(kind, 30),
                "base": [round(bar[2], 5) for bar in own],
                "x": [round(bar[3], 5) for bar in own],
                "y": [lanes.index(bar[0]) for bar in own],
                "text": [label(bar[4], 110) for bar in own],
                "textposition": "none",
                "width": 0.85,
                "marker": {"color": shades[kind], "line": {"width": 0}},
                "hovertemplate": "%{text}<br>%{x:.4g} ms at %{base:.5g} ms<extra>%{fullData.name}</extra>",
            }
        )
    layout = {
        "height": 140 + 46 * len(lanes),
        "barmode": "overlay",
        "bargap": 0.15,
        "xaxis": {"title": {"text": "ms", "standoff": 8}, "zeroline": False, "automargin": True},
        "yaxis": {
            "tickvals": list(range(len(lanes))), "ticktext": [label(lane, 40) for lane in lanes],
            "autorange": "reversed", "automargin": True, "fixedrange": True,
        },
        "showlegend": True,
        "legend": LEGEND,
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def write_both(laid: Laid, path: Path) -> None:
    """Write both timelines as one Chrome trace, which Perfetto opens: process 1 measured, process 2 simulated."""
    atomic_write(path, _events(laid))


def _events(laid: Laid) -> Iterator[str]:
    trace, first = laid.trace, float(laid.trace.columns["start_s"].min())
    lines: list[dict[str, Any]] = []
    names, kinds, streams = (trace.word(column) for column in ("name", "kind", "stream"))
    of_streams = _numbered(streams.tolist())
    for process, name in ((1, "measured"), (2, f"simulated {laid.plan}")):
        lines.append({"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}})
    lines += [
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": f"stream {stream}"}}
        for stream, number in of_streams.items()
    ]
    for row in range(len(trace)):
        index = int(laid.operation[row])
        item = laid.lane.operations[index] if index >= 0 else None
        arguments = {"operator": item.name, "layer": item.layer, "phase": item.phase} if item is not None else {}
        lines.append(
            {"name": names[row], "cat": kinds[row], "ph": "X", "pid": 1, "tid": of_streams[streams[row]],
             "ts": round((float(trace.columns["start_s"][row]) - first) * 1e6, 4),
             "dur": round(float(trace.columns["duration_s"][row]) * 1e6, 4), "args": arguments}
        )  # fmt: skip
    theirs = _numbered([item.stream for item in laid.lane.operations])
    lines += [
        {"name": "thread_name", "ph": "M", "pid": 2, "tid": number, "args": {"name": stream}}
        for stream, number in theirs.items()
    ]
    begin = min((item.start_s for item in laid.lane.operations), default=0.0)
    for item in laid.lane.operations:
        lines.append(
            {"name": item.name, "cat": item.kind, "ph": "X", "pid": 2, "tid": theirs[item.stream],
             "ts": round((item.start_s - begin) * 1e6, 4), "dur": round(item.seconds * 1e6, 4),
             "args": {"part": item.part, "layer": item.layer, "phase": item.phase, "shape": item.shape}}
        )  # fmt: skip
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    for place, line in enumerate(lines):
        yield (",\n" if place else "") + _json(line)
    yield "\n]}\n"


def _numbered(words: Sequence[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(dict.fromkeys(words), start=1)}
