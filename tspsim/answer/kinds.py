"""One question and its answer: a single step; with ``traffic`` a service of requests; with ``loop`` an iteration of
reinforcement learning; with ``jobs`` all jobs of a cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..base.display import Progress, progress_bar
from ..base.errors import InputError
from ..network import Cluster
from ..parallel import Plan
from ..scenario import Scenario, load
from ..step import simulation
from ..step.bound import Bounds
from ..step.question import FRESH, Lookups, Question, cluster_of, look_up
from ..step.result import PlanResult, Result

if TYPE_CHECKING:
    from ..fleet import FleetQuestion


class WithScenario(Protocol):
    """A searched plan, which has the scenario that simulates it."""

    @property
    def source_scenario(self) -> Scenario | None: ...


def simulate(
    scenario: Scenario | FleetQuestion | str | Path | Mapping[str, Any] | WithScenario | Sequence[WithScenario],
    *,
    every_rank: bool = False,
    every_step: bool = False,
    every_kernel: bool = False,
    every_job_step: bool = False,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> Result:
    """Answer a scenario: every plan in its order.

    Parameters
    ----------
    scenario
        What :func:`tspsim.load` returns or takes; a question with ``jobs``, or what :func:`tspsim.fleet.load` returns
        (the answer is then a :class:`tspsim.fleet.FleetAnswer`); or a plan of :func:`tspsim.plan`:
        ``simulate(p.best)`` is its best plan with report and timeline.
    every_rank
        Of a single step: run every rank instead of one rank per class of equal ranks; same answer, more timeline.
    every_step, every_kernel
        Of traffic: simulate every step by itself, and compare drawn steps with their whole programs; same answer, and
        how far it may be trusted.
    every_job_step
        Of jobs: simulate the real steps of jobs that share links, and report them beside the rule.
    cluster
        Of a single step: the scenario's cluster with other links (:func:`tspsim.network.with_graph`); None:
        as the scenario has it.
    progress
        Called with a plan's name and the share of plans done before it; None: a bar in a terminal or a notebook.

    Raises
    ------
    InputError
        The scenario is wrong: a degree that divides nothing, an unknown name, …. Or the cluster has other GPUs.
    """
    fleet = fleet_of(scenario)
    if fleet is not None:
        if cluster is not None:
            raise InputError("a cluster beside the scenario is for single steps; a fleet names its own")
        from ..fleet import answer as of_jobs

        with _shown(progress) as callback:
            return of_jobs(fleet, simulate, every_job_step=every_job_step, progress=callback)
    question = question_of(scenario)
    if cluster is not None and (question.loop is not None or question.traffic is not None):
        raise InputError("a cluster beside the scenario is for single steps; name a file in cluster.topology")
    with _shown(progress) as callback:
        if question.loop is not None:
            from ..loop.answer import answer as iterations

            return iterations(look_up(question), progress=callback)
        if question.traffic is None:
            lookups = FRESH if cluster is None else _on(cluster, question)
            return simulation.simulate(question, every_rank=every_rank, progress=callback, lookups=lookups)
        from ..serving.answer import answer

        return answer(look_up(question), every_step=every_step, every_kernel=every_kernel, progress=callback)


def _shown(progress: Progress | None) -> AbstractContextManager[Progress | None]:
    """``progress``, or a bar where somebody may see one."""
    return progress_bar(progress) if sys.stderr.isatty() or "IPython" in sys.modules else nullcontext(progress)


def fleet_of(source: object) -> FleetQuestion | None:
    """The fleet that ``source`` asks for, or None; raises InputError where it is wrong."""
    if isinstance(source, Scenario | list | tuple):
        return None
    from ..fleet import FleetQuestion, is_fleet, load

    if isinstance(source, FleetQuestion):
        return source
    return load(source) if is_fleet(source) else None  # type: ignore[arg-type]


def sort_of(question: Scenario | FleetQuestion | Mapping[str, Any]) -> str:
    """The kind of schema that a question's file has: ``scenario`` or ``fleet``."""
    from ..fleet import is_fleet

    return "fleet" if is_fleet(question) else "scenario"


def of_one_job(question: Scenario | FleetQuestion) -> Scenario:
    """The scenario in a question for one job; raises InputError where it is a fleet's.

    >>> of_one_job(load("tsp-8x-h100")).name
    'tsp-8x-h100'
    """
    if not isinstance(question, Scenario):
        raise InputError("asks for a fleet; this is of one job (a job of a fleet says plan: best)", key="jobs")
    return question


def _on(cluster: Cluster, scenario: Scenario) -> Lookups:
    """Lookups that give this cluster, which must have the GPUs of the scenario's."""
    own = cluster_of(scenario)
    for what, has, needs in (("GPUs", cluster.gpus, own.gpus), ("device", cluster.device_name, own.device_name)):
        if has != needs:
            raise InputError(f"{what} of {cluster.name}: {has}; the scenario's cluster has {needs}")
    if cluster.gpus_per_node != own.gpus_per_node:
        problem = f"nodes of {cluster.name} have {cluster.gpus_per_node} GPUs"
        raise InputError(f"{problem}; those of the scenario's cluster {own.gpus_per_node}")
    return replace(FRESH, cluster=cluster)


def question_of(source: object) -> Scenario:
    """The scenario that ``source`` asks for.

    A plan of ``tspsim.plan`` (or the answer itself, or its ``best``, of which the first counts) asks for its scenario
    with this plan alone.

    Raises
    ------
    InputError
        The scenario is wrong, or there is no plan.
    """
    if isinstance(source, Scenario):
        return source
    if isinstance(source, tuple | list):
        if not source:
            raise InputError("no plan was found that could be simulated")
        source = source[0]
    scenario = getattr(source, "source_scenario", None)
    return scenario if isinstance(scenario, Scenario) else load(source)  # type: ignore[arg-type]


def run_plan(question: Question, plan: Plan) -> PlanResult:
    """One plan of a question whose names are looked up."""
    if question.scenario.loop is not None:
        from ..loop.iteration import run_plan as iterate

        return iterate(question, plan)
    if question.scenario.traffic is None:
        return simulation.run_plan(question, plan)
    from ..serving.answer import serve_plan

    return serve_plan(question, plan)


def bounds(scenario: Scenario) -> Bounds:
    """The ceilings of a step, or of iterations of a loop; raises InputError."""
    if scenario.loop is None:
        from ..step.bound import bounds

        return bounds(scenario)
    from ..loop.bound import bounds as of_iterations

    return of_iterations(look_up(scenario))
