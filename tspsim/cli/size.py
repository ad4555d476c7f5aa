"""``tspsim size``: how many machines serve a recorded trace within bounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..base.display import progress_bar
from ..base.errors import InputError
from .grammar import json_option, set_option
from .outputs import Outputs, json_text, print_rich, report_file

if TYPE_CHECKING:
    from ..scenario import Scenario
    from ..studies.sizing import Sized, Sizing


@click.command()
@click.argument("trace")
@click.option("--slo", required=True, metavar="BOUNDS", help="Bounds on waits: ttft=2s,tpot=40ms,share=0.95.")
@click.option("--model", required=True, metavar="NAME", help="Model that is served, from the catalog or a file.")
@click.option("--on", "offers", multiple=True, required=True, metavar="DEVICE", help="Device of an offer; repeatable.")
@click.option("--stack", default="vllm", show_default=True, metavar="NAME", help="Engine that serves.")
@click.option("--rate", metavar="RATE", help="Mean requests/s to size for; left out, the trace's own.")
@set_option
@click.option("--budget", default="2 min", show_default=True, metavar="TIME", help="Search of plans; none: no end.")
@click.option("--launch", "folder", metavar="FOLDER", help="Write a launch and a scenario that runs for every offer.")
@click.option("--html", "html_file", metavar="FILE", help="Write the offers as one HTML page, with their launches.")
@json_option
def size(
    trace: str,
    slo: str,
    model: str,
    offers: tuple[str, ...],
    stack: str,
    rate: str | None,
    overrides: tuple[str, ...],
    budget: str,
    folder: str | None,
    html_file: str | None,
    json_file: str | None,
) -> None:
    """How many machines serve TRACE within bounds: nodes, plan, ratio of pools, router and dollars, for every offer.

    TRACE is CSV or JSON lines (arrival_s or timestamp_s, prompt_tokens, output_tokens and, where prompts share blocks,
    hash_ids), or the name of a catalog trace. The best plan is searched for on one machine of each offer; then the
    whole trace, bursts included, is served by as many machines as the bounds need.
    """
    from ..studies.planner import read_budget
    from ..studies.sizing import bounds_of, question_of, rate_of, sized
    from ..traffic.traces import locate_trace, read_trace

    budget_s = read_budget(budget)
    question = question_of(trace, model=model, stack=stack, slo=bounds_of(slo), offers=offers, overrides=overrides)
    wanted = rate_of(rate, read_trace(trace))
    outputs = Outputs(inputs=[locate_trace(trace)], html=html_file, json=json_file)
    target = _folder(folder)
    with progress_bar() as progress:
        answer = sized(question, wanted, budget_s=budget_s, progress=progress)
    if target is not None:
        _launches(answer, target)
    outputs.write(
        {"html": lambda path: _page(answer, path), "json": lambda: json_text(answer.to_json())},
        show=lambda: _show(answer, trace, target),
    )
    if all(size.error for size in answer.sized):
        from ..base.errors import InfeasibleError

        raise InfeasibleError("; ".join(f"{size.offer}: {size.error}" for size in answer.sized))


def _show(answer: Sizing, trace: str, target: Path | None) -> None:
    """The offers, cheapest first."""
    print_rich(f"{trace}: {answer.question_in_words}", "", *(size.in_words() for size in answer.sized))
    if target is not None:
        click.echo(f"launches and scenarios: {target}/")


def _folder(name: str | None) -> Path | None:
    """The folder for launches; raises InputError where it is a file, or its parent is missing."""
    if name is None:
        return None
    path = Path(name)
    if path.exists() and not path.is_dir():
        raise InputError("is a file; name a folder for the launches", key="--launch", file=name)
    if not path.parent.exists():
        raise InputError(f"folder '{path.parent}' does not exist; make it first", key="--launch", file=name)
    return path


def _page(answer: Sizing, path: Path) -> None:
    """The page, with the launch of every offer that serves and has one."""
    answer.to_html(path)


def _launches(answer: Sizing, target: Path) -> None:
    """``OFFER.sh`` and ``OFFER.yaml`` of every offer that serves."""
    from ..base.files import atomic_write
    from ..studies.planner.written import scenario_text

    target.mkdir(exist_ok=True)
    for size in answer.sized:
        if size.deployment is None:
            continue
        stem = report_file(size.offer).stem
        atomic_write(target / f"{stem}.yaml", scenario_text(_written(size, answer.rate)))
        if size.launch:
            atomic_write(target / f"{stem}.sh", size.launch)


def _written(size: Sized, rate: float) -> Scenario:
    """The scenario of one machine: the plan under the trace, at its share of the rate."""
    assert size.scenario is not None and size.scenario.traffic is not None and size.deployment is not None
    share = rate / size.deployment.machines
    return size.scenario.model_copy(update={"traffic": size.scenario.traffic.at_rate(float(f"{share:.4g}"))})
