"""The planner of a scenario: for requests, for a serving step, or for training and forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...base.display import Progress
from ...base.errors import InputError
from ...scenario import Scenario
from ...steps import STEPS
from .offers import OffersPlanner
from .planner import Planner
from .query import searched_apart
from .serving import ServingPlanner
from .traffic import TrafficPlanner

AnyPlanner = Planner | ServingPlanner | TrafficPlanner | OffersPlanner


def planner_of(
    scenario: Scenario,
    *,
    stated: bool = True,
    objective: str | None = None,
    top: int = 3,
    jobs: int | None = 1,
    budget_s: float | None = None,
    limits: Sequence[str] = (),
    progress: Progress | None = None,
    maps: bool = False,
) -> AnyPlanner:
    """The planner of a scenario.

    Parameters
    ----------
    scenario
        What ``tspsim.load`` returns. With ``stated`` False its only plan is a placeholder.
    objective
        One of the planner's; None: goodput per dollar for requests, otherwise tokens per second.
    top
        Number of plans.
    jobs
        Processes, of a planner that uses several; None: as many as this machine has free.
    budget_s
        Work of the whole search (per offer, if several), counted in seconds of a processor; None: until nothing better
        can be left.
    limits
        Limits that plans must keep: ``memory_free>=8GiB``, ``tpot<=50ms``, ``schemes=tsp,tp``.
    progress
        Called with a sentence and the share done.
    maps
        Whether a map of where TSP wins is wanted too.

    Raises
    ------
    InputError
        The scenario's kind has no such plan search.
    """
    if scenario.loop is not None:
        raise InputError("plans are searched for single steps and for requests; leave loop out", key="loop")
    whole = scenario
    scenario, stated, own = searched_apart(scenario, stated)
    limits = (*own, *limits)
    serves = scenario.traffic is not None or STEPS.get(scenario.workload.pass_).serves
    if serves and maps:
        raise InputError("maps are of training and forward steps", key="--map")
    if scenario.traffic is not None:
        return TrafficPlanner(
            scenario, stated=stated, objective=objective, limits=limits, top=top, budget_s=budget_s, progress=progress
        )
    objective = objective or "tokens_per_s"
    if serves:
        return ServingPlanner(
            scenario, stated=stated, objective=objective, limits=limits, top=top, budget_s=budget_s, progress=progress
        )
    step_planner = partial(Planner, objective=objective, top=top, jobs=jobs, limits=limits)
    if not scenario.offers:
        return step_planner(scenario, stated=stated, budget_s=budget_s, progress=progress)
    if maps:
        raise InputError("a map is of one machine, the scenario has offers", key="--map")

    def of_offer(offer: Scenario, report: Progress | None) -> Planner:
        bare, others, own = searched_apart(offer, stated)
        return step_planner(bare, stated=others, budget_s=budget_s, progress=report, limits=(*own, *limits))

    return OffersPlanner(whole, of_offer, progress)
