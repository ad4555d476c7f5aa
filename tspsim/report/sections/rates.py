"""Rates side by side."""

from __future__ import annotations

from typing import Any

from tspsim.base.units import compact
from tspsim.report.figures import ACCENT, QUIET, bars_layout
from tspsim.report.numbers import label
from tspsim.report.view import View

from .section import PageSection

#: Colour of the ranges: visible on bars and beside them, on white and on black.
SPREAD = "#e69f00"

TEMPLATE = """
{% if not served %}<div class="pair">{% endif %}
{{ figure("rates-model", caption) }}
{{ figure("rates-block", "One block, forward: the cluster's tokens/s if the model were one steady block,
without embedding, head and loss.") }}
{% if not served %}</div>{% endif %}
{% if basis %}<p class="note">The ranges: measurements say how far predictions may be off for every family of kernels,
and for exposed transfers. Each of these errs by one factor of its own; nine times of ten the true rate lies inside the
range. Most of an error is common to all plans, so ratios are more certain than rates; their ranges stand beside them
above.</p>
<details><summary>Basis of the ranges</summary><p class="note">{{ basis|join("; ") }}</p></details>{% endif %}
"""


def build(view: View) -> dict[str, Any] | None:
    """Bars for the whole model (with ranges) and for one block."""
    if not view.ran:
        return None
    model = [plan.tokens_per_s for plan in view.ran]
    basis = list(dict.fromkeys(plan.range.basis for plan in view.ran if plan.range is not None))
    if view.load is not None:
        figures = {"rates-model": _bars(view, model, f"{view.rate_words.lower()} of the cluster", ranges=True)}
    else:
        block = [plan.block_forward_tokens_per_s for plan in view.ran]
        figures = {
            "rates-model": _bars(view, model, "tokens/s, whole model", ranges=True),
            "rates-block": _bars(view, block, "tokens/s, one block forward", ranges=False),
        }
    what = "Tokens/s of the cluster" if view.load is not None else "Whole model: tokens/s of the cluster"
    caption = f"{what}, with the range that holds the true rate nine times of ten."
    return {"basis": basis, "served": view.load is not None, "caption": caption, "figures": figures}


def _bars(view: View, values: list[float], title: str, *, ranges: bool) -> dict[str, Any]:
    names = [plan.name for plan in view.ran]
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": list(range(len(names))),
        "marker": {"color": [ACCENT if plan is view.best else QUIET for plan in view.ran]},
        "text": [f"{compact(value)}" for value in values],
        "textposition": "inside",
        "insidetextanchor": "start",
        "textfont": {"color": "#ffffff", "size": 14},
        "hovertext": [_hover(plan, value, ranges) for plan, value in zip(view.ran, values, strict=True)],
        "hoverinfo": "text",
    }
    ranges_of_plans = [plan.range for plan in view.ran if plan.range is not None]
    if ranges and len(ranges_of_plans) == len(values):
        trace["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, span.high - value) for span, value in zip(ranges_of_plans, values, strict=True)],
            "arrayminus": [max(0.0, value - span.low) for span, value in zip(ranges_of_plans, values, strict=True)],
            "thickness": 2.5,
            "color": SPREAD,
            "width": 7,
        }
    layout = bars_layout(names, title, legend=False, places=[view.place(plan) for plan in view.ran])
    layout["xaxis"]["tickformat"] = "~s"
    layout["margin"] = {}
    return {"data": [trace], "layout": layout}


def _hover(plan: Any, value: float, ranges: bool) -> str:
    lines = [f"<b>{label(plan.name)}</b>", compact(value, "tokens/s")]
    if ranges and plan.range is not None:
        lines.append(f"range {compact(plan.range.low)} to {compact(plan.range.high)}")
    lines.append(f"{compact(value / plan.gpus)} per GPU")
    return "<br>".join(lines)


SECTION = PageSection("rates", "Rates", build, TEMPLATE)
