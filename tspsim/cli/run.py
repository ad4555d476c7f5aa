"""``tspsim run``: one question, its table and its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..answer.refusals import nothing_runs, placed
from ..base.display import progress_bar
from ..base.errors import InputError
from .completion import scenarios
from .grammar import json_option, pdf_option, set_option
from .outputs import Outputs, files_of, print_rich, report_file, terminal_width

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import RenderableType

    from ..report.view import View
    from ..scenario import Scenario
    from ..step.result import Result


@click.command()
@click.argument("scenario", shell_complete=scenarios)
@set_option
@click.option("--html", "html_file", metavar="FILE", help="Write the report here, not to reports/NAME.html.")
@json_option
@pdf_option
@click.option("--trace", "trace_file", metavar="FILE", help="Write the timelines as a trace for Perfetto.")
@click.option("--every-rank", is_flag=True, help="Simulate every rank instead of one per class of equal ranks.")
@click.option("--every-step", is_flag=True, help="With traffic: simulate every step, not runs of equal steps at once.")
@click.option("--every-kernel", is_flag=True, help="With traffic: compare drawn steps with their whole programs.")
@click.option("--every-job-step", is_flag=True, help="With jobs: simulate real steps of jobs that share links.")
def run(
    scenario: str,
    overrides: tuple[str, ...],
    html_file: str | None,
    json_file: str | None,
    pdf_file: str | None,
    trace_file: str | None,
    every_rank: bool,
    every_step: bool,
    every_kernel: bool,
    every_job_step: bool,
) -> None:
    """Answer one question: every plan of SCENARIO, and a report.

    Without --html, --json, --pdf or --trace the report goes to reports/NAME.html in the current folder. Ctrl-C keeps
    the finished points of a curve.
    """
    from .. import report
    from ..fleet import is_fleet
    from ..scenario import load

    if is_fleet(scenario):
        flags = {"--every-rank": every_rank, "--every-step": every_step, "--every-kernel": every_kernel}
        beside = [name for name, given in (flags | {"--pdf": pdf_file}).items() if given]
        files = {"html": html_file, "json": json_file, "trace": trace_file}
        _run_fleet(scenario, overrides, beside, files, every_job_step)
        return
    if every_job_step:
        raise InputError("is of a fleet; the scenario has no `jobs`", key="--every-job-step")
    question = load(scenario, overrides)
    _check_meant(
        question,
        of_steps={"--every-rank": every_rank, "--trace": trace_file is not None},
        of_requests={"--every-step": every_step, "--every-kernel": every_kernel},
    )
    report_to = report_file(question.name, question.file_name)
    whose, inputs = question.file_name, files_of(question)
    outputs = Outputs(
        report_to, source=whose, inputs=inputs, html=html_file, json=json_file, pdf=pdf_file, trace=trace_file
    )
    from ..api import answered

    with placed(question), progress_bar() as progress:
        result, searched = answered(
            question, progress, every_rank=every_rank, every_step=every_step, every_kernel=every_kernel
        )
    outputs.write(
        {
            "html": lambda path: report.write_report(result, path),
            "json": lambda: result.dumps() + "\n",
            "pdf": lambda path: report.write_memo(result, path),
            "trace": lambda path: report.write_trace(result, path),
        },
        show=lambda: _print_answer(result, searched),
    )
    if result.interrupted:
        raise KeyboardInterrupt
    if not any(plan.ran for plan in result.plans):
        raise nothing_runs(result.plans)


def _run_fleet(
    scenario: str, overrides: tuple[str, ...], beside: list[str], files: Mapping[str, str | None], every_job_step: bool
) -> None:
    """Answer a question with jobs."""
    from .. import report
    from ..api import answered
    from ..fleet import FleetAnswer, load
    from ..report.fleet import in_terminal

    question = load(scenario, overrides)
    if beside:
        raise InputError("is not of a fleet of jobs; it has --html, --json and --trace", key=beside[0])
    report_to = report_file(question.name, question.file_name)
    outputs = Outputs(report_to, source=question.file_name, inputs=question.files(), **files)
    with placed(question), progress_bar() as progress:
        result, _ = answered(question, progress, every_job_step=every_job_step)
    assert isinstance(result, FleetAnswer)
    outputs.write(
        {
            "html": lambda path: report.write_report(result, path),
            "json": lambda: result.dumps() + "\n",
            "trace": lambda path: report.write_trace(result, path),
        },
        show=lambda: print_rich(*in_terminal(result)),
    )


def _check_meant(question: Scenario, of_steps: Mapping[str, bool], of_requests: Mapping[str, bool]) -> None:
    """Refuse an option that has no effect here; raises InputError."""
    options, meaning = of_requests, "requests; the scenario has no `traffic`"
    if question.traffic is not None:
        options, meaning = of_steps, "a single step; of a run of requests the report has engines over time"
    for option, given in options.items():
        if given:
            raise InputError(f"is of {meaning}", key=option)


def _print_answer(result: Result, searched: str) -> None:
    """Print the search and its certainty, workload and machine, the table, the limit of the best plan, notes, and
    assumptions."""
    from rich.padding import Padding
    from rich.text import Text

    from ..report import requests, table
    from ..report.sections.answer import kicker
    from ..report.view import View

    view = View(result)
    serves = requests.serves([result])
    shown = requests.table([result], terminal_width()) if serves else table(result, terminal_width())
    first: list[RenderableType] = [Text(searched), ""] if searched else []
    parts: list[RenderableType] = [*first, Text(kicker(view), style="bold"), "", shown, ""]
    parts += _of_the_best(result, view, serves)
    notes = _notes_of(result)
    for title, sentences in (("Notes", notes), ("Assumed; each can be switched", result.defaults)):
        if sentences:
            indented = (Padding(Text(sentence), (0, 0, 0, 2)) for sentence in sentences)
            parts += [Text(title, style="bold"), *indented, ""]
    print_rich(*parts)


def _notes_of(result: Result) -> list[str]:
    """Notes in the order of their first plan, each once, with the plans that it is about."""
    about: dict[str, dict[str, None]] = {}
    for plan in result.plans:
        for note in plan.notes:
            about.setdefault(note, {})[plan.name] = None
    several = len(result.plans) > 2
    return [
        f"{'Every plan' if several and len(names) == len(result.plans) else ', '.join(names)}: {note}"
        for note, names in about.items()
    ]


def _of_the_best(result: Result, view: View, serves: bool) -> Iterator[RenderableType]:
    """The best plan's result, and its limit."""
    from rich.text import Text

    from ..report import requests, served
    from ..studies.purchase.machines import machines_in_words

    best = result.best
    if best is None:
        return
    if serves:
        yield Text(requests.headline(best, [plan for plan in result.plans if plan is not best]), style="bold")
        yield from map(Text, machines_in_words(result))
        yield from map(Text, requests.sentences(best))
    elif view.load is not None:
        yield Text(f"{served.headline(view, best)}.", style="bold")
        yield from map(Text, served.sentences(view, best))
        yield Text(f"{best.bottleneck[:1].upper()}{best.bottleneck[1:]}.")
    else:
        fastest = " is the fastest" if len(result.plans) > 1 else ""
        yield Text(f"{best.name}{fastest}: {best.bottleneck}.")
    yield ""
