"""The sweep as one offline page: effects of the axes, curves, every point ranked, and the refused rows' reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tspsim.base.files import atomic_write
from tspsim.report.comparison import rows
from tspsim.report.comparison_page import RANKING, ranking
from tspsim.report.comparison_terms import SIDES
from tspsim.report.page import render_sections
from tspsim.studies.table import Table

from . import figures
from .effects import effects, headline, loss_in_words, scaling, sentences
from .view import Measure, SweepView

#: A part of the page: key, heading, template, values.
Part = tuple[str, str, str, dict[str, Any]]

#: Most rows of the ranking and of the refused rows; the table's file has all.
MOST_ROWS, MOST_REFUSED = 500, 200

#: A longer ranking is folded.
MOST_OPEN = 24

TABLE = f"""<details><summary>{{{{ ranking|length }}}} rows, ranked</summary>{RANKING}</details>"""

ANSWER = """
<p class="kicker">{{ kicker }}</p>
<h1>{{ title }}</h1>
{% if description %}<p class="description">{{ description }}</p>{% endif %}
<p class="headline">{{ headline }}{% if spread %} <span class="spread">{{ spread }}</span>{% endif %}</p>
{% for sentence in sentences %}<p>{{ sentence }}</p>{% endfor %}
"""

FIGURE = """
{% for sentence in sentences %}<p>{{ sentence }}</p>{% endfor %}
{% if wide %}<div class="scroll"><div class="wide">{{ figure(key, caption, "Show") }}</div></div>
{% else %}{{ figure(key, caption, "Show") }}{% endif %}
"""

REFUSED = """
<p>{{ lead }}</p>
<div class="scroll"><table class="plans left limited"><caption class="hidden">Refused runs</caption>
<thead><tr>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table %}<tr class="refused"><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}
<td data-label="{{ columns[loop.index] }}">{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody></table></div>
"""


def page(table: Table, title: str = "", description: str = "", plotly_js: str = "inline") -> str:
    """The whole page.

    Parameters
    ----------
    table
        What a sweep answered.
    title, description
        The scenario's.
    plotly_js
        ``inline``, or the address of the plotly bundle.
    """
    view = SweepView(table, title or "sweep", description)
    drawn: dict[str, Any] = {}
    parts = list(_parts(view, drawn))
    return render_sections(parts, drawn, title=view.title, plotly_js=plotly_js, scripts=("comparison.js",))


def write_page(table: Table, path: Path, title: str = "", description: str = "") -> None:
    """Write :func:`page` to ``path``, whole or not at all.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    atomic_write(Path(path), page(table, title, description))


def _parts(view: SweepView, drawn: dict[str, Any]) -> Iterator[Part]:
    yield "answer", "", ANSWER, answer(view)
    if view.ran:
        yield from pictures(view, drawn)
        yield "ranking-section", "Every point", TABLE if len(view.ran) > MOST_OPEN else RANKING, _ranking(view)
    if view.refused:
        yield "refused", "Refused", REFUSED, _refused(view)
    yield "assumptions", "Swept values", SIDES, _swept(view)


def answer(view: SweepView) -> dict[str, Any]:
    """The headline and the sentences below it."""
    axes = [*view.axes, *view.together]
    axis_names = " · ".join(f"{axis.name} ({len(axis.values)})" for axis in axes) or "one point"
    kicker = f"Sweep over {axis_names}{', stepping together' if view.together else ''} · {view.counted}"
    values = {"kicker": kicker, "title": view.title, "description": view.description}
    if not view.measures:
        return values | {
            "headline": f"{'No plan' if view.BEST else 'Nothing'} ran at any point.",
            "spread": "",
            "sentences": [],
        }
    leading = view.measures[0]
    texts = list(sentences(view, leading))
    _, lines = scaling(view)
    if lines:
        texts.append(loss_in_words(lines))
    first, others = headline(view, leading)
    return values | {"headline": first, "spread": others, "sentences": texts}


def pictures(view: SweepView, drawn: dict[str, Any]) -> Iterator[Part]:
    """The parts with figures; ``drawn`` takes the figures."""
    leading = view.measures[0]
    axes, several = view.axes, [axis for axis in (*view.axes, view.plans) if len(axis.values) > 1]
    if len(axes) >= 1 and len(axes) <= 2:
        axis = max(axes, key=lambda one_axis: (one_axis.numeric, len(one_axis.values)))
        drawn["lines"] = {"choices": list(figures.choices(view, lambda measure: figures.lines(view, axis, measure)))}
        left = figures.left_out(view, axis)
        thinned_note = [f"{left} more lines lie below these; the table below has them."] if left else []
        caption = f"Over {axis.name}; a gap is a refused run. {view.MARK}"
        yield "lines", "Lines", FIGURE, {"key": "lines", "caption": caption, "sentences": thinned_note, "wide": False}
    if len(axes) == 2:
        drawn["heat"] = {"choices": list(_heats(view))}
        whose = f"The {view.BEST} of every cell, and each plan alone; " if view.BEST else ""
        caption = f"{whose}× was refused."
        yield "heat", "Heat map", FIGURE, {"key": "heat", "caption": caption, "sentences": [], "wide": False}
    if len(axes) > 2 or (len(several) > 2 and len(axes) > 1):
        drawn["strands"] = {"choices": list(figures.choices(view, lambda measure: figures.strands(view, measure)))}
        thinned_note = []
        if len(view.ran) > figures.MOST_STRANDS:
            thinned_note = [
                f"{figures.MOST_STRANDS} of {len(view.ran):,} rows are drawn, evenly from the worst to the best."
            ]
        caption = "A line is a row that ran; it passes every axis at its value and ends at what it reached."
        values = {"key": "strands", "caption": caption, "sentences": thinned_note, "wide": True, "short": "Parallel"}
        yield "parallel", "Parallel coordinates", FIGURE, values
    axis_effects = effects(view, leading)
    if len(axis_effects) > 1:
        drawn["reach"] = figures.reach(axis_effects, leading)
        caption = "Geometric mean over all rows that differ by this axis alone."
        yield (
            "reach",
            "Effect of each axis",
            FIGURE,
            {"key": "reach", "caption": caption, "sentences": [], "wide": False},
        )
    kind, lines = scaling(view)
    if lines:
        drawn["efficiency"] = figures.efficiency(lines)
        what = {"weak": "Weak scaling: more GPUs, as much more work.", "strong": "Strong scaling: the same work."}[kind]
        caption = "Tokens/s/GPU over that of the smallest machine of the line; the axis begins where the loss ends."
        values = {"key": "efficiency", "caption": caption, "sentences": [what, loss_in_words(lines)], "wide": False}
        yield "efficiency", "Scaling", FIGURE, values


def _heats(view: SweepView) -> Iterator[dict[str, Any]]:
    """The leading measure of the best plan and of every plan, then the other measures of the best plan."""
    names: list[str | None] = [None]
    if len(view.plans.values) > 1:
        names += [str(name) for name in view.plans.values[:8]]
    leading: Measure = view.measures[0]
    for name in names:
        yield {
            "label": ", ".join(filter(None, [leading.title, name or view.BEST])),
            **figures.heat(view, name, leading),
        }
    for measure in view.measures[1:]:
        yield {"label": ", ".join(filter(None, [measure.title, view.BEST])), **figures.heat(view, None, measure)}


def _ranking(view: SweepView) -> dict[str, Any]:
    """The rows that ran, ranked."""
    places = {row.point: view.place_words(row) or view.title for row in view.rows}
    every = rows(
        replace(result, scenario={**result.scenario, "name": name})
        for result, name in zip(view.table.results, places.values(), strict=True)
    )
    values = ranking([row for row in every if row.plan.ran], {}, {})
    left = len(values["ranking"]) - MOST_ROWS
    if left > 0:
        values["ranking"] = sorted(values["ranking"], key=lambda row: -float(row["measures"][0][1]))[:MOST_ROWS]
    return values | {"refused": [], "several": False}


def _refused(view: SweepView) -> dict[str, Any]:
    """The refused rows with their reasons."""
    axes = [*view.axes, *view.together]
    shown = view.refused[:MOST_REFUSED]
    left = len(view.refused) - len(shown)
    lead = f"{len(view.refused):,} rows are refused" + (f"; {left:,} more are in the table's file." if left else ".")
    table = [[row.plan, *(axis.words(row.coordinates[axis.path]) for axis in axes), row.error] for row in shown]
    return {"lead": lead, "columns": ["plan", *(axis.title for axis in axes), "why"], "table": table}


def _swept(view: SweepView) -> dict[str, Any]:
    """The swept paths and their values."""
    table = [
        (path, [", ".join(axis.words(value) for value in axis.values[:40]) + (" …" if len(axis.values) > 40 else "")])
        for path in view.paths
        for axis in [view.axis(path)]
    ]
    table.append(("plans", [", ".join(map(str, view.plans.values[:40]))]))
    return {"names": ["values"], "table": table, "defaults": []}
