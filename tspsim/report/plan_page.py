"""The planner's page: the best plans, the reasons, the front, other lengths and sizes, the map of TSP; offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tspsim.base.files import atomic_write
from tspsim.base.units import compact, gib, percent
from tspsim.step.simulation import simulate

from . import plan_figures as figures
from .numbers import seconds
from .page import render_sections
from .plan import (
    chapters,
    front,
    kicker,
    rows_of,
    scheme_map,
    searched,
    sensitivity,
    sure,
    what_fits,
    why,
    yaml_of,
)
from .plan_names import legend
from .sections import assumptions, breakdown, memory, timeline, unexplained
from .view import View, price_range

if TYPE_CHECKING:
    from tspsim.parallel import Plan
    from tspsim.studies.planner import Planned

HEADLINE = """
<p class="kicker">{{ kicker }}</p>
<h1>{{ title }}</h1>
{% if description %}<p class="description">{{ description }}</p>{% endif %}
{% if opening %}<p class="headline"><strong>{{ opening }}</strong></p>{% endif %}
<p class="headline">{{ headline }}{% if spread %} <span class="spread">{{ spread }}</span>{% endif %}</p>
{% for sentence in sentences %}<p>{{ sentence|prose }}</p>{% endfor %}
{% if searched %}<details><summary>The search</summary><p>{{ searched }}</p></details>{% endif %}
<pre><code>{{ yaml }}</code></pre>
"""

TABLE = """
<div class="scroll"><table class="plans left limited"><caption class="hidden">{{ caption }}</caption>
<thead><tr>{% for column in columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in table %}<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}
<td data-label="{{ columns[loop.index] }}">{{ cell }}</td>{% endfor %}</tr>{% endfor %}</tbody>
</table></div>
{% if refused %}<ul class="verdicts">{% for text in refused %}<li class="refused">{{ text }}</li>{% endfor %}</ul>
{% endif %}
"""

FIGURE = """
{% for sentence in sentences %}<p>{{ sentence|prose }}</p>{% endfor %}
{{ figure(key, caption) }}
"""

LIST = """
<ul>{% for sentence in sentences %}<li>{{ sentence|prose }}</li>{% endfor %}</ul>
"""

NAMES = """
<p>The names of searched plans are made of the chosen values; these words are in the names above:</p>
<dl class="terms">
{% for word, meaning in names %}<dt><code>{{ word }}</code></dt><dd>{{ meaning }}</dd>{% endfor %}
</dl>
"""

#: A section of the page: key, heading, template, values.
Part = tuple[str, str, str, dict[str, Any]]
#: Titles of the sections in the navigation.
SHORT = {
    "plans": "Plans", "names": "Names", "why": "Why", "front": "Front", "elsewhere": "Elsewhere", "limits": "Fits",
    "map": "Map",
}  # fmt: skip
#: Sections that show the best plan alone.
OF_THE_BEST = (breakdown.SECTION, timeline.SECTION, memory.SECTION)

COLUMNS = ("Plan", "Tokens/s", "Step", "MFU", "Memory free", "$/M tokens", "Limit")


def page(planned: Planned, plotly_js: str = "inline") -> str:
    """The whole page.

    Parameters
    ----------
    planned
        The planner's answer.
    plotly_js
        ``inline``, or the address of the plotly bundle.
    """
    drawn: dict[str, Any] = {}
    sections: list[Part] = [
        ("answer", "", HEADLINE, headline(planned)),
        ("plans", "The best plans", TABLE, table(planned)),
    ]
    if names := legend(named(planned)):
        sections.append(("names", "Words in the names", NAMES, {"names": names}))
    if planned.why:
        drawn["why"] = figures.steps(planned)
        caption = "Time of both steps by part, mean over ranks."
        values = {"sentences": why(planned), "key": "why", "caption": caption}
        sections.append(("why", "Why the best wins", FIGURE, values))
    if planned.front:
        drawn["front"] = figures.front(planned)
        caption = (
            "Simulated plans: fast is up, free memory is right. The line joins the Pareto-optimal plans of the search; "
            "stated plans stand beside it."
        )
        values = {"sentences": front(planned), "key": "front", "caption": caption}
        sections.append(("front", "The front", FIGURE, values))
    if planned.sensitivity:
        sections.append(("elsewhere", "Other lengths, other sizes", LIST, {"sentences": sensitivity(planned)}))
    if planned.limits is not None:
        sections.append(("limits", "What fits", LIST, {"sentences": what_fits(planned)}))
    if planned.scheme_map:
        drawn["map"] = figures.scheme_map(planned)
        caption = "Rate of the best plan with TSP over that of the best without: above one TSP wins."
        values = {"sentences": scheme_map(planned), "key": "map", "caption": caption}
        sections.append(("map", "Where TSP wins", FIGURE, values))
    for key, _, _, content in sections:
        content["short"] = SHORT.get(key, "")
    payload = add_report(planned, sections, drawn)
    title, scripts = f"{planned.scenario.name}, plans", ("timeline.js",)
    return render_sections(sections, drawn, title=title, plotly_js=plotly_js, scripts=scripts, payload=payload)


def named(planned: Planned) -> list[Plan]:
    """Plans on the page with names from the search."""
    shown = [*planned.best, *planned.front]
    return [option.candidate.plan for option in shown if option.candidate.stated is None]


def add_report(planned: Planned, sections: list[Part], drawn: dict[str, Any]) -> dict[str, Any]:
    """Add the best plan's report to the sections and figures; returns the data of their scripts."""
    view = View(simulate(planned.source_scenario))
    payload: dict[str, Any] = {}
    for section in (breakdown.SECTION, timeline.SECTION, memory.SECTION, assumptions.SECTION, unexplained.SECTION):
        values = section.build(view)
        if values is not None:
            drawn |= values.get("figures", {})
            payload |= values.get("payload", {})
            title = f"{section.title}: {view.best.name}" if view.best and section in OF_THE_BEST else section.title
            sections.append((section.key, title, section.template, {**values, "short": section.short or section.title}))
    return payload


def headline(planned: Planned) -> dict[str, Any]:
    """The best plan in a sentence, and its certainty."""
    best = planned.best[0]
    likely, what = best.result.range, searched(planned)
    return {
        "kicker": kicker(planned),
        "title": planned.scenario.name,
        "description": planned.scenario.description,
        "headline": f"{best.candidate.name}: {compact(best.result.tokens_per_s)} tokens/s",
        "spread": f"likely {compact(likely.low)} to {compact(likely.high)}" if likely is not None else "",
        "opening": planned.opening,
        "sentences": [sentence for sentence in sure(planned) if sentence != what],
        "searched": what,
        "yaml": yaml_of(planned),
    }


def table(planned: Planned) -> dict[str, Any]:
    """Best, front and stated plans as rows."""
    rows = []
    for name, result in rows_of(planned):
        free = gib(result.memory.capacity_bytes - result.memory.peak_bytes)
        likely = f" ({compact(result.range.low)} – {compact(result.range.high)})" if result.range is not None else ""
        rate, step = compact(result.tokens_per_s) + likely, seconds(result.step_time_s)
        rows.append((name, rate, step, percent(result.mfu), free, price_range(result) or "–", result.bottleneck))
    refused = next(sentences for title, sentences in chapters(planned) if title.startswith("Stated"))
    return {"caption": "The best plans", "columns": COLUMNS, "table": rows, "refused": refused}


def write_page(planned: Planned, path: Path) -> None:
    """Write the page, whole or not at all; raises InputError where the file cannot be written."""
    atomic_write(Path(path), page(planned))
