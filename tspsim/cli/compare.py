"""``tspsim compare``: several scenarios, or the offers of one, side by side."""

from __future__ import annotations

import click

from .grammar import json_option
from .outputs import Outputs, json_text, part_of, print_rich, progress_bar
from .refusals import nothing_runs


@click.command()
@click.argument("scenarios", metavar="SCENARIO...", nargs=-1, required=True)
@click.option("--html", "html_file", metavar="FILE", help="Write the comparison as an HTML page.")
@json_option
@click.option("--csv", "csv_file", metavar="FILE", help="Write the table as CSV; - prints it.")
def compare(scenarios: tuple[str, ...], html_file: str | None, json_file: str | None, csv_file: str | None) -> None:
    """Several scenarios side by side: rates, ratios to the first plan, memory and cost.

    A scenario with offers becomes one scenario an offer; its page and JSON also have scaling, the project, and doubts.
    """
    from ..report import comparison, comparison_page
    from ..result import SCHEMA_VERSION
    from ..scenario import load
    from ..studies.purchase import decide
    from ..studies.purchase.offers import expand_all

    asked = [load(name) for name in scenarios]
    questions = expand_all(asked)
    outputs = Outputs(html=html_file, json=json_file, csv=csv_file)
    from ..simulation import simulate

    with progress_bar() as progress:
        results = [
            simulate(question, progress=part_of(progress, question.name, index, len(questions)))
            for index, question in enumerate(questions)
        ]
        purchase = any(question.offers for question in asked) and bool(html_file or json_file)
        decision = decide(questions, results, progress=progress) if purchase else None
    one = asked[0] if len(asked) == 1 else None
    words = {"title": one.name, "description": one.description} if one else {}
    documents = {"schema": SCHEMA_VERSION, "results": [result.to_json() for result in results]}
    if decision is not None:
        documents["purchase"] = decision.to_json()
    outputs.write(
        {
            "html": lambda path: comparison_page.write_comparison(results, path, decision, reports=purchase, **words),
            "json": lambda: json_text(documents),
            "csv": lambda: comparison.csv(results),
        },
        show=lambda: print_rich(comparison.table(results), ""),
    )
    plans = [plan for result in results for plan in result.plans]
    if not any(plan.ran for plan in plans):
        raise nothing_runs(plans)
