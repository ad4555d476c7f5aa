"""What an answer says beside its best plans: why the first is first, what still fits, the front elsewhere, a map."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from ...base.display import Progress
from ...base.errors import InputError
from ...network import Cluster
from ...step.simulation import run_plan
from .. import uncertainty
from ..executors import Executor
from .answer import Lead, Planned
from .branch import Search
from .clock import DETAIL_SHARE, WHOLE_SHARE, Deadline
from .limits import limits
from .map_search import search_map
from .scheme_map import Points
from .searches import Searches
from .sensitivity import places, ranked
from .why import compare, parts_s
from .workers import scenario_of


class PlanDetails:
    """The details of one answer, each left out where time has run out.

    Parameters
    ----------
    deadline
        The deadline after a share of the time.
    gap
        The share by which a plan that was not simulated may be faster.
    """

    def __init__(
        self,
        answer: Planned,
        searches: Searches,
        deadline: Callable[[float], Deadline],
        gap: float,
        progress: Progress | None,
    ) -> None:
        self.answer, self.searches, self.library = answer, searches, searches.library
        self.deadline, self.gap, self.progress = deadline, gap, progress

    def why(self) -> None:
        """Compares the two best with their timelines, kept or simulated again."""
        answer = self.answer
        if len(answer.best) < 2 or not answer.enough or self.deadline(DETAIL_SHARE).passed:
            return
        results, offers = [], []
        for plan in answer.best[:2]:
            nodes = plan.result.gpus // answer.question.cluster.gpus_per_node
            question = self.library.look_up(scenario_of(self.searches.resized(nodes), plan.candidate))
            result = self.library.answer(self.library.key(question)) or run_plan(question, question.plans[0])
            errors = result.range.factors if result.range is not None else {}
            results.append(result)
            offers.append(uncertainty.offer_from(question, result, errors, name=plan.candidate.name))
        best, other = map(parts_s, results)
        answer.why, answer.rival = compare(best, other), answer.best[1].candidate.name
        verdict = uncertainty.compare(offers[0], offers[1])
        answer.ahead = Lead(verdict.ratio, verdict.low, verdict.high, verdict.probability)

    def limits(self, search: Search) -> None:
        """The largest problems that fit."""
        if self.progress is not None:
            self.progress("longest context, largest batch, fewest nodes", 0.85)
        if self.deadline(DETAIL_SHARE).passed:
            return

        def resized(nodes: int) -> Cluster:
            return self.searches.look_up(self.searches.resized(nodes)).cluster

        with contextlib.suppress(TimeoutError):
            self.answer.limits = limits(search.space, search.capacity_bytes, resized, self.deadline(WHOLE_SHARE))

    def sensitivity(self) -> None:
        """The front at other lengths and other numbers of nodes."""
        answer = self.answer
        if not answer.enough:  # without a proven best here there is nothing to compare
            return
        around = list(places(answer.question.cluster, answer.scenario.workload.sequence, answer.batch))
        for number, place in enumerate(around):
            if self.progress is not None:
                self.progress(f"the front at {place.what}", 0.9 + 0.1 * number / len(around))
            deadline = self.deadline(WHOLE_SHARE)
            if self.deadline(DETAIL_SHARE).passed:
                return
            try:
                self.searches.resized(place.nodes)
            except InputError:  # a graph or a measurement has a fixed number of nodes
                continue
            search = self.searches.search(place.nodes, place.batch, place.sequence, deadline=deadline)
            answer.sensitivity += (ranked((*answer.best, *answer.front), place, search, self.gap),)

    def map(self, points: Points, executor: Executor) -> None:
        """The map at constant tokens per step; at least one sequence."""
        deadline = self.deadline(WHOLE_SHARE)
        for cell in search_map(self.answer.scenario, points, self.answer.tokens, executor, deadline):
            cells = sorted((*self.answer.scheme_map, cell), key=lambda point: (point.nodes, point.sequence))
            self.answer.scheme_map = tuple(cells)
            if self.progress is not None:
                done, every = len(self.answer.scheme_map), len(points.sequences) * len(points.nodes)
                self.progress(f"map: {done} of {every} points", done / every)
