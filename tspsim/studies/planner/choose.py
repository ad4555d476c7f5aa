"""Which planner a scenario is for: requests, a step that serves, or training and forward passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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
    progress: Callable[[str, float], None] | None = None,
    maps: bool = False,
) -> AnyPlanner:
    """The planner of a scenario.

    Parameters
    ----------
    scenario
        What ``tspsim.load`` returns; its plans are the stated ones, or with ``stated`` False one stands in for none.
    objective
        One of the planner's; None: most goodput a dollar of requests, otherwise most tokens a second.
    top
        How many plans are wanted.
    jobs
        Processes, of a planner that uses several; None: as many as this machine lends.
    budget_s
        Work for everything, counted in seconds of a processor, for each of several offers; None: until nothing better
        can be left.
    limits
        Texts such as ``memory_free>=8GiB``, ``tpot<=50ms`` and ``schemes=tsp,tp``: what plans have to keep.
    progress
        Called with a sentence and the share done.
    maps
        Where TSP wins is asked too.

    Raises
    ------
    InputError
        What is asked is not of this kind of scenario.
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
    asked = partial(Planner, objective=objective, top=top, jobs=jobs, limits=limits)
    if not scenario.offers:
        return asked(scenario, stated=stated, budget_s=budget_s, progress=progress)
    if maps:
        raise InputError("a map is of one machine, the scenario has offers", key="--map")

    def of_offer(offer: Scenario, told: Callable[[str, float], None] | None) -> Planner:
        bare, others, own = searched_apart(offer, stated)
        return asked(bare, stated=others, budget_s=budget_s, progress=told, limits=(*own, *limits))

    return OffersPlanner(whole, of_offer, progress)
