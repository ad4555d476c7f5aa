"""All plans side by side: rates, step, memory, cost, or the reason of a refusal."""

from __future__ import annotations

from typing import Any

from tspsim.base.errors import TspsimError
from tspsim.base.units import compact, gib, percent
from tspsim.report import served
from tspsim.report.numbers import plain, seconds, words
from tspsim.report.plan_names import legend, named_by_search
from tspsim.report.view import View, dollars_per_million_tokens, price_range
from tspsim.step.question import look_up
from tspsim.step.result import PlanResult

from .section import PageSection

TEMPLATE = """
{% if sortable %}<div class="controls"><label><input type="checkbox" data-order>
in the scenario's order, here and in the figures</label></div>
{% endif %}<div class="scroll"><table class="plans" id="plans-table">
  <caption class="hidden">Rates, memory and cost of every plan</caption>
  <thead><tr><th scope="col">Plan</th>{% for column in columns %}<th scope="col">{{ column }}</th>
  {% endfor %}</tr></thead>
  <tbody data-plans>{% for row in rows %}
    <tr data-place="{{ row.place }}"{% if row.best %} class="best"{% elif row.error %} class="refused"{% endif %}>
      <th scope="row">{{ row.name }}<span class="small">{{ row.degrees }}</span></th>
      {% if row.error %}<td data-label="Refused" colspan="{{ columns|length }}">refused: {{ row.error }}</td>
      {% else %}{% for cell in row.cells %}<td data-label="{{ columns[loop.index0] }}">{{ cell.value }}
        {%- if cell.more %}<span class="small">{{ cell.more }}</span>{% endif %}</td>{% endfor %}{% endif %}
    </tr>{% endfor %}
  </tbody>
</table></div>
{% if names %}<details><summary>Words in the names</summary><dl class="terms">
{% for words, meaning in names %}<dt><code>{{ words }}</code></dt><dd>{{ meaning }}</dd>{% endfor %}
</dl></details>{% endif %}
<details><summary>Settings and notes of every plan</summary>
  {% for row in rows %}<h3>{{ row.name }}</h3>
  <dl class="facts">{% for fact in row.facts %}<div><dt>{{ fact.what }}</dt><dd>{{ fact.value }}</dd></div>
  {% endfor %}</dl>
  {% if row.notes %}<ul>{% for note in row.notes %}<li>{{ note|prose }}</li>{% endfor %}</ul>
  {% endif %}{% endfor %}
</details>
"""

COLUMNS = (
    "Tokens/s",
    "Tokens/s per GPU",
    "Block-forward tokens/s",
    "Step",
    "MFU",
    "Exposed communication",
    "Memory per GPU",
)


def build(view: View) -> dict[str, Any]:
    """One row per plan; a switch shows them, and the rows of all figures, in the scenario's order (``place``)."""
    priced = any(price_range(plan) for plan in view.ran)
    columns = list(COLUMNS) if view.load is None else [column.long for column in served.columns(view)]
    columns += ["$/M tokens"] if priced else []
    rows = [_row(view, plan, priced) | {"place": view.place(plan)} for plan in view.plans]
    places = [row["place"] for row in rows]
    return {"columns": columns, "rows": rows, "sortable": places != sorted(places), "names": names_of(view)}


def names_of(view: View) -> list[tuple[str, str]]:
    """A legend of the names from a search; empty without the question, or without a search."""
    question = view.result.source_scenario
    if question is None or question.traffic is not None or question.loop is not None:
        return []
    try:
        plans = look_up(question).plans
    except TspsimError:  # files of the question are gone
        return []
    return legend(named_by_search(plans))


def exposed_share(plan: PlanResult) -> float:
    """Exposed communication as a share of the step."""
    exposed = plan.breakdown_s.get("exposed_communication", {})
    return float(sum(exposed.values())) / plan.step_time_s if plan.step_time_s else 0.0


def degrees(plan: PlanResult) -> str:
    """``tp 4 · sp 2 · dp 128``; degrees of one are left out."""
    return " · ".join(f"{axis} {degree}" for axis, degree in plan.degrees.items() if degree != 1)


def _row(view: View, plan: PlanResult, priced: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": plan.name,
        "degrees": degrees(plan),
        "error": plan.error,
        "best": plan is view.best,
        "notes": plan.notes,
        "facts": _facts(view, plan),
    }
    return row if plan.error is not None else row | {"cells": _cells(view, plan, priced)}


def _cells(view: View, plan: PlanResult, priced: bool) -> list[dict[str, str]]:
    best = view.best
    assert best is not None
    spread = "" if plan.range is None else f"{compact(plan.range.low)} – {compact(plan.range.high)}"
    share = "best" if plan is best else f"{plan.tokens_per_s / best.tokens_per_s:.2f}× the best"
    memory = plan.memory
    cells = [
        (compact(plan.tokens_per_s), spread),
        (compact(plan.tokens_per_s_per_gpu), share),
        (compact(plan.block_forward_tokens_per_s), ""),
        (seconds(plan.step_time_s), compact(plan.tokens_per_step, "tokens")),
        (percent(plan.mfu), ""),
        (percent(exposed_share(plan)), "of the step"),
        (gib(memory.peak_bytes), f"fits in {gib(memory.capacity_bytes)}"),
    ]
    if view.load is not None:
        cells = [column.cell(plan) for column in served.columns(view)]
    if priced:
        markets = [market for market in dollars_per_million_tokens(plan) if market]
        cells.append((price_range(plan) or "–", " – ".join(dict.fromkeys(markets[:1] + markets[-1:]))))
    return [{"value": value, "more": more} for value, more in cells]


#: Settings without effect on a step of whole tokens, and those of sequence shards.
OF_TRAINING = ("recomputation", "micro_batch", "vpp", "schedule", "zero", "shard_group")
OF_SHARDS = ("partition", "exchange", "sequence_regions")


def _facts(view: View, plan: PlanResult) -> list[dict[str, str]]:
    step = view.step
    hidden: tuple[str, ...] = ()
    if step is not None and step.serves:
        hidden = OF_TRAINING if step.shards_tokens else (*OF_TRAINING, *OF_SHARDS)
    settings = {key: value for key, value in plan.settings.items() if key not in hidden}
    facts = [{"what": words(str(key)), "value": plain(value)} for key, value in settings.items()]
    facts += [{"what": words(str(key)), "value": plain(value)} for key, value in plan.cost.items()]
    facts += [{"what": what, "value": plain(value)} for what, value in served.facts(plan)]
    if plan.range is not None:
        facts.append({"what": "basis of the range", "value": plan.range.basis})
    if plan.bottleneck:
        facts.append({"what": "bottleneck", "value": plan.bottleneck})
    return facts


SECTION = PageSection("plans", "Plans", build, TEMPLATE)
