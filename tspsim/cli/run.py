"""``tspsim run``: one question, its table and its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .completion import scenarios
from .grammar import json_option, set_option
from .outputs import Outputs, print_rich, progress_bar, report_file, terminal_width
from .refusals import nothing_runs, placed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..result import Result


@click.command()
@click.argument("scenario", shell_complete=scenarios)
@set_option
@click.option("--html", "html_file", metavar="FILE", help="Write the report here, not to reports/NAME.html.")
@json_option
@click.option("--trace", "trace_file", metavar="FILE", help="Write the timelines as a trace for Perfetto.")
@click.option("--every-rank", is_flag=True, help="Simulate every rank instead of one of each kind.")
def run(
    scenario: str,
    overrides: tuple[str, ...],
    html_file: str | None,
    json_file: str | None,
    trace_file: str | None,
    every_rank: bool,
) -> None:
    """Answer one question: every plan of SCENARIO, and a report.

    Without --html, --json or --trace the report goes to reports/NAME.html in the current folder.
    """
    from .. import report
    from ..scenario import load

    question = load(scenario, overrides)
    outputs = Outputs(report_file(question.name), html=html_file, json=json_file, trace=trace_file)
    from ..simulation import simulate

    with placed(question), progress_bar() as progress:
        result = simulate(question, every_rank=every_rank, progress=progress)
    outputs.write(
        {
            "html": lambda path: report.write_report(result, path),
            "json": lambda: result.dumps() + "\n",
            "trace": lambda path: report.write_trace(result, path),
        },
        show=lambda: _print_answer(result),
    )
    if not any(plan.ran for plan in result.plans):
        raise nothing_runs(result.plans)


def _print_answer(result: Result) -> None:
    """What was asked of which machine, the table, what limits the fastest plan, what a reader should know, what was
    assumed."""
    from rich.padding import Padding
    from rich.text import Text

    from ..report import served, table
    from ..report.sections.answer import kicker
    from ..report.view import View

    best = result.best
    view = View(result)
    parts: list[RenderableType] = [Text(kicker(view), style="bold"), "", table(result, terminal_width()), ""]
    if best is not None and view.load is not None:
        parts.append(Text(f"{served.headline(view, best)}.", style="bold"))
        parts += [*(Text(sentence) for sentence in served.sentences(view, best))]
        parts += [Text(f"{best.bottleneck[:1].upper()}{best.bottleneck[1:]}."), ""]
    elif best is not None:
        fastest = " is the fastest" if len(result.plans) > 1 else ""
        parts += [Text(f"{best.name}{fastest}: {best.bottleneck}."), ""]
    notes = [f"{plan.name}: {note}" for plan in result.plans for note in plan.notes]
    for title, sentences in (("Worth knowing", notes), ("Assumed; each can be switched", result.defaults)):
        if sentences:
            indented = (Padding(Text(sentence), (0, 0, 0, 2)) for sentence in sentences)
            parts += [Text(title, style="bold"), *indented, ""]
    print_rich(*parts)
