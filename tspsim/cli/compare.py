"""``tspsim compare``: several scenarios, or the offers of one, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..answer.refusals import nothing_runs
from ..base.display import progress_bar
from .completion import scenarios as scenario_names
from .grammar import jobs_option, json_option, pdf_option, set_option
from .outputs import Outputs, files_of, json_text, print_rich

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..api import Comparison
    from ..studies.purchase import Decision
    from ..studies.purchase.row import OfferRow

#: Help of --budget.
BUDGET_HELP = "Work for each machine's `plans: best`, in seconds of a processor; none: no end."


@click.command()
@click.argument("scenarios", metavar="SCENARIO...", nargs=-1, required=True, shell_complete=scenario_names)
@set_option
@click.option(
    "--html", "html_file", metavar="FILE", help="Write the comparison as an HTML page; FILE.zip: with its linked pages."
)
@json_option
@click.option("--csv", "csv_file", metavar="FILE", help="Write the table as CSV; - prints it.")
@pdf_option
@jobs_option
@click.option("--budget", default="40 s", show_default=True, metavar="WORK", help=BUDGET_HELP)
def compare(
    scenarios: tuple[str, ...],
    overrides: tuple[str, ...],
    html_file: str | None,
    json_file: str | None,
    csv_file: str | None,
    pdf_file: str | None,
    jobs: int | None,
    budget: str,
) -> None:
    """Several scenarios side by side: rates, ratios to the first plan, memory and cost.

    A scenario with offers becomes one scenario per offer; its page and JSON also have scaling, the project, and
    uncertainty. --set changes a key of every scenario. For a fleet of jobs with needs, the answer is how many nodes of
    each offer meet them.
    """
    from ..api import compare as side_by_side
    from ..fleet import is_fleet
    from ..report import comparison
    from ..scenario import load

    if any(map(is_fleet, scenarios)):
        files = {"html": html_file, "json": json_file, "csv": csv_file, "pdf": pdf_file}
        _fleet_sizes(scenarios, overrides, files, jobs, budget)
        return
    questions = [load(name, overrides) for name in scenarios]
    outputs = Outputs(inputs=files_of(*questions), html=html_file, json=json_file, csv=csv_file, pdf=pdf_file)
    with progress_bar() as progress:
        compared = side_by_side(*questions, jobs=jobs, budget=budget, progress=progress)
        projects = [question.project for question in compared.questions if question.project is not None]
        served = any(project.users or project.requests for project in projects)
        _ = compared.decision if html_file or json_file or served else compared.verdict  # while the bar stands
    outputs.write(
        {
            "html": lambda path: _written(compared, path),
            "json": lambda: json_text(compared.to_json()),
            "csv": compared.to_csv,
            "pdf": compared.to_pdf,
        },
        show=lambda: print_rich(
            *_first(compared),
            comparison.table(compared.results, _offers(compared)),
            *_project(compared),
            *_closing(compared),
            "",
        ),
    )
    if compared.best is None:
        raise nothing_runs(compared.plans)


def _fleet_sizes(
    scenarios: Sequence[str], overrides: tuple[str, ...], files: Mapping[str, str | None], jobs: int | None, budget: str
) -> None:
    """Nodes that a fleet needs, for each offer."""
    from ..base.errors import InfeasibleError, InputError
    from ..base.files import atomic_write
    from ..fleet import load
    from ..report.fleet import sizes_in_terminal
    from ..report.fleet_page import render_sizes
    from ..report.memo import sheet
    from ..report.memo.fleet import memo_of
    from ..report.printing import write_pdf
    from ..studies.fleet_size import fleet_sizes
    from ..studies.planner import read_budget

    if len(scenarios) > 1:
        raise InputError("is a fleet of jobs, which is compared over its own offers alone", key=scenarios[1])
    question = load(scenarios[0], overrides)
    outputs = Outputs(
        inputs=question.files(), html=files["html"], json=files["json"], csv=files["csv"], pdf=files["pdf"]
    )
    with progress_bar() as progress:
        sizes = fleet_sizes(question, jobs=jobs, budget_s=read_budget(budget), progress=progress)
    outputs.write(
        {
            "html": lambda path: atomic_write(path, render_sizes(sizes, question)),
            "json": lambda: sizes.dumps() + "\n",
            "csv": sizes.csv,
            "pdf": lambda path: write_pdf(sheet.sheet(memo_of(sizes, question)), path),
        },
        show=lambda: print_rich(*sizes_in_terminal(sizes)),
    )
    if all(size.error for size in sizes.sizes):
        raise InfeasibleError("no offer reaches what the fleet needs")


def _written(compared: Comparison, path: Path) -> str:
    """Write the page; returns a sentence on the pages beside it."""
    compared.to_html(path)
    pages = path.with_name(f"{path.stem}-reports")
    if compared.decision is None or path.suffix == ".zip" or not pages.is_dir():
        return ""
    return f", with the offers' own pages in {pages.name}/ (--html {path.stem}.zip: all in one file to mail)"


def _first(compared: Comparison) -> list[str]:
    """The sentence before all numbers."""
    doubt = compared.verdict.doubt if compared.verdict is not None else compared.opening
    return [doubt, ""] if doubt else []


def _offers(compared: Comparison) -> Sequence[OfferRow]:
    """Rows of the offers, with their terms."""
    return compared.verdict.rows if compared.verdict is not None else ()


def _project(compared: Comparison) -> Iterator[RenderableType]:
    """Days and dollars of the project's tokens."""
    from ..base.units import compact
    from ..report.comparison_terms import enough_in_words, hints, money_table

    decision = compared.verdict
    table = money_table(decision) if decision is not None else None
    if decision is not None and decision.project is not None and table is not None and table.row_count:
        yield ""
        yield f"{compact(float(decision.project.tokens or 0), 'tokens')}, with failures and checkpoints:"
        yield table
        yield from filter(None, [enough_in_words(decision.project)])
        yield from hints(decision)


def _closing(compared: Comparison) -> Iterator[str]:
    """Sentences on searches, the verdict with its uncertainty, the service of each offer, and unmeasured hardware."""
    from ..report.differences import in_words
    from ..step.statements import is_announced
    from ..studies.purchase.verdict import ceiling, mixed_bases

    decision = compared.verdict
    rows = decision.rows if decision is not None else ()
    dollars = decision is not None and decision.measure == "tokens_per_dollar"
    announced = dict.fromkeys(
        sentence for result in compared.results for sentence in result.defaults if is_announced(sentence)
    )
    searched = zip(compared.questions, compared.searched, strict=False)
    blocks = [
        list(filter(None, [in_words(compared.differences)])),
        [search.in_words(question.name) for question, search in searched if search is not None],
        list(filter(None, [compared.names])),
        decision.in_words() if decision is not None and not decision.doubt else [],
        list(_services(decision)),
        list(filter(None, [mixed_bases(rows) if dollars else "", ceiling(rows)])),
        list(announced),
    ]
    for block in filter(None, blocks):
        yield ""
        yield from block


def _services(decision: Decision | None) -> Iterator[str]:
    """What each offer needs for the users and requests of the project."""
    project = decision.project if decision is not None else None
    if decision is None or project is None or not (project.users or project.requests):
        return
    for row in decision.rows:
        if row.service is not None:
            yield row.service.in_words(row.name, row.rates.basis)
        else:
            yield f"{row.name}: no number of machines serves them within the bounds ({row.misses})."
