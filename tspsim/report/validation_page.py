"""The validation page: each table's errors, predicted over measured, and the rows with the largest errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tspsim.validation import TableOutcome, Validation

from ..base.files import atomic_write
from .figures import LEGEND
from .numbers import label
from .page import render_sections
from .validation import ERRORS, share

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Most points of one figure; of a longer table every n-th row is drawn.
MOST_POINTS = 1200
MOST_GROUPS = 40
WORST_ROWS = 12
#: Colours of Okabe and Ito (2008), and some more.
COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#8a94a6", "#44aa99", "#999933", "#882255",
    "#6699cc", "#661100", "#ddcc77",
)  # fmt: skip

SUMMARY = """
<h1>Predicted over measured</h1>
<p>{{ tables|length }} tables, {{ "{:,}".format(rows) }} rows, {{ "{:,}".format(predicted) }} of them predicted. An
error is |predicted / measured − 1|.</p>
<div class="scroll"><table>
<thead><tr><th>table</th><th>column</th><th>rows</th><th>predicted</th><th>median</th><th>mean</th><th>90 %</th>
<th>bias</th><th>within range</th></tr></thead>
<tbody>
{% for table in tables %}
<tr><th scope="row">{% if table.drawn %}<a href="#{{ table.key }}">{{ table.path }}</a>{% else %}{{ table.path }}
{% endif %}</th>
<td>{{ table.column }}</td><td>{{ "{:,}".format(table.rows) }}</td><td>{{ "{:,}".format(table.predicted) }}</td>
<td>{{ table.median }}</td><td>{{ table.mean }}</td><td>{{ table.p90 }}</td><td>{{ table.bias }}</td>
<td>{{ table.in_range }}</td></tr>
{% endfor %}
</tbody></table></div>
{% if skipped %}
<h2>Skipped</h2>
<div class="scroll"><table>
<thead><tr><th>why</th><th>rows</th></tr></thead>
<tbody>
{% for path, reason, rows in skipped %}
<tr><th scope="row">{{ path }}: {{ reason }}</th><td>{{ "{:,}".format(rows) }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
"""

SECTION = """
<p class="note">{{ column }}; {{ sentence }}</p>
{{ figure(key, caption) }}
<details><summary>By {{ grouped }}</summary>
<div class="scroll"><table>
<thead><tr><th>{{ grouped }}</th><th>rows</th><th>median</th><th>mean</th><th>90 %</th><th>bias</th>
<th>within range</th></tr></thead>
<tbody>
{% for group in groups %}
<tr><th scope="row">{{ group.name }}</th><td>{{ "{:,}".format(group.scored) }}</td><td>{{ group.median }}</td>
<td>{{ group.mean }}</td><td>{{ group.p90 }}</td><td>{{ group.bias }}</td><td>{{ group.in_range }}</td></tr>
{% endfor %}
</tbody></table></div></details>
<details><summary>The {{ worst|length }} rows furthest off</summary>
<div class="scroll"><table class="wraps">
<thead><tr>{% for name in columns %}<th>{{ name }}</th>{% endfor %}<th>predicted</th><th>error</th></tr></thead>
<tbody>
{% for cells in worst %}
<tr>{% for cell in cells %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div></details>
{% if notes %}
<details><summary>Assumed</summary><ul>
{% for sentence, rows in notes %}<li>{{ sentence }} ({{ "{:,}".format(rows) }} rows)</li>
{% endfor %}</ul></details>
{% endif %}
"""


def write_page(validation: Validation, path: Path) -> None:
    """One offline HTML page.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    figures: dict[str, Any] = {}
    sections: list[tuple[str, str, str, Mapping[str, Any]]] = [("summary", "", SUMMARY, _summary(validation))]
    for index, outcome in enumerate(validation.outcomes):
        if not _scored(outcome).any():
            continue
        key = _key(index)
        figures[key] = figure(outcome)
        sections.append((key, outcome.table.path, SECTION, _section(outcome, key)))
    page = render_sections(sections, figures, title="Validation", plotly_js="inline", styles=("page.css",))
    atomic_write(Path(path), page)


def figure(outcome: TableOutcome) -> dict[str, Any]:
    """Predicted over measured against measured, one colour per value of the table's first grouping column."""
    where = np.flatnonzero(_scored(outcome))
    where = where[:: -(-len(where) // MOST_POINTS)]
    groups = outcome.table.groups
    column = groups[0][0] if groups and groups[0][0] in outcome.rows else None
    values: NDArray[Any] = (
        outcome.rows[column].to_numpy(dtype=object)[where] if column else np.full(len(where), "all", dtype=object)
    )
    traces = []
    for index, value in enumerate(sorted(set(values.tolist()))):
        mine = where[values == value]
        measured, predicted = outcome.measured[mine], outcome.answers.predicted[mine]
        traces.append(
            {
                "type": "scatter",  # drawn as SVG: not every browser has WebGL
                "mode": "markers",
                "name": label(value, 30),
                "x": [_short(x) for x in measured],
                "y": [_short(y) for y in predicted / measured],
                "marker": {"size": 5, "opacity": 0.55, "color": COLOURS[index % len(COLOURS)]},
                "hovertemplate": "measured %{x:.4~g}<br>predicted/measured %{y:.3f}<extra>%{fullData.name}</extra>",
            }
        )
    ratios = outcome.answers.predicted[where] / outcome.measured[where]
    limit = float(np.clip(np.quantile(np.abs(np.log2(ratios)), 0.995) * 1.15, 0.35, 4.0))
    axis = {"automargin": True, "zeroline": False}
    layout = {
        "height": 380,
        "xaxis": {**axis, "type": "log", "title": {"text": label(f"measured {outcome.table.column}"), "standoff": 8}},
        "yaxis": {
            **axis, "type": "log", "title": {"text": "predicted / measured", "standoff": 8},
            "range": [-limit * np.log10(2), limit * np.log10(2)],
            "tickvals": [0.1, 0.25, 0.5, 0.8, 0.9, 1, 1.1, 1.25, 2, 4, 10],
        },
        "showlegend": True,
        "legend": LEGEND,
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def worst(outcome: TableOutcome, count: int = WORST_ROWS) -> list[int]:
    """The positions of the rows with the largest errors by factor, the largest first."""
    scored = _scored(outcome)
    off = np.full(len(scored), -1.0)
    off[scored] = np.abs(np.log(outcome.answers.predicted[scored] / outcome.measured[scored]))
    order = np.argsort(-off, kind="stable")
    return [int(row) for row in order[:count] if scored[row]]


def _scored(outcome: TableOutcome) -> NDArray[np.bool_]:
    measured = outcome.measured
    return np.isfinite(measured) & (measured > 0.0) & outcome.predicted


def _key(index: int) -> str:
    return f"table-{index}"


def _summary(validation: Validation) -> dict[str, Any]:
    tables, skipped = [], []
    for index, outcome in enumerate(validation.outcomes):
        summary = outcome.summary()
        drawn = bool(summary["scored"])
        facts = {"path": outcome.table.path, "column": outcome.table.column, "key": _key(index), "drawn": drawn}
        tables.append(facts | {"rows": summary["rows"], "predicted": summary["predicted"]} | _shown(summary))
        skipped += [(outcome.table.path, reason, rows) for reason, rows in summary["skipped"].items()]
    return {
        "tables": tables,
        "skipped": skipped,
        "rows": sum(table["rows"] for table in tables),
        "predicted": sum(table["predicted"] for table in tables),
    }


def _section(outcome: TableOutcome, key: str) -> dict[str, Any]:
    summary = outcome.summary()
    by: Mapping[str, Any] = summary["by"]
    grouped = list(by)[-1] if by else ""
    groups = [
        {"name": name, "scored": error["scored"], **_shown(error)}
        for name, error in (by[grouped].items() if by else [])
        if error["scored"]
    ]
    rows = worst(outcome)
    columns = [name for name in outcome.rows.columns if name not in ("source", "source_url", "notes")][:14]
    cells = [[*_line(outcome.rows.iloc[row][columns].tolist()), *_error(outcome, row)] for row in rows]
    drawn = min(int(_scored(outcome).sum()), MOST_POINTS)
    return {
        "key": key,
        "column": outcome.table.column,
        "sentence": f"{summary['scored']:,} rows compared",
        "caption": f"Predicted over measured against measured, {drawn:,} rows; 1 is exact.",
        "grouped": grouped or "all",
        "groups": groups[:MOST_GROUPS],
        "worst": cells,
        "columns": columns,
        "notes": list(summary["notes"].items())[:MOST_GROUPS],
    }


def _line(cells: Sequence[str]) -> list[str]:
    return [" ".join(str(cell).split())[:60] for cell in cells]


def _error(outcome: TableOutcome, row: int) -> list[str]:
    predicted, measured = outcome.answers.predicted[row], outcome.measured[row]
    return [f"{predicted:.5g}", f"{100 * (predicted / measured - 1):+.0f} %"]


def _shown(error: Mapping[str, Any]) -> dict[str, str]:
    """A table's errors by the names of the templates' columns."""
    names = ("median", "mean", "p90", "bias", "in_range")
    return {name: share(error[key], "+" if key == "bias" else "") for name, key in zip(names, ERRORS, strict=True)}


def _short(value: float) -> float:
    """A number with the four digits a point needs."""
    return float(f"{value:.4g}")
