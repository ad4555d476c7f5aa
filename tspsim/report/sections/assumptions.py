"""Assumptions: defaults, cluster, and the source of every number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tspsim.base.units import compact, duration, gib
from tspsim.report.numbers import plain, words
from tspsim.report.view import View
from tspsim.steps import STEPS, Step

from .section import PageSection

TEMPLATE = """
{% if defaults %}<h3>Defaults</h3>
<ul>{% for text in defaults %}<li>{{ text|prose }}</li>
{% endfor %}
</ul>{% endif %}
{% if borrowed %}<h3>Borrowed kernel models, with wider ranges</h3>
<ul>{% for text in borrowed %}<li>{{ text }}</li>
{% endfor %}</ul>{% endif %}
{% for table in tables %}<h3>{{ table.title }}</h3>
<dl class="facts">{% for fact in table.facts %}<div><dt>{{ fact.what }}</dt><dd>{{ fact.value }}</dd></div>
{% endfor %}</dl>{% endfor %}
{% if provenance %}<details{% if provenance|length < 12 %} open{% endif %}><summary>
<h3>Sources of the numbers ({{ provenance|length }})</h3></summary>
<div class="scroll"><table class="provenance"><thead><tr><th scope="col">What</th><th scope="col">Value</th>
<th scope="col">Source</th><th scope="col">Basis</th></tr></thead>
<tbody>{% for row in provenance %}<tr><th scope="row" data-label="What">{{ row.what }}</th>
<td data-label="Value">{{ row.value }}</td><td data-label="Source">{{ row.source|sourced }}</td>
<td data-label="Basis">{{ row.basis }}</td></tr>{% endfor %}</tbody>
</table></div></details>{% endif %}
"""


def build(view: View) -> dict[str, Any]:
    """Lists of defaults and facts; provenance as a table."""
    result = view.result
    step = view.step
    workload = {key: value for key, value in view.workload.items() if step is None or matters(step, key)}
    if result.scenario.get("traffic"):
        workload = {key: value for key, value in workload.items() if key in OF_REQUESTS}
    if not view.model.get("experts"):
        workload.pop("routing", None)
    cluster = {key: value for key, value in result.cluster.items() if key != "device"}
    tables = [("Workload", workload), ("Model", dict(view.model)), ("Cluster", cluster), ("Device", dict(view.device))]
    return {
        "defaults": result.defaults,
        "borrowed": borrowed(result.provenance),
        "tables": [{"title": title, "facts": _facts(values)} for title, values in tables if values],
        "provenance": [
            {key: row.get(key, "") for key in ("what", "source", "basis")}
            | {"value": _with_unit(row.get("what", ""), row.get("value", ""))}
            for row in result.provenance
        ],
    }


#: Keys of the size of a serving step, which other steps lack.
OF_SERVING = {key for step in STEPS.values() if step.serves for key in (*step.needs, *step.takes)} - {
    key for step in STEPS.values() if not step.serves for key in (*step.needs, *step.takes)
}
#: Further keys of a serving step.
SERVED = ("model", "pass", "precision", "stack", "runtime_reserve", "routing")
#: Keys of a service; its traffic is described in sentences.
OF_REQUESTS = (*SERVED, "engine", "speculation")


def matters(step: Step, key: str) -> bool:
    """Whether a key of the workload has an effect on a step: an optimizer only on one that trains."""
    if step.serves:
        return key in (*step.needs, *step.takes, *SERVED)
    return key not in OF_SERVING and (key != "optimizer" or step.trains)


def borrowed(provenance: Sequence[Mapping[str, str]]) -> list[str]:
    """Kernel models of another device or another type, with their origin."""
    rows = [row for row in provenance if row.get("basis", "").startswith(("inherited", "as plain products"))]
    return [f"{row['what']}: {row['basis'].removesuffix('; wider range')}" for row in rows]


def _with_unit(what: str, value: str) -> str:
    """A bare number in SI with the unit that follows from its name.

    >>> _with_unit("xgmi link", "64000000000.0"), _with_unit("xgmi latency", "8e-07"), _with_unit("radix", "128.0")
    ('64.0 GB/s', '800 ns', '128')
    """
    try:
        number = float(value)
    except ValueError:
        return value
    if what.endswith("latency"):
        return duration(number, "µ")
    if what.endswith((" link", " NIC")):
        return compact(number, "B/s")
    return f"{number:,.0f}" if number.is_integer() else value


def _facts(values: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {"what": _title(str(key)), "value": _value(str(key), value)}
        for key, value in values.items()
        if value not in (None, "", {}, [])
    ]


def _title(key: str) -> str:
    for ending in ("_bytes_per_s", "_flops_per_s", "_bytes", "_hz"):
        key = key.removesuffix(ending)
    return words(key)


def _value(key: str, value: Any) -> str:
    """A quantity with the unit in the ending of its key."""
    if key.endswith("_flops_per_s") and isinstance(value, dict):
        return ", ".join(f"{name} {compact(rate, 'FLOP/s')}" for name, rate in value.items())
    if key in ("runtime_reserve", "visible_memory_bytes") and isinstance(value, int | float):
        return gib(value)
    for ending, unit in (("_bytes_per_s", "B/s"), ("_bytes", "B"), ("_flops_per_s", "FLOP/s"), ("_hz", "Hz")):
        if key.endswith(ending) and isinstance(value, int | float):
            return compact(value, unit)
    return plain(value)


SECTION = PageSection("assumptions", "Assumptions and sources", build, TEMPLATE, short="Sources")
