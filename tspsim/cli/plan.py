"""``tspsim plan``: the best of all legal plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from ..base.display import progress_bar
from ..base.errors import InputError
from ..base.files import atomic_write
from .completion import scenarios
from .grammar import jobs_option, json_option, pdf_option, set_option
from .outputs import Outputs, files_of, json_text, print_rich, report_file, terminal_width

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..scenario import Scenario


@click.command()
@click.argument("scenario", shell_complete=scenarios)
@click.option("--objective", metavar="NAME", help="tokens_per_s, tokens_per_dollar, …; of traffic goodput_per_dollar.")
@click.option("--top", type=click.IntRange(1, 50), default=3, show_default=True, metavar="K", help="Number of plans.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="LIMIT",
    help="step<=20s, memory_free>=8GiB, schemes=tsp,tp; of serving tpot<=50ms, ttft<=2s.",
)
@set_option
@click.option("--html", "html_file", metavar="FILE", help="Write the answer as an HTML page.")
@json_option
@pdf_option
@jobs_option
@click.option("--budget", default="40 s", show_default=True, metavar="WORK", help="In processor seconds; none: no end.")
@click.option("--write", "written", metavar="FILE", help="Write the best plan as a scenario that runs as it is.")
@click.option(
    "--emit",
    "engine",
    metavar="NAME",
    help="Print the best plan as a launch of vllm, sglang or trtllm; of training megatron or torchtitan.",
)
@click.option("--place", metavar="PLAN", help="Search the order of nodes for this plan of the scenario instead.")
@click.option("--map", "map_text", metavar="AXES", help="Where TSP wins: sequences=8Ki,128Ki,nodes=1,8,128.")
def plan(
    scenario: str,
    objective: str | None,
    top: int,
    limits: tuple[str, ...],
    overrides: tuple[str, ...],
    html_file: str | None,
    json_file: str | None,
    pdf_file: str | None,
    jobs: int | None,
    budget: str,
    written: str | None,
    engine: str | None,
    place: str | None,
    map_text: str | None,
) -> None:
    """The best parallel plans for SCENARIO's cluster and workload, from all that are legal.

    Plans of SCENARIO itself are compared at the same batch. Each plan has a lower bound on its time before it is
    simulated, so that few need simulation; --budget none goes on until no better plan can remain. Ctrl-C gives the best
    so far. --emit alone prints the launch of SCENARIO's one plan, and searches where it states none or several.
    Without --html, --json, --pdf, --write or --emit the page goes to reports/NAME-plans.html in the current folder.
    """
    from ..studies.planner import Planner, load_planned, planner_of, read_budget, read_map
    from ..studies.planner.written import scenario_text
    from .plans import check_emitted, emitted, has_its_plan, shown

    budget_s = read_budget(budget)
    points = read_map(map_text) if map_text is not None else None
    if written is not None and not written.endswith((".yaml", ".yml")):
        raise InputError("a scenario is written as .yaml, by which other commands know it", file=written)
    if place is not None and any(given is not None for given in (html_file, pdf_file, engine, points)):
        raise InputError("prints the order of nodes, and writes --json and --write alone", key="--place")
    question, stated = load_planned(scenario, overrides)
    if place is not None:
        from ..studies.mapping import mapped

        outputs = Outputs(inputs=files_of(question), json=json_file, write=written)
        placement = mapped(question, place)
        outputs.write(
            {
                "json": lambda: json_text(placement.to_json()),
                "write": lambda path: atomic_write(path, scenario_text(placement.source_scenario)),
            },
            show=lambda: print_rich(*placement.in_words()),
        )
        return
    page_of = report_file(f"{question.name}-plans", question.file_name) if engine is None else None
    whose, inputs = question.file_name, files_of(question)
    outputs = Outputs(page_of, source=whose, inputs=inputs, html=html_file, json=json_file, pdf=pdf_file, write=written)
    if engine is not None:
        check_emitted(engine, question)
        if stated and points is None and has_its_plan(question) and not _searches(click.get_current_context()):
            click.echo(emitted(engine, question), nl=False)
            return
    with progress_bar() as progress:
        planner = planner_of(
            question,
            stated=stated,
            objective=objective,
            top=top,
            jobs=jobs,
            budget_s=budget_s,
            limits=limits,
            progress=progress,
            maps=points is not None,
        )
        answer = planner.run(points) if isinstance(planner, Planner) else planner.run()
    page, summary, best, memo = shown(answer)
    outputs.write(
        {
            "html": page,
            "json": lambda: json_text(answer.to_json()),
            "pdf": memo,
            "write": lambda path: atomic_write(path, scenario_text(best())),
        },
        show=lambda: _show(engine, summary, best),
    )
    if answer.interrupted:
        raise KeyboardInterrupt


#: Options of searches; beside one of them --emit prints the best plan of the search.
_OF_SEARCHES = ("objective", "top", "limits", "html_file", "json_file", "pdf_file", "jobs", "budget", "written")


def _searches(context: click.Context) -> bool:
    """Whether an option is given that only a search has."""
    default = (click.core.ParameterSource.DEFAULT, click.core.ParameterSource.DEFAULT_MAP)
    return any(context.get_parameter_source(name) not in default for name in _OF_SEARCHES)


def _show(engine: str | None, summary: Callable[[int], Sequence[RenderableType]], best: Callable[[], Scenario]) -> None:
    """Print the answer, or the launch of its best plan."""
    from .plans import emitted

    if engine is not None:
        click.echo(emitted(engine, best()), nl=False)
    else:
        print_rich(*summary(terminal_width()))
