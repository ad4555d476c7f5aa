"""What a rank receives: in a whole step by what it is for, and in one layer's forward."""

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
{{ figure("volume-step", "Payload a rank receives in one step and did not hold, by what it is for, mean over ranks; read
from the simulated transfers. Weights are those that replicas gather, gradients what they sum; what is copied from and
to the host counts too.") }}
{{ figure("volume", "Of it what one layer's forward needs for attention and MLP: what a scheme trades. Weights that
replicas gather and gradients that they sum are above, not here.") }}
"""

_COLOURS = {"attention": "#56b4e9", "mlp": "#e69f00", "weights": "#009e73", "gradients": "#cc79a7"}
#: What parts of a step are called beyond their own words.
_TITLES = {"mlp": "MLP"}
MIB, GIB = 2.0**20, 2.0**30


def build(view: View) -> dict[str, Any] | None:
    """Stacked bars of a step's volume and of a layer's, a plan each; None where no rank receives anything."""
    step = _figure(view, lambda plan: plan.communication_bytes_per_step, "received per step and rank")
    layer = _figure(view, lambda plan: plan.communication_bytes_per_layer, "received per layer and rank")
    if step is None and layer is None:
        return None
    figures = {"volume-step": step, "volume": layer}
    return {"figures": {name: figure for name, figure in figures.items() if figure is not None}}


def _figure(view: View, volumes: Callable[[PlanResult], Mapping[str, float]], title: str) -> dict[str, Any] | None:
    """Bars of all plans that ran; None where all are empty."""
    plans = view.ran
    told = [{key: value for key, value in volumes(plan).items() if key != "total" and value > 0.0} for plan in plans]
    keys = _in_order(told)
    if not keys:
        return None
    most = max(sum(each.values()) for each in told)
    size, unit = (GIB, "GiB") if most >= 10.0 * GIB else (MIB, "MiB")
    tone = colours(keys) | _COLOURS
    data: list[dict[str, Any]] = []
    for key in keys:
        name = _TITLES.get(key, words(key))
        values = [each.get(key, 0.0) / size for each in told]
        texts = [
            f"<b>{label(plan.name)}</b><br>{label(name)}<br>{digits(value)} {unit}"
            for plan, value in zip(plans, values, strict=True)
        ]
        data.append(bars(label(name), values, tone[key], texts))
    sums = [sum(each.values()) / size for each in told]
    data.append(totals(sums, [f"{total:,.0f} {unit}" if total >= 10 else f"{digits(total)} {unit}" for total in sums]))
    places = [view.place(plan) for plan in plans]
    return {"data": data, "layout": bars_layout([plan.name for plan in plans], f"{title} ({unit})", places=places)}


def _in_order(told: Sequence[Mapping[str, float]]) -> list[str]:
    """What there is volume of, the layers' parts first."""
    keys = list(dict.fromkeys(key for each in told for key in each))
    first = list(_COLOURS)
    return sorted(keys, key=lambda key: first.index(key) if key in first else len(first))


SECTION = PageSection("volume", "Communication volume", build, TEMPLATE, short="Volume")
