"""The comparison as one offline page: ranking with filters, cost against speed, scaling, doubt, project, terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tspsim.base.files import atomic_write, zipped
from tspsim.base.units import chance, compact, digits, gib, percent
from tspsim.studies.purchase.costs import BASES, STATED
from tspsim.studies.purchase.row import OBJECTIVES
from tspsim.studies.purchase.verdict import ceiling, level, mixed_bases

from . import comparison_figures as figures
from . import requests
from .comparison import ComparisonRow, dollars, rows, slug
from .comparison_requests import page_of_requests
from .comparison_terms import SIDES, TABLE, UNCERTAINTY, project, scaling, sides, uncertainty
from .differences import differences, in_words
from .memo.purchase import memo_of, ties
from .memo.sheet import section
from .numbers import seconds
from .page import _bundle, render_sections
from .pages import render
from .served import timed

if TYPE_CHECKING:
    from tspsim.step.result import PlanResult, Result
    from tspsim.studies.purchase.decision import Decision
    from tspsim.studies.purchase.row import OfferRow

HEADLINE = """
<p class="kicker">{{ kicker }}</p>
<h1>{{ title }}</h1>
{% if description %}<p class="description">{{ description }}</p>{% endif %}
<p class="headline">{{ headline|prose }}{% if spread %} <span class="spread">{{ spread }}</span>{% endif %}</p>
{% for sentence in sentences %}<p>{{ sentence|prose }}</p>{% endfor %}
{% if searched %}<details><summary>Searches for the best plans</summary>
<ul>{% for sentence in searched %}<li>{{ sentence|prose }}</li>{% endfor %}</ul></details>{% endif %}
{% if tiles %}<dl class="tiles">{% for what, value, more in tiles %}
  <div><dt>{{ what }}</dt><dd>{{ value }}</dd><dd class="small">{{ more }}</dd></div>{% endfor %}
</dl>{% endif %}
"""

RANKING = """
<div class="controls">
  <label>Rank by <select id="measure">{% for key, words in measures %}<option value="{{ key }}"
    {%- if key == first %} selected{% endif %}>{{ words }}</option>
  {% endfor %}</select></label>
  <label>Device <select id="device"><option value="">all</option>{% for name in devices %}
  <option>{{ name }}</option>{% endfor %}</select></label>
  <label>Words <input id="words" type="search" placeholder="TSP8 mi300x" autocomplete="off"></label>
  <label><input id="best-only" type="checkbox"{% if several %} checked{% endif %}> best plan of each only</label>
  <span class="note" id="shown" role="status"></span>
</div>
<div class="scroll"><table class="plans" id="ranking">
  <caption class="hidden">Every plan, ranked</caption>
  <thead><tr><th scope="col">#</th>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
  <tbody>{% for row in ranking %}
    <tr data-device="{{ row.device }}" data-best="{{ row.best }}" data-words="{{ row.words }}"
      {%- for key, value, text in row.measures %} data-{{ key }}="{{ value }}" data-{{ key }}-text="{{ text }}"
      {%- endfor %}>
      <th scope="row"></th>
      {% for cell in row.cells %}<td data-label="{{ columns[loop.index0] }}">
      {%- if loop.first and row.link %}<a href="{{ row.link }}">{{ cell }}</a>{% else %}{{ cell }}{% endif %}</td>
      {% endfor %}<td class="bar" data-label="{{ columns[-1] }}"><span><i></i><b></b></span></td>
    </tr>{% endfor %}
  </tbody>
</table></div>
{% if names is defined and names %}<p class="note">{{ names|prose }}</p>{% endif %}
{% if links %}<p class="note">A scenario's name opens its own report with the timeline of every plan.</p>{% endif %}
{% if refused %}<h3>Refused</h3>
<ul class="verdicts">{% for text in refused %}<li class="refused">{{ text }}</li>{% endfor %}</ul>{% endif %}
"""

PARETO = """{{ figure("pareto", caption, "Price basis") }}"""

SCALING = (
    """{{ figure("scaling", caption, "Scaling") }}
"""
    + TABLE.format("Scaling")
    + """
"""
)

PROJECT = (
    """
{% for sentence in sentences %}<p>{{ sentence }}</p>{% endfor %}
{% if table %}"""
    + TABLE.format("The whole project on every offer")
    + """
<p class="note">{{ note }}</p>{% endif %}
{% if needs %}<h3>Large enough for {{ need }}</h3>
{% set table, columns = needs, need_columns %}"""
    + TABLE.format("The smallest machine of every offer that is large enough")
    + """
<p class="note">Estimated by proportion, then simulated at that size until it holds. {{ predicted|prose }}</p>
{% for hint in hints %}<p class="note">{{ hint|prose }}</p>{% endfor %}{% endif %}
"""
)

MEASURES = {
    "rate": "tokens/s",
    "each": "tokens/s/GPU",
    "user": "tokens/s per user",
    "dollar": "tokens a dollar",
    "joule": "tokens a joule",
    "headroom": "memory left per GPU",
    "mfu": "MFU",
}
COLUMNS = ("Scenario", "Plan", "GPUs", "Tokens/s", "Likely", "Step", "Memory per GPU", "$/M tokens", "Ranked by")


def page(
    results: Sequence[Result],
    decision: Decision | None = None,
    links: Mapping[int, str] | None = None,
    plotly_js: str = "inline",
    title: str = "",
    description: str = "",
    names: str = "",
) -> str:
    """The whole page.

    Parameters
    ----------
    results
        The results to compare, in order.
    decision
        Their comparison by :func:`tspsim.studies.purchase.decide`.
    links
        Number of a result → address of its own report.
    plotly_js
        ``inline``, or the address of the plotly bundle.
    title, description
        In place of the scenarios' names.
    names
        A sentence on the name parts of searched plans.
    """
    differing = in_words(differences(results))
    if results and requests.serves(results):
        heading = " ".join(filter(None, (description, differing)))
        return page_of_requests(results, decision, links, plotly_js, title, heading)
    every = rows(results)
    offers = dict(enumerate(decision.rows)) if decision else {}
    scenarios = list(dict.fromkeys(row.scenario for row in every))
    drawn: dict[str, Any] = {}
    answer = headline(every, decision, title or " · ".join(scenarios[:8]), description)
    ranked = ranking(every, offers, links or {}, ranked_by(decision))
    sections = [
        ("answer", "", HEADLINE, answer | {"sentences": [*answer["sentences"], *filter(None, [differing])]}),
        ("ranking-section", "Ranking", RANKING, ranked | {"names": names}),
    ]
    colours = figures.colour_of(scenarios)
    points = priced(every, offers)
    if points:
        drawn["pareto"] = {
            "choices": [{"label": basis, **figures.pareto(those, colours, basis)} for basis, those in points.items()]
        }
        caption = "Cheap is left, fast is up; on the dotted line no plan is cheaper and as fast."
        if len(points) > 1 and any(STATED in offer.rates.usd_per_gpu_hour for offer in offers.values()):
            caption += " A stated price of an offer appears under every basis."
        sections.append(("cost-and-speed", "Cost and speed", PARETO, {"caption": caption}))
    if decision is not None:
        curves = figures.scaling(decision.rows, colours)
        if curves:
            drawn["scaling"] = {"choices": curves}
            sections.append(("scaling-section", "Scaling", SCALING, scaling(decision)))
        if any(row.outcome or row.need or row.too_small for row in decision.rows):
            sections.append(("project", "The project", PROJECT, project(decision)))
        if decision.verdicts:
            drawn["tornado"] = {"choices": figures.tornados(decision)}
            sections.append(("doubt", "Uncertainty", UNCERTAINTY, uncertainty(decision)))
    sections.append(("assumptions", "Assumptions side by side", SIDES, sides(results, offers)))
    heading = title or ", ".join(names[:8])
    if decision is not None:
        sections.append(section(memo_of(decision, results, heading, description)))
    return render_sections(
        sections,
        drawn,
        title=heading,
        plotly_js=plotly_js,
        styles=("page.css", "comparison.css", "memo.css"),
        scripts=("comparison.js", "memo.js"),
    )


def headline(every: Sequence[ComparisonRow], decision: Decision | None, title: str, description: str) -> dict[str, Any]:
    """The answer in a sentence, and the sentences behind it."""
    ran = [row for row in every if row.plan.ran]
    values: dict[str, Any] = {"title": title, "description": description, "spread": "", "sentences": [], "tiles": []}
    values["searched"] = [row.searched.in_words(row.name) for row in decision.rows if row.searched] if decision else []
    scenarios = len({row.number for row in every})
    values["kicker"] = f"{len(every)} plans of {scenarios} scenario{'s' * (scenarios > 1)}"
    if not ran:
        return values | {"headline": "No plan fits or can run."}
    fastest = max(ran, key=lambda row: row.plan.tokens_per_s)
    first = ran[0]
    values["headline"] = (
        f"{fastest.plan.name} of {fastest.scenario} is fastest: {compact(fastest.plan.tokens_per_s)} tokens/s"
    )
    if fastest.plan.range is not None:
        values["spread"] = f"likely {compact(fastest.plan.range.low)} to {compact(fastest.plan.range.high)}"
    values["sentences"] = [
        f"{fastest.ratio:.2f} times {first.plan.name} of {first.scenario}. {fastest.plan.bottleneck[:1].upper()}"
        f"{fastest.plan.bottleneck[1:]}."
    ]
    values["sentences"] += seen_by_users(fastest.plan)
    if decision is not None and decision.winner is not None and decision.measure != "tokens_per_s":
        winner, objective = decision.winner, OBJECTIVES[decision.measure]
        assert winner.best is not None
        basis = winner.rates.basis if decision.measure == "tokens_per_dollar" else None
        most, tied = compact(winner.measure(objective.measure) or 0.0), ties(decision)
        values["headline"] = (
            f"{' and '.join([winner.name, *tied])} tie on {objective.words}: {winner.name} gives {most}"
            if tied
            else f"{winner.name} gives most {objective.words}: {most}"
        )
        values["spread"] = winner.best.name + (f", price basis {basis}" if basis is not None else "")
        nearest = decision.verdicts[0] if decision.verdicts else None
        if nearest is not None:
            today = decision.today_s_ratio(nearest)
            values["sentences"].insert(
                0,
                f"That is {nearest.ratio:.2f} times the {objective.words} of {nearest.b}, the nearest (nine times of "
                f"ten {nearest.low:.2f} to {nearest.high:.2f}), and more with a probability of "
                f"{chance(nearest.probability)}; the verdict turns when {level(nearest)}"
                + (f"; today {today:.2f} times." if today is not None else "."),
            )
        values["sentences"][-1] = "Fastest of all: " + (
            f"{fastest.plan.name} of {fastest.scenario}, {compact(fastest.plan.tokens_per_s)} tokens/s on "
            f"{fastest.hardware}."
        )
        mixed = mixed_bases(decision.rows) if basis is not None else ""
        bases = [f"Prices, basis {basis}: {BASES[basis]}."] if basis in BASES and basis != STATED else []
        values["sentences"] += filter(None, [mixed or "".join(bases), ceiling(decision.rows).replace("`", "")])
        values["tiles"] = [
            (f"most {words}", best.name, f"{compact(measured)} with {best.best.name if best.best else ''}")
            for key, words in (
                ("tokens_per_s", "tokens/s"),
                ("tokens_per_s_per_gpu", "tokens/s/GPU"),
                ("tokens_per_usd", "tokens a dollar"),
                ("tokens_per_joule", "tokens a joule"),
            )
            for best in decision.ranked(key)[:1]
            if (measured := best.measure(key))
        ]
    if decision is not None and decision.doubt:  # there is no winner then
        rate = f"{compact(fastest.plan.tokens_per_s)} tokens/s"
        so_far = f"The fastest plan so far is {fastest.plan.name} of {fastest.scenario}: {rate}, {values['spread']}"
        values |= {"headline": decision.doubt, "spread": "", "tiles": [], "sentences": [f"{so_far.rstrip(', ')}."]}
    return values


def ranked_by(decision: Decision | None) -> str:
    """The measure of the headline, as a key of the ranking."""
    judged = decision is not None and decision.winner is not None
    return OBJECTIVES[decision.measure].rank if judged and decision is not None else "rate"


def seen_by_users(plan: PlanResult) -> list[str]:
    """The latencies of a serving step for its users, in a sentence."""
    waits = {"time_to_first_token_s": "first token after", "time_per_output_token_s": "a token every"}
    said = [f"{words} {timed(plan, key)}" for key, words in waits.items() if key in plan.inference]
    return [f"Its users see: {', '.join(said)}."] if said else []


def ranking(
    every: Sequence[ComparisonRow], offers: Mapping[int, OfferRow], links: Mapping[int, str], by: str = "rate"
) -> dict[str, Any]:
    """Rows with the values that the page sorts and filters by, first by the measure ``by``; of several scenarios
    the best plan of each is shown first."""
    best = {
        number: max((row.plan.tokens_per_s for row in every if row.number == number), default=0.0)
        for number in {row.number for row in every}
    }
    entries = []
    for row in every:
        if not row.plan.ran:
            continue
        plan = row.plan
        measures = measured(row, offers.get(row.number))
        usd = dollars(row, offers.get(row.number))
        prices = sorted(usd.values())
        cost = digits(prices[0]) + (f" – {digits(prices[-1])}" if prices[-1] != prices[0] else "") if prices else "–"
        memory = f"{gib(plan.memory.peak_bytes)} of {gib(plan.memory.capacity_bytes)}"
        likely = f"{compact(plan.range.low)} – {compact(plan.range.high)}" if plan.range is not None else "–"
        rate, step = compact(plan.tokens_per_s), seconds(plan.step_time_s)
        cells = [row.scenario, plan.name, row.hardware, rate, likely, step, memory]
        entries.append(
            {
                "device": row.device,
                "best": "yes" if plan.tokens_per_s == best[row.number] else "no",
                "words": f"{row.scenario} {plan.name} {row.device} {row.gpus}".lower(),
                "link": links.get(row.number, ""),
                "measures": [(key, repr(value), text) for key, (value, text) in measures.items()],
                "cells": [*cells, cost],
            }
        )
    shown = {measure for row in every if row.plan.ran for measure in measured(row, offers.get(row.number))}
    return {
        "measures": [(key, words) for key, words in MEASURES.items() if key in shown],
        "first": by,
        "several": len(best) > 1,
        "devices": list(dict.fromkeys(row.device for row in every)),
        "columns": COLUMNS,
        "ranking": entries,
        "links": bool(links),
        "refused": [f"{row.plan.name} of {row.scenario}: {row.plan.error}" for row in every if not row.plan.ran],
    }


def measured(row: ComparisonRow, offer: OfferRow | None) -> dict[str, tuple[float, str]]:
    """The measures of a plan: value and text."""
    plan = row.plan
    per_gpu = plan.tokens_per_s_per_gpu
    measures = {
        "rate": (plan.tokens_per_s, compact(plan.tokens_per_s)),
        "each": (per_gpu, compact(per_gpu)),
        "mfu": (plan.mfu, percent(plan.mfu)),
    }
    seen = plan.inference.get("tokens_per_s_per_user")
    if seen is not None:
        measures["user"] = (seen, digits(seen))
    left = plan.memory.capacity_bytes - plan.memory.peak_bytes
    if plan.memory.capacity_bytes:
        measures["headroom"] = (left, gib(left))
    usd = dollars(row, offer)
    basis = offer.rates.basis if offer is not None else next(iter(usd), None)
    if basis is not None and usd.get(basis):
        measures["dollar"] = (1e6 / usd[basis], compact(1e6 / usd[basis]))
    kwh = plan.cost.get("kwh_per_million_tokens")
    watts = offer.rates.watts_per_gpu if offer is not None else None
    joule = per_gpu / watts if watts else 1e6 / (kwh * 3.6e6) if kwh else None
    if joule:
        measures["joule"] = (joule, digits(joule))
    return measures


def priced(
    every: Sequence[ComparisonRow], offers: Mapping[int, OfferRow]
) -> dict[str, list[tuple[str, str, float, float]]]:
    """Points of the figure of cost and speed by price basis, the basis that ranks first; a stated price of an offer
    appears under every basis."""
    usd = [(row, dollars(row, offers.get(row.number))) for row in every if row.plan.ran]
    ranking = [offer.rates.basis for offer in offers.values() if offer.rates.basis]
    bases = dict.fromkeys([*ranking, *(basis or STATED for _, prices in usd for basis in prices)])
    if len(bases) > 1:
        bases.pop(STATED, None)
    points: dict[str, list[tuple[str, str, float, float]]] = {basis: [] for basis in bases}
    for row, prices in usd:
        stated = prices.get(STATED)
        for basis, those in points.items():
            price = prices.get(basis, stated)
            if price is not None:
                those.append((row.scenario, row.plan.name, price, row.plan.tokens_per_s_per_gpu))
    return {basis: those for basis, those in points.items() if those}


def write_comparison(
    results: Sequence[Result],
    path: Path,
    decision: Decision | None = None,
    *,
    title: str = "",
    description: str = "",
    names: str = "",
    reports: bool = False,
) -> None:
    """Write the comparison as one offline page: ranking, cost against speed, and the sections of ``decision``.

    Parameters
    ----------
    results, decision
        The results to compare, and their comparison by :func:`tspsim.studies.purchase.decide`, if there is one.
    title, description
        In place of the scenarios' names.
    names
        A sentence on the name parts of searched plans.
    path
        With the suffix ``.zip`` it becomes one file with the page and all linked pages.
    reports
        Write each result's own report too, into the folder ``NAME-reports`` beside the page, and link it.

    Raises
    ------
    InputError
        A file cannot be written.
    """
    path = Path(path)
    if path.suffix == ".zip":
        with TemporaryDirectory() as folder:
            inside = Path(folder) / f"{path.stem}.html"
            words = {"title": title, "description": description, "names": names}
            write_comparison(results, inside, decision, reports=reports, **words)
            zipped(Path(folder), path)
        return
    links = write_reports(results, path.with_name(f"{path.stem}-reports")) if reports else {}
    atomic_write(path, page(results, decision, links, title=title, description=description, names=names))


def write_reports(results: Sequence[Result], folder: Path) -> dict[int, str]:
    """Write the reports of results with timelines or logs, around one plotly bundle; returns their addresses."""
    links: dict[int, str] = {}
    for number, result in enumerate(results):
        if any(plan.timeline is not None or plan.runs for plan in result.plans):
            file = f"{number + 1:02d}-{slug(str(result.scenario['name']))}.html"
            atomic_write(folder / file, render(result, "plotly.min.js"))
            links[number] = f"{folder.name}/{file}"
    if links:
        atomic_write(folder / "plotly.min.js", _bundle())
    return links
