"""Tokens/s per GPU against tokens/s per user, over the batch: the trade-off of serving."""

from __future__ import annotations

from typing import Any

from tspsim.base.errors import TspsimError
from tspsim.base.units import compact, digits, several
from tspsim.report.figures import LEGEND, beside, plan_colour, plan_line
from tspsim.report.numbers import label, seconds
from tspsim.report.view import View

from .section import PageSection

TEMPLATE = """
{{ figure("batches", "Every mark is a plan at another batch, simulated like the step itself; large marks are the stated
batch. Right is fast for a user, up is cheap. Numbers beside marks are sequences a replica.") }}
{% if not complete %}<p class="note">The time for this picture ran out before all batches were simulated.</p>{% endif %}
<details><summary>The same as a table</summary><div class="scroll"><table>
  <thead><tr><th scope="col">Plan</th><th scope="col">batch a replica</th><th scope="col">tokens/s per GPU</th>
  <th scope="col">tokens/s per user</th><th scope="col">an output token</th></tr></thead>
  <tbody>{% for row in rows %}<tr><th scope="row">{{ row.name }}</th>{% for cell in row.cells %}<td>{{ cell }}</td>
  {% endfor %}</tr>{% endfor %}</tbody>
</table></div></details>
"""


def build(view: View) -> dict[str, Any] | None:
    """One line per plan; None for prompts, or without the question."""
    load, question = view.load, view.result.source_scenario
    if load is None or not load.batch or load.prompts or question is None or not view.ran:
        return None
    from tspsim.studies.serving_curves import rates_over_batch

    try:
        curves = rates_over_batch(question, view.ran)
    except TspsimError:  # files of the question are gone
        return None
    data, rows = [], []
    few = len(curves.plans) < 3  # with more plans the numbers would overlap
    for place, (name, line) in enumerate(curves.plans.items()):
        data.append(
            plan_line(
                name,
                place,
                [(rate.per_user, rate.per_gpu) for rate in line],
                [
                    f"<b>{label(name)}</b><br>{several(rate.batch, 'sequence')} a replica<br>{compact(rate.per_gpu)} "
                    f"tokens/s a GPU<br>{digits(rate.per_user)} tokens/s per user<br>"
                    f"a token every {seconds(rate.token_s)}"
                    for rate in line
                ],
                **beside(
                    [(rate.per_user, rate.per_gpu) for rate in line],
                    [f"{rate.batch:,}" if few else "" for rate in line],
                ),
                marker={"color": plan_colour(place), "size": [14 if rate.batch == load.batch else 7 for rate in line]},
            )
        )
        rows += [
            {
                "name": name,
                "cells": [
                    f"{rate.batch:,}", compact(rate.per_gpu), digits(rate.per_user), seconds(rate.token_s),
                ],
            }
            for rate in line
        ]  # fmt: skip
    axis = {"automargin": True, "fixedrange": True, "zeroline": False, "rangemode": "tozero"}
    layout = {
        "height": 440,
        "hovermode": "closest",
        "margin": {"r": 36},
        "xaxis": {**axis, "title": {"text": "tokens/s per user", "standoff": 8}},
        "yaxis": {**axis, "title": {"text": "tokens/s per GPU", "standoff": 8}, "tickformat": "~s"},
        "showlegend": True,
        "legend": LEGEND,
    }
    return {"complete": curves.complete, "rows": rows, "figures": {"batches": {"data": data, "layout": layout}}}


SECTION = PageSection("batches-section", "Users against GPUs, over the batch", build, TEMPLATE, short="Batch")
