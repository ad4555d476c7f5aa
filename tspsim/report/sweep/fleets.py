"""The page of a sweep over a fleet: effects on use, waits and cost, every point, and the refused points' reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from tspsim.base.files import atomic_write
from tspsim.base.units import compact, percent
from tspsim.report.comparison_terms import SIDES
from tspsim.report.numbers import seconds, words
from tspsim.report.page import render_sections
from tspsim.studies.table import Table

from .page import ANSWER, MOST_REFUSED, MOST_ROWS, REFUSED, Part, answer, pictures
from .view import PLAN, Measure, SweepRow, SweepView

#: Measures of the pages of fleets; the first leads.
MEASURES = (
    Measure("productive", "work that lasts, % of GPU-hours", percent, scale=100.0),
    Measure("allocated", "held by jobs, % of GPU-hours", percent, scale=100.0),
    Measure("p95_wait_s", "95 % of jobs wait up to, s", seconds, more=False),
    Measure("p50_wait_s", "half of jobs wait up to, s", seconds, more=False),
    Measure("mean_wait_s", "mean wait, s", seconds, more=False),
    Measure("horizon_s", "simulated time, s", seconds, more=False),
    Measure("done", "jobs done", compact),
    Measure("restarts", "restarts", compact, more=False),
    Measure("cost_usd", "cost, USD", lambda value: f"${value:,.0f}", more=False),
    Measure("energy_kwh", "energy, kWh", compact, more=False),
)
LOST = "lost_"
#: Columns of the table of every point, after the swept paths.
SHOWN = ("done", "allocated", "productive", "p50_wait_s", "p95_wait_s", "restarts", "cost_usd", "energy_kwh")

POINTS = """
<div class="scroll"><table><caption class="hidden">Every point</caption>
<thead><tr>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table %}<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>
{% endfor %}</tr>{% endfor %}</tbody></table></div>
{% if left %}<p class="note">{{ left }} more rows are in the table's file.</p>{% endif %}
"""


class FleetView(SweepView):
    """A table of fleets as the page reads it: one answer per point."""

    BEST: ClassVar[str] = ""
    MARK: ClassVar[str] = "Point at a mark for its number."

    def _rows(self) -> list[SweepRow]:
        rows = []
        for cells in self.table.rows():
            numbers = {
                name: float(value)
                for name, value in cells.items()
                if name not in self.table.swept and isinstance(value, int | float) and not isinstance(value, bool)
            }
            place, error = cells["point"], cells["error"]
            assert isinstance(place, int)
            coordinates = {path: cells[path] for path in self.paths} | {PLAN: ""}
            rows.append(SweepRow(coordinates, numbers, str(error) if error is not None else "", place))
        return rows

    @property
    def counted(self) -> str:
        return f"{len(self.rows):,} points, {len(self.ran):,} ran"

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures that rows have, then the kinds of lost GPU-hours that occurred."""
        names = {name for row in self.ran for name in row.numbers}
        lost = [name for name in names if name.startswith(LOST) and any(row.numbers.get(name) for row in self.ran)]
        return (
            *(measure for measure in MEASURES if measure.column in names),
            *(
                Measure(name, f"lost: {words(name.removeprefix(LOST).removesuffix('_gpu_hours'))}, GPU-hours", compact,
                        more=False)
                for name in sorted(lost, key=lambda name: -max(row.numbers.get(name, 0.0) for row in self.ran))
            ),
        )  # fmt: skip


def page(table: Table, title: str = "", description: str = "", plotly_js: str = "inline") -> str:
    """The whole page; the parameters are those of :func:`tspsim.report.sweep.page`."""
    view = FleetView(table, title or "sweep", description)
    drawn: dict[str, Any] = {}
    parts = list(_parts(view, drawn))
    return render_sections(parts, drawn, title=view.title, plotly_js=plotly_js, scripts=("comparison.js",))


def write_page(table: Table, path: Path, title: str = "", description: str = "") -> None:
    """Write :func:`page`, whole or not at all; raises InputError where the file cannot be written."""
    atomic_write(Path(path), page(table, title, description))


def _parts(view: FleetView, drawn: dict[str, Any]) -> Iterator[Part]:
    yield "answer", "", ANSWER, answer(view)
    axes = [*view.axes, *view.together]
    if view.ran:
        yield from pictures(view, drawn)
        yield "points", "Every point", POINTS, _points(view)
    if view.refused:
        shown = view.refused[:MOST_REFUSED]
        left = len(view.refused) - len(shown)
        lead = f"{len(view.refused):,} points are refused" + (
            f"; {left:,} more are in the table's file." if left else "."
        )
        table = [
            [str(row.point + 1), *(axis.words(row.coordinates[axis.path]) for axis in axes), row.error] for row in shown
        ]
        columns = ["point", *(axis.title for axis in axes), "why"]
        yield "refused", "Refused", REFUSED, {"lead": lead, "columns": columns, "table": table}
    swept = [(path, [", ".join(axis.words(value) for value in axis.values[:40])]) for path in view.paths
             for axis in [view.axis(path)]]  # fmt: skip
    yield "assumptions", "Swept values", SIDES, {"names": ["values"], "table": swept, "defaults": []}


def _points(view: FleetView) -> dict[str, Any]:
    """One row per point that ran, in the order of the sweep."""
    axes = [view.axis(path) for path in view.paths]
    shown = [measure for column in SHOWN for measure in view.measures if measure.column == column]
    rows = [
        [
            *(axis.words(row.coordinates[axis.path]) for axis in axes),
            *(_words(measure, row.numbers.get(measure.column, math.nan)) for measure in shown),
        ]
        for row in view.ran[:MOST_ROWS]
    ]
    columns = [*(axis.title for axis in axes), *(measure.name for measure in shown)]
    return {"columns": columns, "table": rows, "left": max(0, len(view.ran) - MOST_ROWS)}


def _words(measure: Measure, value: float) -> str:
    return "–" if math.isnan(value) else measure.words(value)
