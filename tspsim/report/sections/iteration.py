"""The parts of an iteration of reinforcement learning."""

from __future__ import annotations

from typing import Any

from tspsim.base.units import compact, gib, percent
from tspsim.report.numbers import seconds
from tspsim.report.view import View

from .section import PageSection

TEMPLATE = """
<div class="scroll"><table class="plans tight">
  <thead><tr><th scope="col">Plan</th>{% for name in columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
  <tbody>{% for row in rows %}<tr><th scope="row">{{ row.name }}</th>{% for cell in row.cells %}
  <td data-label="{{ columns[loop.index0] }}">{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table></div>
<p class="small">Parts follow each other, except where generation runs ahead on GPUs of its own. The timeline
and the use of links below are those of one update.</p>
"""


def build(view: View) -> dict[str, Any] | None:
    """One row per plan that ran: its parts, the traffic between training and generation, and the engines' output."""
    shown = [plan for plan in view.ran if plan.loop]
    if not shown:
        return None
    parts = list(dict.fromkeys(name for plan in shown for name in plan.loop["parts_s"]))
    rows = []
    for plan in shown:
        loop = plan.loop
        cells = [seconds(loop["parts_s"][name]) if name in loop["parts_s"] else "–" for name in parts]
        moved = loop["reshard_received_bytes"]
        cells += [
            seconds(plan.step_time_s),
            f"{gib(moved)} by {loop['way']}" if moved else "nothing",
            compact(loop["output_tokens_per_s"]),
            percent(loop["rollout_idle_share"], decimals=0),
        ]
        rows.append({"name": plan.name, "cells": cells})
    more = ["iteration", "weights received per GPU", "generated tokens/s", "engines wait"]
    return {"columns": [*parts, *more], "rows": rows}


SECTION = PageSection("iteration", "One iteration", build, TEMPLATE, short="Loop")
