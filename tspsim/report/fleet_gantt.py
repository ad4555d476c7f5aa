"""Nodes over time in a fleet, with the job that has each, from the whole time down to an hour.

A figure of twenty thousand rectangles is slow, so the page draws the largest of its window (``fleet.js``); its data
have all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.units import duration, several
from .figures import LEGEND, plan_colour
from .node_slots import slots
from .numbers import label

if TYPE_CHECKING:
    from ..fleet.result import FleetFacts, JobAnswer

Values = dict[str, Any]

#: Most rectangles that are drawn at once, and that the page has in all, the largest (nodes times hours) first.
MOST_DRAWN, MOST_KEPT = 8_000, 60_000
#: Spells that the table lists.
MOST_LISTED = 200
#: Share of a rectangle's height that is left free above the next one.
GAP = 0.06
DAY_S = 86_400.0
#: Windows of time with a button.
WINDOWS = ((30 * DAY_S, "30 days"), (7 * DAY_S, "7 days"), (DAY_S, "1 day"), (3600.0, "1 hour"))

TEMPLATE = """
<div class="controls" id="nodes-window" data-whole="{{ whole }}"><span class="buttons">
{% for span, name in windows %}<button type="button" data-span="{{ span }}">{{ name }}</button>
{% endfor %}<button type="button" data-step="-1" aria-label="Earlier">‹</button>
<button type="button" data-step="1" aria-label="Later">›</button></span></div>
"""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A spell of a job on neighbouring nodes, or on neighbouring GPUs of one node.

    Attributes
    ----------
    top, high
        In nodes: node ``n`` reaches from ``n`` − 1/2 to ``n`` + 1/2.
    area
        Node-seconds.
    """

    area: float
    spell: int
    top: float
    high: float


def rectangles(facts: FleetFacts) -> Iterator[Rectangle]:
    """All rectangles of a fleet, in the order of their spells."""
    times, of_a_node, parts = facts.times, facts.gpus // max(1, facts.nodes), slots(facts)
    for spell, nodes in enumerate(times.spell_nodes):
        long_s = float(times.spell_end_s[spell] - times.spell_start_s[spell])
        part = parts.get(spell)
        for first, count in runs(nodes if part is None else part):
            high = count if part is None else count / of_a_node
            top = first - 0.5 if part is None else nodes[0] - 0.5 + first / of_a_node
            yield Rectangle(high * long_s, spell, top, high)


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First number and count of every run of neighbours.

    >>> runs((0, 1, 2, 7))
    [(0, 3), (7, 1)]
    """
    own = np.unique(np.asarray(numbers, dtype=np.int64))
    if not len(own):
        return []
    return [(int(run[0]), len(run)) for run in np.split(own, np.flatnonzero(np.diff(own) > 1) + 1)]


def nodes_figure(facts: FleetFacts, unit_s: float, unit: str) -> tuple[Values | None, Values, Values]:
    """Nodes × time, one colour per class: the figure, the values of its section, and the data of its script."""
    times = facts.times
    every = list(rectangles(facts))
    if not every:
        return None, {}, {}
    kept = sorted(every, key=lambda rectangle: (-rectangle.area, rectangle.spell, rectangle.top))[:MOST_KEPT]
    few = len(kept) > MOST_DRAWN
    drawn = [] if few else kept  # the script draws the largest of its window, from data that have all
    kinds = list(dict.fromkeys(facts.jobs[int(job)].kind for job in sorted(set(times.spell_job.tolist()))))
    layout = {
        "height": int(min(760, 220 + 6 * facts.nodes)),
        "barmode": "overlay",
        "dragmode": "zoom",
        "xaxis": {
            "title": {"text": f"{unit} since the start", "standoff": 8}, "zeroline": False, "automargin": True,
            "range": [0.0, _short(facts.horizon_s / unit_s)],
        },
        "yaxis": {
            "title": {"text": "node"}, "range": [facts.nodes - 0.5, -0.5], "automargin": True, "zeroline": False,
        },
        "showlegend": True,
        "legend": LEGEND,
    }  # fmt: skip
    traces = [
        _trace(facts, kind, place, [rectangle for rectangle in drawn if _kind(facts, rectangle) == kind], unit_s, unit)
        for place, kind in enumerate(kinds)
    ]
    left = len(every) - len(kept)
    cut = f" {left:,} of {len(every):,} rectangles, the smallest, are left out." if left else ""
    caption = (
        "A rectangle is a job on neighbouring nodes, or on GPUs of one node, from its start to its end. Drag to zoom, "
        f"or choose a window, down to an hour; a double click shows the whole time again.{cut}"
    )
    if few:
        caption += f" At most {MOST_DRAWN:,} are drawn at once, the largest of the window; "
        caption += "a smaller window shows the others."
    data = {"spells": _columns(facts, kept, kinds, unit_s)} if few else {}
    windows = [(0, "Whole"), *((span / unit_s, name) for span, name in WINDOWS if span < facts.horizon_s)]
    table = _table(facts)
    return {"data": traces, "layout": layout}, {
        "caption": caption, "whole": _short(facts.horizon_s / unit_s), "windows": windows, **table,
    }, data  # fmt: skip


def _kind(facts: FleetFacts, rectangle: Rectangle) -> str:
    return facts.jobs[int(facts.times.spell_job[rectangle.spell])].kind


def _trace(facts: FleetFacts, kind: str, place: int, rows: list[Rectangle], unit_s: float, unit: str) -> Values:
    start_s, end_s = facts.times.spell_start_s, facts.times.spell_end_s
    return {
        "type": "bar",
        "orientation": "h",
        "name": label(kind, 30),
        "base": [_short(start_s[row.spell] / unit_s) for row in rows],
        "x": [_short((end_s[row.spell] - start_s[row.spell]) / unit_s) for row in rows],
        "y": [round(row.top + row.high / 2, 4) for row in rows],
        "width": [_width(row) for row in rows],
        "text": [_in_words(facts, row.spell) for row in rows],
        "textposition": "none",
        "marker": {"color": plan_colour(place), "line": {"width": 0}},
        "hovertemplate": f"%{{text}}<br>from %{{base:.5~g}} {unit}<extra>%{{fullData.name}}</extra>",
    }


def _width(rectangle: Rectangle) -> float:
    return round(rectangle.high - GAP * min(1.0, rectangle.high), 4)


def _columns(facts: FleetFacts, kept: list[Rectangle], kinds: list[str], unit_s: float) -> Values:
    """All rectangles as columns, for the page's script."""
    times = facts.times
    jobs = [facts.jobs[int(times.spell_job[rectangle.spell])] for rectangle in kept]
    names: dict[str, int] = {}
    whys = list(dict.fromkeys(times.spell_why))
    of_kind = {kind: at for at, kind in enumerate(kinds)}
    return {
        "most": MOST_DRAWN,
        "unit_s": unit_s,
        "kinds": [label(kind, 60) for kind in kinds],
        "kind": [of_kind[job.kind] for job in jobs],
        # The nth job of a class is named by its class and n; other names are in a list, counted from -1 down.
        "number": [
            numbered if (numbered := _number(job)) is not None else -1 - names.setdefault(job.name, len(names))
            for job in jobs
        ],
        "names": [label(name, 60) for name in names],
        "whys": whys,
        "nodes": [len(times.spell_nodes[rectangle.spell]) for rectangle in kept],
        "why": [whys.index(times.spell_why[rectangle.spell]) for rectangle in kept],
        "start": [_short(times.spell_start_s[rectangle.spell] / unit_s) for rectangle in kept],
        "span": [
            _short((times.spell_end_s[rectangle.spell] - times.spell_start_s[rectangle.spell]) / unit_s)
            for rectangle in kept
        ],
        "top": [round(rectangle.top, 4) for rectangle in kept],
        "high": [round(rectangle.high, 4) for rectangle in kept],
        "gap": GAP,
    }


def _number(job: JobAnswer) -> int | None:
    """The number of a job within its class, from its name: 7 of ``chat-7``."""
    kind, _, number = job.name.rpartition("-")
    return int(number) if kind == job.kind and number.isdecimal() and number == str(int(number)) else None


def _table(facts: FleetFacts) -> Values:
    times = facts.times
    listed = sorted(range(len(times.spell_nodes)), key=lambda spell: times.spell_start_s[spell])[:MOST_LISTED]
    return {
        "summary": f"The first {len(listed):,} of {len(times.spell_nodes):,} spells as a table",
        "columns": ("job", "class", "nodes", "from", "for", "ended"),
        "rows": [
            (
                facts.jobs[int(times.spell_job[spell])].name,
                facts.jobs[int(times.spell_job[spell])].kind,
                _nodes_in_words(times.spell_nodes[spell]),
                duration(float(times.spell_start_s[spell])),
                duration(float(times.spell_end_s[spell] - times.spell_start_s[spell])),
                times.spell_why[spell],
            )
            for spell in listed
        ],
    }


def _short(value: float) -> float:
    """Five decimals: about a second of a day."""
    return round(float(value), 5)


def _in_words(facts: FleetFacts, spell: int) -> str:
    times = facts.times
    job = facts.jobs[int(times.spell_job[spell])]
    how = duration(float(times.spell_end_s[spell] - times.spell_start_s[spell]))
    return label(f"{job.name}: {several(len(times.spell_nodes[spell]), 'node')}, {how}, {times.spell_why[spell]}", 90)


def _nodes_in_words(nodes: Sequence[int]) -> str:
    """Nodes as runs of neighbours.

    >>> _nodes_in_words((0, 1, 2, 7))
    '0–2, 7'
    """
    own = runs(nodes)
    shown = [str(first) if count == 1 else f"{first}–{first + count - 1}" for first, count in own[:6]]
    return ", ".join(shown) + (" …" if len(own) > 6 else "")
