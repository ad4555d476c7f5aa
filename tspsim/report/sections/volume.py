"""Bytes that a rank receives: in a whole step by purpose, and in one layer's forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tspsim.base.units import digits
from tspsim.report.figures import bars, bars_layout, colours, totals
from tspsim.report.numbers import label, words
from tspsim.report.view import View
from tspsim.step.result import PlanResult

from .section import PageSection

TEMPLATE = """
{{ figure("volume-step", "Payload that a rank receives in one step and did not hold, by purpose, mean over ranks; read
from the simulated transfers. Weights are gathered and gradients summed over replicas; copies from and to the host
count too.") }}
{{ figure("volume", "The part for attention and MLP in one layer's forward, which schemes trade against each other.
Weights that replicas gather and gradients that they sum are above, not here.") }}
"""

_COLOURS = {"attention": "#56b4e9", "mlp": "#e69f00", "weights": "#009e73", "gradients": "#cc79a7"}
#: Titles of parts that differ from their own words.
_TITLES = {"mlp": "MLP"}
MIB, GIB = 2.0**20, 2.0**30


def build(view: View) -> dict[str, Any] | None:
    """Stacked bars of a step's volume and of a layer's, one per plan; None where no rank receives anything."""
    step = _figure(view, lambda plan: plan.communication_bytes_per_step, "received per step and rank")
    layer = _figure(view, lambda plan: plan.communication_bytes_per_layer, "received per layer and rank")
    if step is None and layer is None:
        return None
    figures = {"volume-step": step, "volume": layer}
    return {"figures": {name: figure for name, figure in figures.items() if figure is not None}}


def _figure(view: View, volumes: Callable[[PlanResult], Mapping[str, float]], title: str) -> dict[str, Any] | None:
    """Bars of all plans that ran; None where all are empty."""
    plans = view.ran
    by_plan = [{key: value for key, value in volumes(plan).items() if key != "total" and value > 0.0} for plan in plans]
    keys = _in_order(by_plan)
    if not keys:
        return None
    most = max(sum(parts.values()) for parts in by_plan)
    size, unit = (GIB, "GiB") if most >= 10.0 * GIB else (MIB, "MiB")
    tone = colours(keys) | _COLOURS
    data: list[dict[str, Any]] = []
    for key in keys:
        name = _TITLES.get(key, words(key))
        values = [parts.get(key, 0.0) / size for parts in by_plan]
        texts = [
            f"<b>{label(plan.name)}</b><br>{label(name)}<br>{digits(value)} {unit}"
            for plan, value in zip(plans, values, strict=True)
        ]
        data.append(bars(label(name), values, tone[key], texts))
    sums = [sum(parts.values()) / size for parts in by_plan]
    data.append(totals(sums, [f"{total:,.0f} {unit}" if total >= 10 else f"{digits(total)} {unit}" for total in sums]))
    places = [view.place(plan) for plan in plans]
    return {"data": data, "layout": bars_layout([plan.name for plan in plans], f"{title} ({unit})", places=places)}


def _in_order(by_plan: Sequence[Mapping[str, float]]) -> list[str]:
    """All parts with volume, the layers' parts first."""
    keys = list(dict.fromkeys(key for parts in by_plan for key in parts))
    first = list(_COLOURS)
    return sorted(keys, key=lambda key: first.index(key) if key in first else len(first))


SECTION = PageSection("volume", "Communication volume", build, TEMPLATE, short="Volume")
