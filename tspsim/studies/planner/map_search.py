"""The map's points, each in a process of its own: the best plan with TSP and the best without, to a known accuracy."""

from __future__ import annotations

import concurrent.futures
import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from ...base.errors import TspsimError
from ...parallel import Job, scheme_of
from ...scenario import Scenario
from ..executors import Executor, Here
from ..query import Library
from .branch import Best
from .clock import NEVER, Deadline
from .scheme_map import Cell, MapPoint, Points, Side
from .searches import Searches
from .workers import Simulators

#: A side's plan is proven best to within this share.
CLOSE = 0.02
#: Instructions of a side's simulations: some ten seconds. The first plan is always simulated.
EFFORT = 500_000


def search_map(
    scenario: Scenario, points: Points, tokens: int, executor: Executor, deadline: Deadline = NEVER
) -> Iterator[Cell]:
    """Cells in the order of :meth:`Points.cells`. The number of workers does not change them.

    Parameters
    ----------
    tokens
        Tokens of a step, at every point; at least one sequence.
    deadline
        The remaining time is divided evenly among the cells; cells whose share has run out are not sure.

    Raises
    ------
    InputError
        The cluster has no fabric for so many nodes.
    TspsimError
        A worker died.
    """
    every = points.cells()
    waiting = iter(every)
    ahead = len(every) if executor.width > 1 else 1
    share_s = deadline.left_s / len(every)
    flying: dict[MapPoint, Future[list[Cell]]] = {}
    for point in every:
        for other in itertools.islice(waiting, ahead - len(flying)):
            flying[other] = executor.submit(partial(cells, scenario, tokens, share_s), [other])
        future = flying.pop(point)
        concurrent.futures.wait([future])
        if isinstance(future.exception(), executor.deaths):
            raise TspsimError("a worker died during the map; too little memory?")
        yield from future.result()


def cells(scenario: Scenario, tokens: int, effort_s: float, points: Sequence[MapPoint]) -> list[Cell]:
    """The cells of some points in this process, each with a given effort."""
    library = Library()
    simulators, results = Simulators(Here(library), library), []
    for point in points:
        searches = Searches(scenario, library, simulators.simulate)
        results.append(cell(searches, tokens, point, Deadline(effort_s, searches.effort.now)))
    return results


def cell(searches: Searches, tokens: int, point: MapPoint, deadline: Deadline = NEVER) -> Cell:
    """Both sides at one point."""
    batch = max(1, tokens // point.sequence)
    search = searches.search(point.nodes, batch, point.sequence, deadline=deadline)
    other = search.near(admit=lambda job: not is_folded(job), gap=CLOSE, effort=EFFORT)
    rival_s = other.plans[0].step_s if other.plans else math.inf
    folded = search.near(admit=is_folded, gap=CLOSE, effort=EFFORT, rival_s=rival_s)
    sure = folded.complete and other.complete
    return Cell(point.sequence, point.nodes, batch, side_of(folded), side_of(other), sure)


def is_folded(job: Job) -> bool:
    """Whether weights move to tokens: TSP."""
    return scheme_of(job.plan).folds


def side_of(best: Best) -> Side | None:
    """The best plan of a side, if any."""
    if not best.plans:
        return None
    plan = best.plans[0]
    return Side(plan.candidate.name, plan.step_s, min(plan.step_s, best.next_bound_s))
