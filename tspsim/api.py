"""The commands as functions, for notebooks and programs: :func:`plan`, :func:`compare`, :func:`sweep`.

``tspsim run`` is :func:`tspsim.simulate`. The answers show themselves in a notebook; nothing is printed or written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .answer.entries import entry_in_words
from .answer.kinds import bounds as ceilings_of
from .answer.kinds import of_one_job, simulate, sort_of
from .answer.refusals import nothing_runs, placed
from .answer.schema import schema
from .base.catalog import FOLDERS, VERSION, Kind, describe_entry, kind_of
from .base.catalog import locate as locate_entry
from .base.catalog import names as entries
from .base.dialect import mapping_of, parse_yaml
from .base.display import Progress, progress_bar
from .base.errors import InputError, Interrupted
from .base.files import atomic_write
from .fleet import FleetQuestion, is_fleet
from .fleet import load as load_fleet
from .fleet import load_text as fleet_of_text
from .report.side_by_side import Comparison
from .scenario import Scenario, load
from .scenario import load_text as scenario_of_text
from .step.bound import Bounds
from .step.result import Result
from .studies import Sweep, SweepInterruptedError, Table
from .studies.best_plans import fleet_with_best, with_best
from .studies.ceiling import beside_the_ceiling
from .studies.fleet_size import fleet_sizes
from .studies.planner import (
    OffersPlanned,
    Planned,
    ServingPlanned,
    TrafficPlanned,
    load_planned,
    planner_of,
    read_budget,
)
from .studies.planner.offers import part_of
from .studies.planner.written import scenario_text
from .studies.purchase.offers import expand_all
from .studies.purchase.outcome import project_of
from .studies.ratio import doubts, likely_ratio
from .studies.searched import Searched
from .validation.run import Validation
from .validation.run import validate as score

__all__ = [
    "FOLDERS",
    "VERSION",
    "Asked",
    "Comparison",
    "Interrupted",
    "Kind",
    "Plans",
    "Progress",
    "Source",
    "answered",
    "atomic_write",
    "best_stated",
    "bounds",
    "compare",
    "describe_entry",
    "doubts",
    "entries",
    "entry_in_words",
    "fleet_figures",
    "fleet_sizes",
    "kind_of",
    "likely_ratio",
    "load",
    "load_text",
    "locate_entry",
    "mapping_of",
    "nothing_runs",
    "of_one_job",
    "parse_yaml",
    "placed",
    "plan",
    "project_of",
    "scenario_text",
    "schema",
    "simulate",
    "sort_of",
    "sweep",
    "validate",
]

if TYPE_CHECKING:
    pass

#: A question, read and checked: of one job or of a fleet.
Asked = Scenario | FleetQuestion
#: The forms in which every command takes a scenario.
Source = Scenario | str | Path | Mapping[str, Any]
#: The answer of a search: over steps, serving steps, requests or offers.
Plans = Planned | ServingPlanned | TrafficPlanned | OffersPlanned


def plan(
    scenario: Source,
    overrides: Sequence[str] = (),
    *,
    objective: str | None = None,
    top: int = 3,
    jobs: int | None = 1,
    budget: str | float | None = "40 s",
    limits: Sequence[str] = (),
    progress: Progress | None = None,
) -> Plans:
    """The best plans for a scenario's cluster and workload, as ``tspsim plan`` finds them.

    Parameters
    ----------
    scenario
        What :func:`tspsim.load` takes, with or without plans of its own.
    overrides
        ``path=value``, as :func:`tspsim.load` takes them; not for a loaded Scenario, whose ``load`` took them.
    objective
        ``tokens_per_s``, ``tokens_per_dollar`` or ``memory_headroom``; steps that serve and requests have others too
        (docs/planner.md). None: ``goodput_per_dollar`` of requests, otherwise ``tokens_per_s``.
    top
        How many plans are wanted.
    jobs
        Processes; None for as many as this machine lends (a program that starts processes needs the usual
        ``if __name__ == "__main__"``).
    budget
        Work of the whole search, counted in seconds of a processor: ``"40 s"``, or the number; ``"none"`` or None:
        until no better plan can remain.
    limits
        Limits that plans must keep: ``memory_free>=8GiB``, ``step<=20s``, ``schemes=tsp,tp``.
    progress
        Called with the work done so far; None: a bar in a terminal or a notebook.

    Raises
    ------
    InputError
        The scenario, objective or budget is wrong.
    InfeasibleError
        No legal plan fits.
    Interrupted
        Ctrl-C (a KeyboardInterrupt); ``found`` is the answer so far.

    Examples
    --------
    >>> planned = plan("tsp-8x-h100", budget=1)
    >>> best = simulate(planned.best[0]).best
    >>> best.name == planned.best[0].result.name
    True
    """
    budget_s = read_budget(budget)
    if isinstance(scenario, Scenario):
        _refuse_overrides(overrides)
        question, stated = scenario, True
    else:
        question, stated = load_planned(scenario, overrides)
    with progress_bar(progress) as callback:
        planner = planner_of(
            question,
            stated=stated,
            objective=objective,
            top=top,
            jobs=jobs,
            budget_s=budget_s,
            limits=limits,
            progress=callback,
        )
        planned = planner.run()
    several = [part for _, part in planned.answered] if isinstance(planned, OffersPlanned) else [planned]
    for answer in several:
        if isinstance(answer, Planned):
            answer.with_questions()
    if planned.interrupted:
        raise Interrupted(planned)
    return planned


def load_text(text: str, file: str | Path) -> Asked:
    """Read and check the text of a question as if it stood in ``file``, which need not be there.

    Raises
    ------
    InputError
        As :func:`tspsim.load` and :func:`tspsim.fleet.load` raise it of the file.

    >>> type(load_text("{name: a, cluster: {device: h100}, jobs: [{name: b, hours: 1 h}]}", "a.yaml")).__name__
    'FleetQuestion'
    """
    fleet = is_fleet(mapping_of(text, Path(file)))
    return fleet_of_text(text, file) if fleet else scenario_of_text(text, file)


def fleet_figures(answer: Any) -> list[tuple[str, dict[str, Any], str]]:
    """Figures of a fleet's report, for other pages: title, the figure as Plotly takes it, caption."""
    from .report.fleet_page import drawn

    return drawn(answer)


def best_stated(question: Asked, progress: Progress | None = None) -> tuple[Asked, str]:
    """A question with its best plan in the place of ``plans: best`` or a job's ``plan: best``, and a sentence on the
    search; any other question as it is. ``tspsim run`` calls it before it simulates.

    Raises
    ------
    InputError
        A limit of the search is wrong.
    InfeasibleError
        No plan keeps the limits.
    """
    if isinstance(question, FleetQuestion):
        return fleet_with_best(question, progress=progress), ""
    if question.searched is None:
        return question, ""
    from .report.plan_names import in_words, named_by_search
    from .step.question import look_up

    ((stated, searched),) = with_best([question], progress=progress)
    if searched is None:
        return stated, ""
    named = named_by_search(look_up(stated).plans) if searched.plan else []
    return stated, " ".join(filter(None, (searched.in_words(question.name), in_words(named))))


def answered(question: Asked | Source, progress: Progress | None = None, **how: Any) -> tuple[Result, str]:
    """The answer of ``tspsim run``, and a sentence on the search for its plan.

    Parameters
    ----------
    question
        A loaded question, or its name, file or mapping; of a fleet too.
    how
        Options of :func:`tspsim.simulate`: ``every_rank``, ``every_step``, ….

    Raises
    ------
    InputError, InfeasibleError
        As :func:`best_stated` and :func:`tspsim.simulate` raise them.

    >>> few = {"name": "best", "search": {"limits": ["schemes=tp"]}}
    >>> work = {"model": "llama-3.1-8b", "pass": "forward", "sequence": "4Ki"}
    >>> answered({"name": "a", "cluster": {"device": "h100"}, "workload": work, "plans": [few]})[0].best.ran
    True
    """
    if not isinstance(question, Scenario | FleetQuestion):
        question = load_fleet(question) if is_fleet(question) else load(question)
    stated, searched = best_stated(question, progress)
    result = simulate(stated, progress=progress, **how)
    return (beside_the_ceiling(stated, result) if isinstance(stated, Scenario) else result), searched


def compare(
    *scenarios: Source,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    budget: str | float | None = "40 s",
    progress: Progress | None = None,
) -> Comparison:
    """Several scenarios side by side, or the offers of one, as ``tspsim compare`` shows them.

    Parameters
    ----------
    scenarios
        What :func:`tspsim.load` takes.
    overrides
        ``path=value`` for every scenario; not for a loaded Scenario, whose ``load`` took them.
    jobs
        Processes for searches and scaling curves; None for as many as this machine lends.
    budget
        Work of the search on each machine, as in :func:`plan`.

    Raises
    ------
    InputError
        A scenario is wrong, or there is none.
    Interrupted
        Ctrl-C (a KeyboardInterrupt); ``found`` has the scenarios that were answered.

    Examples
    --------
    >>> compared = compare("tsp-8x-h100", "tsp-8x-mi355x")
    >>> compared.best.name, sorted(set(compared.to_frame()["scenario"]))
    ('TSP8', ['tsp-8x-h100', 'tsp-8x-mi355x'])
    """
    if not scenarios:
        raise InputError("name at least one scenario to compare")
    if any(isinstance(scenario, Scenario) for scenario in scenarios):
        _refuse_overrides(overrides)
    stated = [scenario if isinstance(scenario, Scenario) else load(scenario, overrides) for scenario in scenarios]
    searched: list[tuple[Scenario, Searched | None]] = []
    results: list[Result] = []

    def compared() -> Comparison:
        done = searched[: len(results)]
        questions, searches = tuple(question for question, _ in done), tuple(search for _, search in done)
        return Comparison(tuple(stated), questions, tuple(results), progress, searches, jobs)

    try:
        with progress_bar(progress) as callback:
            searched += with_best(expand_all(stated), jobs=jobs, budget_s=read_budget(budget), progress=callback)
            for index, (question, _) in enumerate(searched):
                results.append(simulate(question, progress=part_of(callback, question.name, index, len(searched))))
                if results[-1].interrupted:
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        raise Interrupted(compared()) from None
    return compared()


def sweep(
    scenario: str | Path | Mapping[str, Any],
    over: Mapping[str, Sequence[object]] | Sequence[str],
    overrides: Sequence[str] = (),
    *,
    zipped: bool = False,
    store: str | Path | None = None,
    resume: bool = False,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> Table:
    """One scenario at many points, as ``tspsim sweep`` asks it.

    Parameters
    ----------
    scenario
        Catalog name, path of a YAML file, or a mapping of the same shape.
    over
        Path → its values, or ``path=values`` as ``--over`` takes them.
    overrides
        ``path=value`` that hold at every point.
    zipped
        Step through all paths together instead of every combination.
    store
        SQLite file that keeps the answers; ``resume`` goes on with it.
    jobs
        Processes; None for as many as are of use.
    progress
        Called with the work done so far; None: a bar in a terminal or a notebook.

    Raises
    ------
    InputError
        The scenario, a path or a value is wrong.
    Interrupted
        Ctrl-C (a KeyboardInterrupt); ``found`` is the table of all answered points.

    Examples
    --------
    >>> table = sweep("tsp-8x-h100", {"workload.sequence": ["32Ki", "64Ki"], "plans": ["TSP8"]})
    >>> list(table.to_frame()["workload.sequence"])
    [32768, 65536]
    """
    axes = [f"{path}={_values(values)}" for path, values in over.items()] if isinstance(over, Mapping) else list(over)
    source = scenario if isinstance(scenario, Mapping) else str(scenario)
    question = Sweep(source, axes, zipped=zipped, overrides=overrides)
    kept = Path(store) if store is not None else None
    try:
        with progress_bar(progress) as callback:
            return question.run(store=kept, resume=resume, jobs=jobs, progress=callback)
    except SweepInterruptedError as error:
        raise Interrupted(error.table) from None


def bounds(scenario: Source, overrides: Sequence[str] = ()) -> Bounds:
    """Physical ceilings of a scenario's plans, as ``tspsim bound`` prints them.

    Raises
    ------
    InputError
        The scenario is wrong.

    Examples
    --------
    >>> ceilings = bounds("tsp-8x-h100")
    >>> bool((ceilings.to_frame()["ceiling_tokens_per_s"] > 0).all())
    True
    """
    if isinstance(scenario, Scenario):
        _refuse_overrides(overrides)
    return ceilings_of(scenario if isinstance(scenario, Scenario) else load(scenario, overrides))


def validate(folder: str | Path | None = None, *, progress: Progress | None = None) -> Validation:
    """Predictions against measured tables, as ``tspsim validate`` scores them.

    Parameters
    ----------
    folder
        A folder as docs/validation.md describes it; None: the rows that ship with the package.
    progress
        Called with the work done so far; None: a bar in a terminal or a notebook.

    Raises
    ------
    InputError
        The folder does not exist, holds no known table, or a file in it is not a table.
    """
    with progress_bar(progress) as callback:
        return score(folder, progress=callback)


def _refuse_overrides(overrides: Sequence[str]) -> None:
    if overrides:
        raise InputError("a loaded scenario takes no overrides; give them to load", key="overrides")


def _values(values: Sequence[object]) -> str:
    """Values as ``--over`` reads them; a single text is one value or a range, as on the command line."""
    if isinstance(values, str):
        return values
    return ",".join(value if isinstance(value, str) else json.dumps(value) for value in values)
