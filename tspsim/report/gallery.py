"""The gallery: a page of links to reports and comparisons rendered from the shipped scenarios.

``python -m tspsim.report.gallery FOLDER`` writes ``index.html``, ``plotly.min.js`` once, ``pages/*.html`` around it,
and the numbers of every page as ``tables/*.csv`` and ``*.parquet``. The same code and catalog give the same bytes. The
page of the schemes' worth is written by ``docs/generate_schemes.py`` and listed where it exists.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tspsim.answer.kinds import simulate
from tspsim.base.files import atomic_write
from tspsim.base.units import compact, percent
from tspsim.fleet import FleetAnswer
from tspsim.scenario import Scenario, load
from tspsim.step.cells import Cell
from tspsim.step.description import describe_cluster
from tspsim.step.result import PlanResult, Result
from tspsim.studies.axes import choose
from tspsim.studies.best_plans import with_best
from tspsim.studies.planner import Planned, Planner, load_planned, planner_of
from tspsim.studies.purchase import decide
from tspsim.studies.purchase.offers import expand
from tspsim.studies.table import Table, make_columns, numbers_of

from . import worth
from .comparison import slug
from .comparison_page import page

#: Scenarios in the gallery, the most frequent questions first.
SHOWN = (
    "purchase-8b-128k",
    "purchase-70b",
    "tsp-headline-each-device",
    "nic-400g-against-800g",
    "ring-mesh-against-switch",
    "gqa-tsp-moves-fewer-bytes",
    "tsp-vs-tpsp-1024-mi300x",
    "tsp-figures-throughput",
    "tsp-figures-micro-batch",
    "kimi-k2.6-mi355x-vs-b200",
    "glm-5.1-mi355x-vs-b200",
    "deepseek-v3.2-mi355x-vs-b200",
    "deep-research-glm-5.1",
    "zaya1-1024-mi300x",
    "dead-link-mi300x",
    "slow-gpu-mi300x",
)
#: Questions to the planner, searched until no better plan can remain.
PLANNED = ("plan-70b-8k-1024-mi355x",)
#: Fleets of jobs.
FLEETS = ("fleet-quarter-1024-h100",)
#: Purchases with the report of the best offer, for its best plan alone: timelines are large.
WITH_BEST = ("purchase-8b-128k",)
#: Scenarios with many plans, which are shown without timelines.
WITHOUT_TIMELINES = ("tsp-figures-throughput", "tsp-figures-micro-batch", "zaya1-1024-mi300x")

#: Bars of a thumbnail.
BARS = 6

BUNDLE = "plotly.min.js"


@dataclass(frozen=True)
class GalleryEntry:
    """One scenario in the gallery; ``rates`` are the lengths of its thumbnail's bars, the best first."""

    name: str
    description: str
    href: str
    answer: str
    rates: tuple[float, ...] = ()
    #: Quantity of the bars, and their meaning.
    bars: str = "tokens/s, a bar a plan"


def write_gallery(
    folder: Path, names: Sequence[str] = SHOWN, planned: Sequence[str] = (), fleets: Sequence[str] = ()
) -> list[GalleryEntry]:
    """Render scenarios, the planner's answers to some, and fleets, into a folder.

    Raises
    ------
    InputError
        A scenario is wrong, or a file cannot be written.
    """
    from .page import _bundle

    shown = [*(_write(load(name), folder) for name in names), *(_plan(name, folder) for name in planned)]
    shown += [_fleet(name, folder) for name in fleets]
    entries = [*shown, *schemes(folder)]
    atomic_write(folder / BUNDLE, _bundle())
    atomic_write(folder / "index.html", index(entries))
    return entries


def schemes(folder: Path) -> list[GalleryEntry]:
    """The page of the schemes' worth (:mod:`.worth`), where the folder has it."""
    gains = worth.gains_in(folder)
    if not gains:
        return []
    most = worth.most(gains)
    first = most[0]
    answer = f"{first.scheme}: {first.best:g} times the best plan without it on {first.device}"
    bars = "rate over the best plan without, a bar a scheme"
    rates = _longest([gain.best for gain in most])
    return [GalleryEntry(worth.NAME, worth.DESCRIPTION, f"pages/{worth.NAME}.html", answer, rates, bars)]


def _write(scenario: Scenario, folder: Path) -> GalleryEntry:
    from .pages import render

    with_searches = with_best(expand(scenario))
    questions = [question for question, _ in with_searches]
    results = [simulate(question) for question in questions]
    _tables(scenario, results, folder / "tables")
    file = f"pages/{slug(scenario.name)}.html"
    if not scenario.offers:
        shown = results[0]
        if scenario.name in WITHOUT_TIMELINES:
            shown = replace(shown, plans=tuple(replace(plan, timeline=None) for plan in shown.plans))
        atomic_write(folder / file, render(shown, f"../{BUNDLE}"))
        rates = [plan.tokens_per_s for plan in shown.plans if plan.ran]
        return GalleryEntry(scenario.name, scenario.description, file, _answer(shown), _longest(rates))
    searched = [search for _, search in with_searches]
    decision = decide(questions, results, curves=scenario.project is not None, searched=searched)
    links: dict[int, str] = {}
    if scenario.name in WITH_BEST and decision.winner is not None and decision.winner.best is not None:
        number = decision.rows.index(decision.winner)
        link = f"{slug(scenario.name)}-{slug(decision.winner.name)}.html"
        alone = simulate(choose(questions[number], [decision.winner.best.name]))
        atomic_write(folder / "pages" / link, render(alone, f"../{BUNDLE}"))
        links[number] = link
    text = page(results, decision, links, f"../{BUNDLE}", scenario.name, scenario.description)
    atomic_write(folder / file, text)
    ranked = decision.ranked("tokens_per_usd")
    best, rates = ranked[0], [row.measure("tokens_per_usd") or 0.0 for row in ranked]
    rate = compact(best.measure("tokens_per_usd") or 0.0)
    answer = f"{best.name} with {best.best.name if best.best else 'no plan'}: {rate} tokens a dollar"
    bars = "tokens a dollar, a bar an offer"
    return GalleryEntry(scenario.name, scenario.description, file, answer, _longest(rates), bars)


def _plan(name: str, folder: Path) -> GalleryEntry:
    """The planner's page for a scenario, and its numbers."""
    from . import plan_page
    from .plan import rows_of

    question, stated = load_planned(name)
    planner = planner_of(question, stated=stated, jobs=None, budget_s=None)
    answer = planner.run()
    assert isinstance(planner, Planner) and isinstance(answer, Planned)
    best = rows_of(answer)
    cluster = describe_cluster(answer.question.cluster, answer.question.device)
    rows = [{"point": 0, "offer": name, "plan": plan, **_numbers(cluster, result)} for plan, result in best]
    _table(name, rows, (), folder / "tables")
    file = f"pages/{slug(name)}.html"
    atomic_write(folder / file, plan_page.page(answer, f"../{BUNDLE}"))
    rates = [result.tokens_per_s for _, result in best]
    beaten = [
        stated_plan.result.tokens_per_s
        for stated_plan in answer.stated
        if stated_plan.result is not None and stated_plan.result.ran
    ]
    text = f"{best[0][0]}: {compact(rates[0])} tokens/s"
    text += f", {rates[0] / max(beaten):.2f} times the best plan stated" if beaten else ""
    return GalleryEntry(name, question.description, file, text, _longest(rates))


def _fleet(name: str, folder: Path) -> GalleryEntry:
    """The page of a fleet, and a row per class of its jobs."""
    from .pages import render

    result = simulate(name)
    assert isinstance(result, FleetAnswer)
    facts, classes = result.facts, result.facts.classes()
    named = {"cluster": result.cluster["name"], "device": result.cluster["device"]["name"], "gpus": facts.gpus}
    rows = [{"point": 0, "offer": name, **named, "plan": kind.pop("class"), **kind} for kind in classes]
    _table(name, rows, (), folder / "tables")
    file = f"pages/{slug(name)}.html"
    atomic_write(folder / file, render(result, f"../{BUNDLE}"))
    answer = f"{percent(facts.allocated)} of all GPU-hours have a job, {percent(facts.productive)} do work that lasts"
    rates = _longest([row["gpu_hours"] for row in facts.classes()])
    return GalleryEntry(
        name, str(result.scenario["description"]), file, answer, rates, "GPU-hours, a bar a class of jobs"
    )


def _answer(result: Result) -> str:
    best = result.best
    return f"{best.name}: {compact(best.tokens_per_s)} tokens/s" if best is not None else "no plan runs"


def _longest(rates: Sequence[float]) -> tuple[float, ...]:
    """The largest few, in order."""
    return tuple(sorted(rates, reverse=True)[:BARS])


def thumbnail(rates: Sequence[float]) -> str:
    """A small SVG picture of a page's rates, one bar each.

    >>> thumbnail([2.0, 1.0]).count("<rect")
    2
    """
    size = 'height="7" class="{}"'
    rows = [
        f'<rect y="{index * 10}" width="{200 * rate / rates[0]:.1f}" {size.format("other" if index else "best")}/>'
        for index, rate in enumerate(rates)
    ]
    return f'<svg viewBox="0 0 200 {10 * BARS}" preserveAspectRatio="none" aria-hidden="true">{"".join(rows)}</svg>'


def _tables(scenario: Scenario, results: Sequence[Result], folder: Path) -> None:
    """All numbers of a page, as ``tspsim sweep`` writes them: one row per plan of an offer."""
    rows = [
        {"point": number, "offer": str(result.scenario["name"]), "plan": plan.name, **_numbers(result.cluster, plan)}
        for number, result in enumerate(results)
        for plan in result.plans
    ]
    _table(scenario.name, rows, results, folder)


def _table(name: str, rows: Sequence[Mapping[str, Cell]], results: Sequence[Result], folder: Path) -> None:
    columns = make_columns(rows, ("point", "offer", "plan", "cluster", "device", "gpus"))
    columns.pop("wall_s")
    table = Table(("offer",), columns, tuple(results))
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in (".csv", ".parquet"):
        table.write(folder / f"{slug(name)}{suffix}")


def _numbers(cluster: Mapping[str, Any], plan: PlanResult) -> dict[str, Cell]:
    named = {"cluster": cluster["name"], "device": cluster["device"]["name"], "gpus": cluster["gpus"]}
    return numbers_of({**named, "plan": plan.to_json()})


def index(entries: Sequence[GalleryEntry]) -> str:
    """The page with links to the others."""
    from markupsafe import Markup

    from .page import _asset, _environment

    pictures = [Markup(thumbnail(entry.rates)) if entry.rates and entry.rates[0] else "" for entry in entries]
    shown = list(zip(entries, pictures, strict=True))
    return _environment().from_string(_INDEX).render(style=Markup(_asset("page.css")), shown=shown, slug=slug)


_INDEX = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Gallery · tspsim</title>
<style>{{ style }}
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr)); gap: 1rem; }
.gallery { padding: 0; }
.gallery li { list-style: none; border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1.1rem; }
.gallery h2 { font-size: 1.05rem; border: 0; margin: 0; padding: 0; }
.gallery strong { display: block; margin: .4rem 0 0; }
.gallery svg { display: block; width: 100%; height: 4.5rem; margin: 0 0 .6rem; }
.gallery rect { fill: var(--line); }
.gallery rect.best { fill: var(--accent); }
.top button { margin-left: auto; }
</style>
</head>
<body>
<header class="top"><span class="brand">tspsim</span><button type="button" id="theme">Dark</button></header>
<main>
<section>
<h1>Gallery</h1>
<p>Answers to scenarios that ship, rendered by <code>python -m tspsim.report.gallery reports</code>.</p>
<p>To change one and see its answer change, open it in <a href="../docs/studio.md">the studio</a>:
<code>tspsim studio NAME</code>.</p>
<ul class="gallery">
{% for entry, picture in shown %}
<li>{{ picture }}{% if picture %}<p class="small">{{ entry.bars }}, the best first</p>{% endif %}
<h2><a href="{{ entry.href }}">{{ entry.name }}</a></h2>
<p class="note">{{ entry.description }}</p>
<strong>{{ entry.answer }}</strong>
<p class="small">Numbers: <a href="tables/{{ slug(entry.name) }}.csv">CSV</a>,
<a href="tables/{{ slug(entry.name) }}.parquet">Parquet</a></p></li>
{% endfor %}
</ul>
</section>
</main>
<script>
(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const show = () => { button.textContent = isDark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; show(); });
  prefersDark.addEventListener("change", show);
  show();
})();
</script>
</body>
</html>
"""


def main(arguments: Sequence[str]) -> int:
    """Write the gallery into the named folder."""
    if len(arguments) != 1:
        print("usage: python -m tspsim.report.gallery FOLDER", file=sys.stderr)
        return 2
    for entry in write_gallery(Path(arguments[0]), SHOWN, PLANNED, FLEETS):
        print(f"{entry.name}: {entry.answer}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
