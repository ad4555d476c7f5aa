"""Answers as one figure and one page each, for notebooks and programs.

The type of the answer decides: a result, searched plans, a sweep, a validation, ceilings. Figures are
``plotly.graph_objects.Figure`` objects: a notebook shows them, and a program may change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING

from tspsim.base.display import ShownPlans
from tspsim.base.files import atomic_write
from tspsim.base.units import compact, percent
from tspsim.step.bound import Bounds
from tspsim.step.result import PlanResult, Result
from tspsim.studies.planner.answer import Planned
from tspsim.studies.planner.offers import OffersPlanned
from tspsim.studies.planner.service_answer import ServicePlanned
from tspsim.studies.planner.traffic_answer import TrafficPlanned
from tspsim.studies.sizing import Sizing
from tspsim.studies.table import Table
from tspsim.validation.run import Validation

from . import (
    offers_plan,
    plan_page,
    searched,
    serving_plan,
    size_page,
    traffic_plan,
    validation_page,
    write_report,
)
from .figures import ACCENT, QUIET, plan_colour
from .page import render_sections
from .sweep.page import write_page as write_sweep

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: A bar: name, value, and the ends of its range (equal where there is none).
Bar = tuple[str, float, float, float]

BOUNDS = """
<p class="headline">{{ headline }}</p>
<div class="scroll"><table>
<thead><tr>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table></div>
"""


# --- pictures ---------------------------------------------------------------------------------------------------


@singledispatch
def plot(answer: object) -> Figure:
    """One figure of an answer; raises TypeError for other objects."""
    raise TypeError(f"{type(answer).__name__} has no picture")


@plot.register(Result)
def _(answer: Result) -> Figure:
    curves = [plan for plan in answer.plans if plan.ran and len(plan.curve) > 1]
    if curves:
        return served(curves, str(answer.scenario["name"]))
    return bars(bars_of((plan.name, plan) for plan in answer.plans), "tokens/s", str(answer.scenario["name"]))


@plot.register(ShownPlans)
def _(answer: ShownPlans) -> Figure:
    plans = [(name, plan) for name, plan in answer.shown_plans() if isinstance(plan, PlanResult)]
    return bars(bars_of(plans), "tokens/s", answer.shown_title())


@plot.register(Table)
def _(answer: Table) -> Figure:
    """Lines over the first numeric swept path, one per plan and setting of the other paths; else bars."""
    rows = [row for row in answer.rows() if row["tokens_per_s"] is not None]
    over = next((path for path in answer.swept if all(isinstance(row[path], int | float) for row in rows)), None)
    others = [path for path in answer.swept if path != over]
    if over is None or not rows:
        named = [(" ".join(str(row[path]) for path in ("plan", *others)), row["tokens_per_s"]) for row in rows]
        return bars([(name, float(rate), float(rate), float(rate)) for name, rate in named], "tokens/s", "sweep")  # type: ignore[arg-type]
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        settings = [f"{path} {row[path]}" for path in others if path != "plans"]
        lines.setdefault(", ".join([str(row["plan"]), *settings]), []).append((row[over], row["tokens_per_s"]))  # type: ignore[arg-type]
    return curves_of({name: sorted(points) for name, points in lines.items()}, over, "tokens/s", "sweep")


@plot.register(Validation)
def _(answer: Validation) -> Figure:
    scored = [outcome for outcome in answer.outcomes if outcome.summary()["predicted"]]
    errors = [(outcome.table.path, 100.0 * float(outcome.summary()["median_ape"])) for outcome in scored]
    return bars([(path, error, error, error) for path, error in errors], "median error (%)", "validation")


@plot.register(Sizing)
def _(answer: Sizing) -> Figure:
    served = [size for size in answer.sized if not size.error]
    priced = all(size.usd_per_hour is not None for size in served)
    values = [(size.offer, float(size.usd_per_hour or 0.0) if priced else float(size.gpus)) for size in served]
    bounded = [(name, value, value, value) for name, value in values]
    return bars(bounded, "$ an hour" if priced else "GPUs", answer.scenario.name)


@plot.register(Bounds)
def _(answer: Bounds) -> Figure:
    ceilings = [(plan.name, plan.tokens_per_s) for plan in answer.plans]
    return bars([(name, rate, rate, rate) for name, rate in ceilings], "tokens/s at most", answer.scenario)


def bars_of(plans: Iterable[tuple[str, PlanResult]]) -> list[Bar]:
    """Rates of the plans that ran, with their ranges."""
    rows = []
    for name, plan in plans:
        if plan.ran:
            rate = plan.tokens_per_s
            low, high = (plan.range.low, plan.range.high) if plan.range is not None else (rate, rate)
            rows.append((name, rate, low, high))
    return rows


def bars(rows: Sequence[Bar], axis: str, title: str) -> Figure:
    """Horizontal bars, the first at the top, the longest in another colour, with a line for each range."""
    from plotly.graph_objects import Figure

    most = max((value for _, value, _, _ in rows), default=0.0)
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [value for _, value, _, _ in rows],
        "y": [name for name, *_ in rows],
        "text": [compact(value) for _, value, _, _ in rows],
        "marker": {"color": [ACCENT if value == most else QUIET for _, value, _, _ in rows]},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, high - value) for _, value, _, high in rows],
            "arrayminus": [max(0.0, value - low) for _, value, low, _ in rows],
            "visible": any(high > low for _, _, low, high in rows),
        },
    }
    layout = {
        "title": {"text": title},
        "xaxis": {"title": {"text": axis}, "tickformat": "~s", "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        "height": 140 + 34 * max(1, len(rows)),
    }
    return Figure(data=[trace], layout=layout)


def served(plans: Sequence[PlanResult], title: str) -> Figure:
    """Tokens/s per GPU over tokens/s per user: one line per plan over its loads."""
    lines = {
        plan.name: [
            (float(point["tokens_per_s_per_user"] or 0.0), float(point["output_tokens_per_s_per_gpu"]))
            for point in plan.curve
        ]
        for plan in plans
    }
    return curves_of(lines, "tokens/s per user", "output tokens/s per GPU", title)


def curves_of(lines: dict[str, list[tuple[float, float]]], across: str, up: str, title: str) -> Figure:
    """One line per name."""
    from plotly.graph_objects import Figure

    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [x for x, _ in points],
            "y": [y for _, y in points],
            "line": {"color": plan_colour(place)},
        }
        for place, (name, points) in enumerate(lines.items())
    ]
    layout = {
        "title": {"text": title},
        "xaxis": {"title": {"text": across}},
        "yaxis": {"title": {"text": up}, "tickformat": "~s", "rangemode": "tozero"},
        "showlegend": True,
    }
    return Figure(data=data, layout=layout)


# --- pages ------------------------------------------------------------------------------------------------------


@singledispatch
def write(answer: object, path: Path) -> None:
    """Write an answer's page; raises InputError where the file cannot be written, TypeError for other objects."""
    raise TypeError(f"{type(answer).__name__} has no page")


@write.register(Result)
def _(answer: Result, path: Path) -> None:
    write_report(answer, path)


@write.register(Planned)
def _(answer: Planned, path: Path) -> None:
    plan_page.write_page(answer, path)


@write.register(OffersPlanned)
def _(answer: OffersPlanned, path: Path) -> None:
    offers_plan.write_page(answer, path)


@write.register(ServicePlanned)
def _(answer: ServicePlanned, path: Path) -> None:  # type: ignore[type-arg]
    view = (
        traffic_plan.view_of(answer) if isinstance(answer, TrafficPlanned) else serving_plan.view_of(answer)  # type: ignore[arg-type]
    )
    atomic_write(path, searched.page(view))


@write.register(Table)
def _(answer: Table, path: Path) -> None:
    write_sweep(answer, path)


@write.register(Sizing)
def _(answer: Sizing, path: Path) -> None:
    size_page.write_page(answer, path)


@write.register(Validation)
def _(answer: Validation, path: Path) -> None:
    validation_page.write_page(answer, path)


@write.register(Bounds)
def _(answer: Bounds, path: Path) -> None:
    columns = ["plan", "tokens/s at most", "limited by", "one block's forward", "fits"]
    rows = [
        [plan.name, compact(plan.tokens_per_s), plan.model.limit, compact(plan.block_tokens_per_s),
         "yes" if plan.memory.fits else "no"]
        for plan in answer.plans
    ]  # fmt: skip
    head = f"No plan of {answer.scenario} is above {compact(answer.best.tokens_per_s, 'tokens/s')} ({answer.best.name})"
    peak = answer.best.tokens_per_s * answer.flops_per_token / (answer.gpus * answer.peak_flops_per_s)
    values = {"headline": f"{head}: {percent(min(peak, 1.0))} of the peak.", "columns": columns, "rows": rows}
    atomic_write(path, render_sections([("bounds", "", BOUNDS, values)], {}, title=answer.scenario, plotly_js="inline"))
