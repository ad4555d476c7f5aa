"""``plans: best``: a search replaces the entry by the best plan, on every machine of the question.

The planner searches at the batch of all other plans, which is then the scenario's global batch. The answer says what
was searched, and how much better a plan that was not simulated may be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..base.display import Progress
from ..base.errors import InfeasibleError, InputError
from ..fleet import FleetQuestion, own_scenario
from ..scenario import PlanSpec, Scenario
from ..scenario.plan import BEST
from .executors import in_order
from .planner import Planner, ServingPlanner, TrafficPlanner, planner_of
from .planner.candidate import plan_keys
from .planner.query import searched_apart
from .searched import Searched

#: Work of the search on one machine, in seconds of a processor, and the number of best plans: as in ``tspsim plan``,
#: so that both give the same plan.
BUDGET_S, TOP = 40.0, 3


def with_best(
    scenarios: Sequence[Scenario],
    *,
    jobs: int | None = None,
    budget_s: float | None = BUDGET_S,
    progress: Progress | None = None,
) -> list[tuple[Scenario, Searched | None]]:
    """Every scenario with its best plan in the place of ``plans: best``, and its search (None: there is none).

    Parameters
    ----------
    scenarios
        One machine each.
    jobs
        Processes, one per machine; None: as many as this machine lends.
    budget_s
        Work for each machine, counted in seconds of a processor; None: without a limit.

    Raises
    ------
    InputError
        A scenario, or a limit of a search, is wrong.
    InfeasibleError
        No plan keeps the limits of a search.
    """
    searched = [index for index, scenario in enumerate(scenarios) if scenario.searched is not None]
    answers: dict[int, tuple[Scenario, Searched | None]] = {}
    if searched:
        lent = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        wanted = [scenarios[index] for index in searched]
        results = in_order(min(jobs or lent, len(wanted)), partial(_searched, budget_s), wanted)
        for done, index in enumerate(searched):
            if progress is not None:
                progress(f"best plan of {scenarios[index].name}", done / len(searched))
            answers[index] = next(results)
        list(results)  # lets its processes go
    return [answers.get(index, (scenario, None)) for index, scenario in enumerate(scenarios)]


def fleet_with_best(
    question: FleetQuestion,
    *,
    budget_s: float | None = BUDGET_S,
    progress: Progress | None = None,
    cache: dict[str, dict[str, Any]] | None = None,
) -> FleetQuestion:
    """A fleet with the best plan of every job that asks for one, searched alone on the nodes that the job prefers.

    Parameters
    ----------
    cache
        Plans by the job's own scenario: a search looks here first, and adds its plan.

    Raises
    ------
    InputError
        A job, or its workload, is wrong.
    InfeasibleError
        No plan of a job fits its nodes.
    """
    searched = [job for job in question.jobs if job.plan == BEST]
    if not searched:
        return question
    alone = [own_scenario(question, job, (job.nodes or (1,))[0]) for job in searched]
    cache = {} if cache is None else cache
    keys = [json.dumps(scenario.to_dict() | {"name": ""}, sort_keys=True, default=str) for scenario in alone]
    new = {key: scenario for key, scenario in zip(keys, alone, strict=True) if key not in cache}
    answers = with_best(list(new.values()), jobs=1, budget_s=budget_s, progress=progress)
    for key, (scenario, _) in zip(new, answers, strict=True):
        plan = scenario.to_dict()["plans"][0]
        cache[key] = {name: value for name, value in plan.items() if name != "name" and value is not None}
    return question.with_plans({job.name: cache[key] for job, key in zip(searched, keys, strict=True)})


def _searched(budget_s: float | None, scenario: Scenario) -> tuple[Scenario, Searched]:
    """One scenario with its best plan; with the nearest plan where none fits."""
    entry = scenario.searched
    assert entry is not None and entry.search is not None
    limits = entry.search.limits
    # A purchase that is run alone means the question's own machine.
    planner = planner_of(scenario.model_copy(update={"offers": ()}), top=TOP, jobs=1, budget_s=budget_s)
    bare, _, _ = searched_apart(scenario, True)
    if isinstance(planner, ServingPlanner):
        raise InputError(
            "a plan of a serving step has its own batch; ask `tspsim plan`, or state traffic", key=f"plans.{entry.name}"
        )
    if isinstance(planner, Planner):
        return _of_step(scenario, bare, planner, limits)
    assert isinstance(planner, TrafficPlanner)  # there are no offers
    served = planner.run()
    plan = PlanSpec.model_validate(dict(served.best[0].keys))
    keys = dict.fromkeys(served.searched, ())
    search = Searched(plan.name, "", served.simulated, served.bounded, 0.0, served.complete, keys, limits)
    return _in_place(scenario, bare, plan), search


def _of_step(scenario: Scenario, bare: Scenario, planner: Planner, limits: Sequence[str]) -> tuple[Scenario, Searched]:
    """The best plan of a training or forward step; all plans at the batch of the search."""
    answer = planner.answer
    try:
        planner.only_best()
    except InfeasibleError as error:
        lean = planner.leanest()
        if lean is None or lean.bytes <= planner.question.device.visible_memory_bytes:
            raise InfeasibleError(f"{scenario.name}: {error}") from None
        # The leanest plan stands in; its refusal says by how much it misses.
        plan, refused = PlanSpec.model_validate(plan_keys(replace(lean.job.plan, name=lean.name))), str(error)
    else:
        if answer.interrupted:
            raise KeyboardInterrupt
        plan, refused = PlanSpec.model_validate(answer.best[0].candidate.keys), ""
    workload = bare.workload.model_copy(update={"global_batch": answer.batch, "sequences_per_replica": 1})
    search = Searched(
        "" if refused else plan.name,
        refused,
        answer.simulated,
        answer.bounded,
        answer.gap,
        answer.complete,
        answer.searched,
        limits,
    )
    return _in_place(scenario, bare.model_copy(update={"workload": workload}), plan), search


def _in_place(scenario: Scenario, bare: Scenario, plan: PlanSpec) -> Scenario:
    """The scenario with the plan in the place of ``best``; not twice where a stated plan is the best."""
    stated = [entry.name for entry in scenario.plans if entry.search is None]
    plans = [plan if entry.search is not None else entry for entry in scenario.plans]
    if plan.name in stated:
        plans = [entry for entry in scenario.plans if entry.search is None]
    return bare.model_copy(update={"plans": tuple(plans)})
