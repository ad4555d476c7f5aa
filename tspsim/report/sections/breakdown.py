"""The time of a step, by part."""

from __future__ import annotations

from typing import Any

from tspsim.base.units import percent
from tspsim.report.figures import bars, bars_layout, colours, in_order, totals
from tspsim.report.numbers import label, seconds, words
from tspsim.report.view import View
from tspsim.step.result import PlanResult

from .section import PageSection

TEMPLATE = """
{{ figure("breakdown", "Time of one step, mean over ranks: compute by family, exposed communication, waiting for the
host (launches, and between steps), in the pipeline (bubble) and for other ranks (idle).") }}
<details><summary>The same as a table</summary><div class="scroll"><table class="tight">
  <thead><tr><th scope="col">Plan</th>{% for kind in kinds %}<th scope="col">{{ kind }}</th>{% endfor %}
  <th scope="col">step</th></tr></thead>
  <tbody data-plans>{% for row in rows %}
  <tr data-place="{{ row.place }}"><th scope="row">{{ row.name }}</th>{% for cell in row.cells %}<td>
  {{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table></div></details>
{% if refused %}<p class="note">Refused plans are not shown: {{ refused|join(", ") }}.</p>{% endif %}
"""


def build(view: View) -> dict[str, Any] | None:
    """Stacked bars, one per plan that ran; they add up to the step."""
    if not view.ran:
        return None
    stacks = [parts(plan) for plan in view.ran]
    groups = ("compute", "exposed", "rest")
    kinds = {group: in_order(kind for stack in stacks for at, kind in stack if at == group) for group in groups}
    keys = [(group, kind) for group in groups for kind in kinds[group]]
    keys = [key for key in keys if any(stack.get(key, 0.0) > 0.0 for stack in stacks)]
    tone = colours([kind for _, kind in keys])
    names = [plan.name for plan in view.ran]
    longest = max(plan.step_time_s for plan in view.ran)
    factor, unit = (1.0, "s") if longest >= 1.0 else (1e3, "ms") if longest >= 1e-3 else (1e6, "µs")
    data: list[dict[str, Any]] = [
        bars(
            label(title(key)),
            [stack.get(key, 0.0) * factor for stack in stacks],
            tone[key[1]],
            [
                f"<b>{label(plan.name)}</b><br>{label(title(key))}<br>{seconds(stack.get(key, 0.0))}, "
                f"{percent(stack.get(key, 0.0) / plan.step_time_s)} of the step"
                for plan, stack in zip(view.ran, stacks, strict=True)
            ],
            marker={"color": tone[key[1]], "line": {"width": 0.5, "color": "rgba(0,0,0,0.25)"}}
            | ({"pattern": {"shape": "/", "size": 5, "solidity": 0.25}} if key[0] == "rest" else {}),
        )
        for key in keys
    ]
    steps = [plan.step_time_s for plan in view.ran]
    data.append(totals([step * factor for step in steps], [seconds(step) for step in steps]))
    rows: list[dict[str, Any]] = [
        {
            "name": plan.name,
            "place": view.place(plan),
            "cells": [*(percent(stack.get(key, 0.0) / plan.step_time_s) for key in keys), seconds(plan.step_time_s)],
        }
        for plan, stack in zip(view.ran, stacks, strict=True)
    ]
    layout = bars_layout(names, f"time of one step ({unit})", places=[row["place"] for row in rows])
    return {
        "kinds": [title(key) for key in keys],
        "rows": rows,
        "refused": [plan.name for plan in view.refused],
        "figures": {"breakdown": {"data": data, "layout": layout}},
    }


def parts(plan: PlanResult) -> dict[tuple[str, str], float]:
    """``{(group, kind): seconds}`` with groups ``compute``, ``exposed`` and ``rest``; they add up."""
    breakdown = plan.breakdown_s
    compute = float(breakdown.get("compute", 0.0))
    stack = {("compute", kind): float(value) for kind, value in plan.compute_by_kind_s.items()}
    unnamed = compute - sum(stack.values())
    if unnamed > 1e-3 * compute:
        stack["compute", "other"] = unnamed
    stack |= {("exposed", kind): float(value) for kind, value in breakdown.get("exposed_communication", {}).items()}
    host = float(breakdown.get("host", 0.0))
    idle = max(0.0, float(breakdown.get("idle", 0.0)) - host)
    rest = {"host": host, "bubble": float(breakdown.get("bubble", 0.0)), "idle": idle}
    return stack | {("rest", kind): seconds for kind, seconds in rest.items()}


def title(key: tuple[str, str]) -> str:
    """Name of a part in legend and table."""
    group, kind = key
    return {"compute": words(kind), "exposed": f"exposed {words(kind)}", "rest": words(kind)}[group]


SECTION = PageSection("breakdown", "Where the time goes", build, TEMPLATE, short="Time")
