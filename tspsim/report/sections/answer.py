"""The answer in a few sentences, before anything else."""

from __future__ import annotations

from typing import Any

from tspsim.base.units import compact, digits, gib, percent
from tspsim.report import served
from tspsim.report.numbers import plain, seconds
from tspsim.report.view import View, dollars_per_million_tokens
from tspsim.scenario.project import Project
from tspsim.step.result import PlanResult

from .section import PageSection

TEMPLATE = """
<p class="kicker">{{ kicker }}</p>
<h1>{{ name }}</h1>
{% if description %}<p class="description">{{ description }}</p>{% endif %}
<p class="headline">{{ headline }}{% if spread %} <span class="spread">{{ spread }}</span>{% endif %}</p>
{% if ratios %}<ul class="ratios" aria-label="Against each rival">
  {% for ratio in ratios %}<li><strong>{{ ratio.times }}</strong> {{ ratio.name }}
  {%- if ratio.get("likely") %}
  <span class="likely" title="nine times of ten">{{ ratio.likely }}</span>{% endif %}</li>{% endfor %}
</ul>{% endif %}
{% for sentence in sentences %}<p>{{ sentence|prose }}</p>{% endfor %}
{% if tiles %}<dl class="tiles">
  {% for tile in tiles %}<div><dt>{{ tile.what }}</dt><dd>{{ tile.value }}</dd><dd class="small">
  {{ tile.more }}</dd></div>
  {% endfor %}
</dl>{% endif %}
"""


def build(view: View) -> dict[str, Any]:
    """Best plan, its rate and range, its ratio to every rival, the bottleneck, and what does not fit."""
    scenario, best = view.result.scenario, view.best
    answer: dict[str, Any] = {
        "name": view.name,
        "description": scenario.get("description", ""),
        "kicker": kicker(view),
        "spread": "",
        "sentences": [],
        "ratios": [],
        "tiles": [],
    }
    refusals = [f"{plan.name} is refused: {_close(str(plan.error))}" for plan in view.refused]
    if best is None:
        return answer | {"headline": "No plan fits or can run.", "sentences": refusals}
    only = len(view.ran) == 1
    lead = "is the only plan that runs" if only and view.refused else "runs" if only else "is fastest"
    answer["headline"] = f"{best.name} {lead}: {compact(best.tokens_per_s, 'tokens/s')}"
    if best.range is not None:
        answer["spread"] = f"likely {compact(best.range.low)} to {compact(best.range.high)}"
    if view.load is not None:
        answer["headline"] = served.headline(view, best)
        if best.range is not None and not view.load.batch:
            first_s = best.inference["time_to_first_token_s"]
            ends = (best.tokens_per_step / rate for rate in (best.range.high, best.range.low))
            low, high = (seconds(first_s - best.step_time_s + decode_s) for decode_s in ends)
            answer["spread"] = f"likely {low} to {high}"
    answer["ratios"] = [
        {"name": rival.name, "times": f"{best.tokens_per_s / rival.tokens_per_s:.2f}×", "likely": likely(best, rival)}
        for rival in view.rivals
    ]
    fits = f"It needs {gib(best.memory.peak_bytes)} of {gib(best.memory.capacity_bytes)} per GPU, so it fits."
    sentences = [_stop(text) for text in (best.bottleneck, fits) if text]
    if view.load is not None:
        sentences = [*served.sentences(view, best), *sentences]
    answer["sentences"] = sentences + refusals
    answer["tiles"] = tiles(view)
    return answer


def likely(best: PlanResult, rival: PlanResult) -> str:
    """The range of the ratio of two rates; empty where the answers lack it."""
    from tspsim.studies.uncertainty import likely_ratio, priced_plan_of

    ours, theirs = priced_plan_of(best), priced_plan_of(rival)
    if ours is None or theirs is None:
        return ""
    return "{:.2f} – {:.2f}".format(*likely_ratio(ours, theirs))


def kicker(view: View) -> str:
    """The machine and the work, in one line."""
    cluster, workload = view.result.cluster, view.workload
    gpus = cluster.get("gpus")
    machine = f"{plain(gpus)} × {view.device_title}" if gpus else view.device_title
    nodes = cluster.get("nodes")
    parts = [machine + (f" in {plain(nodes)} nodes" if isinstance(nodes, int) and nodes > 1 else "")]
    if cluster.get("fabric") and isinstance(nodes, int) and nodes > 1:
        parts.append(plain(cluster["fabric"]))
    model = view.model.get("name", workload.get("model"))
    if model:
        parts.append(str(model))
    step, load = view.step, view.load
    if view.result.scenario.get("loop"):
        parts.append("iterations of reinforcement learning")
    elif step is not None:
        parts.append(step.title)
    if load is not None:
        replicas = max((plan.degrees.get("dp", 1) for plan in view.plans), default=1)
        parts.append(load.in_words + (", each replica" if replicas > 1 else ""))
    elif isinstance(workload.get("sequence"), int):
        up_to = "up to " if workload.get("lengths") else ""
        parts.append(f"{up_to}{workload['sequence']:,} tokens a sequence")
    return " · ".join(parts)


def tiles(view: View) -> list[dict[str, str]]:
    """The best plan's main figures."""
    best = view.best
    assert best is not None
    shown = served.tiles(view, best) if view.load is not None else rates(best)
    prices = dollars_per_million_tokens(best)
    if prices:
        ranking = project_basis(view)
        market = ranking if ranking in prices else next(iter(prices))
        price = prices[market]
        others = [item for item in prices.items() if item[0] != market]
        where = f" ({market})" if market else ""
        further = "".join(f"; ${digits(other)} {name}" for name, other in others)
        shown.append({"what": "Cost", "value": f"${digits(price)}", "more": f"per million tokens{where}{further}"})
    return shown


def rates(best: PlanResult) -> list[dict[str, str]]:
    """Tiles of a step that does not serve."""
    return [
        {"what": "Tokens/s per GPU", "value": compact(best.tokens_per_s_per_gpu), "more": f"{best.gpus:,} GPUs"},
        {
            "what": "Block forward",
            "value": compact(best.block_forward_tokens_per_s),
            "more": "tokens/s, as if the model were one block",
        },
        {"what": "Step", "value": seconds(best.step_time_s), "more": compact(best.tokens_per_step, "tokens")},
        {"what": "MFU", "value": percent(best.mfu), "more": "of dense peak"},
        {
            "what": "Memory",
            "value": f"{gib(best.memory.peak_bytes)}",
            "more": f"of {gib(best.memory.capacity_bytes)} per GPU",
        },
    ]


def project_basis(view: View) -> str:
    """The price basis that ranks: the project's, or its default where none is stated."""
    stated = view.result.scenario.get("project")
    usual = Project.model_fields["price"].default
    return str(stated.get("price", usual) if isinstance(stated, dict) else usual)


def _close(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."


def _stop(text: str) -> str:
    return _close(text[:1].upper() + text[1:])


SECTION = PageSection("answer", "", build, TEMPLATE)
