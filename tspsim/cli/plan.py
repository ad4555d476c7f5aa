"""``tspsim plan``: the best of all legal plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..files import atomic_write
from .completion import scenarios
from .grammar import jobs_option, json_option, set_option
from .outputs import Outputs, json_text, print_rich, progress_bar, terminal_width

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..scenario import Scenario


@click.command()
@click.argument("scenario", shell_complete=scenarios)
@click.option("--objective", default="tokens_per_s", metavar="NAME", help="tokens_per_s, tokens_per_dollar, ….")
@click.option("--top", type=click.IntRange(1, 50), default=3, show_default=True, help="How many of the best plans.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="step<=20s, memory_free>=8GiB, schemes=tsp,tp; of serving steps tpot<=50ms, ttft<=2s.",
)
@set_option
@click.option("--html", "html_file", metavar="FILE", help="Write the answer as an HTML page.")
@json_option
@jobs_option
@click.option(
    "--budget", default="40 s", show_default=True, metavar="TIME", help="Processor time; none: as it takes."
)
@click.option("--write", "written", metavar="FILE", help="Write the best plan as a scenario that runs as it is.")
@click.option("--map", "map_text", metavar="AXES", help="Where TSP wins: sequences=8Ki,128Ki,nodes=1,8,128.")
def plan(
    scenario: str,
    objective: str,
    top: int,
    limits: tuple[str, ...],
    overrides: tuple[str, ...],
    html_file: str | None,
    json_file: str | None,
    jobs: int | None,
    budget: str,
    written: str | None,
    map_text: str | None,
) -> None:
    """The best parallel plans for SCENARIO's cluster and workload, from all that are legal.

    Its own plans are compared at the same batch. What a plan cannot undercut is known before it is simulated, so few
    are; --budget none goes on until nothing better can be left. Ctrl-C gives the best so far.
    """
    from ..errors import InputError
    from ..report import plan as shown
    from ..report.plan_page import write_page
    from ..steps import STEPS
    from ..studies.planner import Planner, load_planned, read_budget, read_map

    budget_s = read_budget(budget)
    points = read_map(map_text) if map_text is not None else None
    question, stated = load_planned(scenario, overrides)
    outputs = Outputs(html=html_file, json=json_file, write=written)
    if STEPS.get(question.workload.pass_).serves:
        if points is not None:
            raise InputError("maps are of training and forward steps", key="--map")
        plan_serving(question, stated, objective, limits, top, budget_s, outputs)
        return
    with progress_bar() as progress:
        planner = Planner(
            question,
            stated=stated,
            objective=objective,
            top=top,
            jobs=jobs,
            budget_s=budget_s,
            limits=limits,
            progress=progress,
        )
        answer = planner.run(points)
    deliver(outputs, answer, write_page, lambda: answer.asked, lambda: shown.summary(answer, terminal_width()))


def plan_serving(
    question: Scenario,
    stated: bool,
    objective: str,
    limits: tuple[str, ...],
    top: int,
    budget_s: float | None,
    outputs: Outputs,
) -> None:
    """The best plans of a step of an inference engine."""
    from ..report import serving_plan
    from ..studies.planner import ServingPlanner

    with progress_bar() as progress:
        planner = ServingPlanner(
            question, stated=stated, objective=objective, limits=limits, top=top, budget_s=budget_s, progress=progress
        )
        answer = planner.run()
    deliver(
        outputs, answer, serving_plan.write_page, lambda: answer.best[0].asked, lambda: serving_plan.summary(answer)
    )


def deliver(
    outputs: Outputs,
    answer: Any,
    write_page: Callable[[Any, Path], object],
    best: Callable[[], Scenario],
    summary: Callable[[], Iterable[RenderableType]],
) -> None:
    """Write what was asked for and show the answer; what Ctrl-C ended ends so."""
    from ..studies.planner.written import scenario_text

    outputs.write(
        {
            "html": lambda path: write_page(answer, path),
            "json": lambda: json_text(answer.to_json()),
            "write": lambda path: atomic_write(path, scenario_text(best())),
        },
        show=lambda: print_rich(*summary()),
    )
    if answer.interrupted:
        raise KeyboardInterrupt
