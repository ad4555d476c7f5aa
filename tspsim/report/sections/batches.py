"""Tokens a second and GPU against what a user sees, over the batch: the choice that who serves has to make."""

from __future__ import annotations

from typing import Any

from tspsim.base.errors import TspsimError
from tspsim.base.units import compact, digits, several
from tspsim.report.figures import LEGEND, beside, plan_colour, plan_line
from tspsim.report.numbers import label, seconds
from tspsim.report.view import View

from .section import PageSection

TEMPLATE = """
{{ figure("batches", "Every mark is a plan at another batch, simulated as the step itself; large marks are the batch
that was asked for. Right is quick for a user, up is cheap. Numbers beside marks are sequences a replica.") }}
{% if not complete %}<p class="note">Time for this picture was up before all batches were simulated.</p>{% endif %}
<details><summary>The same as a table</summary><div class="scroll"><table>
  <thead><tr><th scope="col">Plan</th><th scope="col">batch a replica</th><th scope="col">tokens/s per GPU</th>
  <th scope="col">tokens/s per user</th><th scope="col">an output token</th></tr></thead>
  <tbody>{% for row in rows %}<tr><th scope="row">{{ row.name }}</th>{% for cell in row.cells %}<td>{{ cell }}</td>
  {% endfor %}</tr>{% endfor %}</tbody>
</table></div></details>
"""


def build(view: View) -> dict[str, Any] | None:
    """A line a plan; nothing where prompts are read, or where the question is not at hand."""
    load, asked = view.load, view.result.asked
    if load is None or not load.batch or load.prompts or asked is None or not view.ran:
        return None
    from tspsim.studies.serving_curves import rates_over_batch

    try:
        found = rates_over_batch(asked, view.ran)
    except TspsimError:  # files that the question names are gone
        return None
    data, rows = [], []
    few = len(found.plans) < 3  # of more plans the numbers would lie over each other
    for place, (name, line) in enumerate(found.plans.items()):
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
    return {"complete": found.complete, "rows": rows, "figures": {"batches": {"data": data, "layout": layout}}}


SECTION = PageSection("batches-section", "Users against GPUs, over the batch", build, TEMPLATE, short="Batch")
