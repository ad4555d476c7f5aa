"""The planner: one scenario's cluster and workload in, its best plans, their front and the ends of what fits out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from ...description import too_large
from ...errors import InfeasibleError, InputError, UnknownNameError
from ...network import Cluster
from ...parallel import peak_memory, scheme_of
from ...result import Memory
from ...scenario import Plan as PlanKeys
from ...scenario import Scenario
from ...simulation import run_plan
from ..executors import executor_of
from ..front import front_of
from ..query import Library
from .answer import Planned, Stated
from .branch import Best, Found, Search
from .limits import leanest, limits
from .map_search import search_map
from .scheme_map import Points
from .searches import Searches
from .sensitivity import places, ranked
from .space import Space
from .why import compare, parts_s
from .workers import Simulators, scenario_of

#: What a plan may be chosen by.
OBJECTIVES = ("tokens_per_s", "tokens_per_dollar", "memory_headroom")
#: Shares of a GPU's memory that plans of the front leave free, at least; and rounds of simulations for each.
FREE_SHARES = (0.25, 0.5)
FREE_ROUNDS = 1
#: Shares of the time there is at which the search for the best, what follows from it, and everything ends.
SEARCH_SHARE, DETAIL_SHARE, WHOLE_SHARE = 0.6, 0.85, 0.95
#: Plans to come, as far as the number of processes is concerned.
MANY = 100
#: Called with a sentence and the share that is done.
Progress = Callable[[str, float], None]


class Planner:
    """Asks and answers for one scenario.

    Parameters
    ----------
    scenario
        What ``tspsim.load`` returns; its plans are the stated ones.
    stated
        False where its plan only stands in for none.
    objective
        One of :data:`OBJECTIVES`.
    top
        How many plans are wanted.
    jobs
        Processes; as many as this machine lends when None.
    budget_s
        Seconds for everything; None: until nothing better can be left.
    progress
        Called with a sentence and the share done.

    Raises
    ------
    InputError
        The scenario or the objective is wrong.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        stated: bool = True,
        objective: str = "tokens_per_s",
        top: int = 3,
        jobs: int | None = None,
        budget_s: float | None = None,
        progress: Progress | None = None,
    ) -> None:
        if objective not in OBJECTIVES:
            raise UnknownNameError("objective", objective, OBJECTIVES, key="--objective")
        self.begin_s = time.monotonic()
        self.budget_s = budget_s
        self.progress = progress
        self.jobs = jobs
        self.library = Library()
        self.searches = Searches(scenario, self.library, lambda asked, plans: self.simulators.simulate(asked, plans))
        self.question = self.searches.question
        batch = self._batch(scenario, stated)
        self.answer = Planned(scenario, self.question, batch, objective, top)
        self.stated = scenario.plans if stated else ()
        self.found: dict[int, Search] = {}

    def _batch(self, scenario: Scenario, stated: bool) -> int:
        """Sequences of a step: those stated, or those of the first stated plan, or one replica a GPU."""
        dp = scenario.plans[0].degrees(self.question.cluster.gpus)["dp"] if stated else self.question.cluster.gpus
        return scenario.workload.batch_of(dp)

    def run(self, points: Points | None = None) -> Planned:
        """Everything, and the map over ``points``; Ctrl-C ends with what is there (``interrupted``).

        Raises
        ------
        InfeasibleError
            No legal plan fits, and by how much the leanest misses.
        """
        further = [self._why, self._limits, self._sensitivity, self._front]
        if points is not None:
            further.append(lambda: self._map(points))
        return self._answer(self._best, self._stated, *further)

    def only_best(self) -> Planned:
        """The best plans and the stated ones, without what :meth:`run` says about them; raises the same."""
        return self._answer(self._best, self._stated)

    def _answer(self, *steps: Callable[[], None]) -> Planned:
        answer = self.answer
        self._check_feasible(self.searches.space(self.question, answer.batch))
        self.executor = executor_of(self.jobs, None, MANY)
        self.simulators = Simulators(self.executor, self.library, self._deadline_s(WHOLE_SHARE))
        finished = False
        try:
            try:
                for step in steps:
                    step()
            except KeyboardInterrupt:
                answer.interrupted, answer.complete = True, False
                self._conclude()
            finished = not answer.interrupted and answer.complete
        finally:
            self.executor.close(now=not finished)
        return answer

    def _deadline_s(self, share: float) -> float:
        return math.inf if self.budget_s is None else self.begin_s + share * self.budget_s

    def _check_feasible(self, space: Space) -> None:
        capacity = self.question.device.visible_memory_bytes
        lean = leanest(space, capacity)
        if lean is None:
            raise InfeasibleError(
                f"no plan is legal: {space.batch} sequences of {space.work.sequence} tokens of {space.model.name} "
                f"do not divide over {space.cluster.gpus} GPUs"
            )
        if lean.bytes > capacity:
            memory = Memory(peak_memory(lean.job, scheme_of(lean.job.plan).residency), capacity)
            raise InfeasibleError(f"no plan fits; the leanest, {lean.name}, {too_large(memory)}")

    def search_at(self, nodes: int) -> Search:
        """The search on so many nodes, the batch as it is."""
        if nodes not in self.found:
            search = self.searches.search(nodes, self.answer.batch, deadline_s=self._deadline_s(SEARCH_SHARE))
            search.report = self._report
            self.found[nodes] = search
        return self.found[nodes]

    def _map(self, points: Points) -> None:
        """Tokens a step stay as they are; where there are fewer than one sequence, one."""
        deadline_s = self._deadline_s(WHOLE_SHARE)
        for cell in search_map(self.answer.scenario, points, self.answer.tokens, self.executor, deadline_s):
            cells = sorted((*self.answer.scheme_map, cell), key=lambda each: (each.nodes, each.sequence))
            self.answer.scheme_map = tuple(cells)
            if self.progress is not None:
                done, every = len(self.answer.scheme_map), len(points.sequences) * len(points.nodes)
                self.progress(f"map: {done} of {every} points", done / every)

    def _report(self, next_bound_s: float, best: Sequence[Found]) -> None:
        simulated = sum(search.tally.simulated for search in self.found.values())
        if self.progress is None:
            return
        words = f"{simulated} plans simulated"
        share = 0.1
        if best:
            tokens = self.answer.tokens
            gap = max(0.0, best[0].step_s / next_bound_s - 1.0) if next_bound_s < math.inf else 0.0
            words += f", best {tokens / best[0].step_s:,.0f} tokens/s, others at most {100 * gap:.1f} % faster"
            share = min(0.7, 0.2 + 0.05 * simulated)
        if self.budget_s is not None:
            left_s = max(0.0, self.begin_s + self.budget_s - time.monotonic())
            words += f", at most {left_s:.0f} s left"
            share = max(share, 1.0 - left_s / self.budget_s)
        self.progress(words, share)

    def _stated(self) -> None:
        """The scenario's own plans at this batch."""
        answer = self.answer
        asked: dict[str, Scenario] = {}
        errors: dict[str, str] = {}
        for keys in self.stated:
            try:
                asked[keys.name] = self._at_batch(keys)
                self.library.look_up(asked[keys.name])
            except InputError as error:
                errors[keys.name] = str(error)
                asked.pop(keys.name, None)
        results = dict(zip(asked, self.simulators.ask(list(asked.values())), strict=True))
        for keys in self.stated:
            result = results.get(keys.name)
            refused = errors.get(keys.name) or ((result.error or "") if result is not None else "time ran out")
            answer.stated += (Stated(keys.name, result, refused),)

    def _at_batch(self, keys: PlanKeys) -> Scenario:
        """The scenario with one of its plans, whose replicas divide the batch among them."""
        answer = self.answer
        dp = keys.degrees(self.question.cluster.gpus)["dp"]
        if answer.batch % dp:
            raise InputError(f"{dp} replicas do not divide the batch of {answer.batch} sequences")
        workload = answer.scenario.workload.with_sequences(answer.batch // dp)
        return answer.scenario.model_copy(update={"workload": workload, "plans": (keys,), "offers": ()})

    def _best(self) -> None:
        answer = self.answer
        if answer.objective == "memory_headroom":
            self._roomiest()
        else:
            for nodes in self._node_counts():
                search = self.search_at(nodes)
                weight = nodes if answer.objective == "tokens_per_dollar" else 1
                known = answer.best
                below_s = self._score(known[answer.top - 1]) / weight if len(known) >= answer.top else math.inf
                best = search.best(answer.top, below_s=below_s)
                self._take(best, weight)
        self._conclude()

    def _node_counts(self) -> Iterator[int]:
        """Nodes to look at: all of them, and where a GPU must earn its price also halves of them."""
        nodes = self.question.cluster.nodes
        yield nodes
        while self.answer.objective == "tokens_per_dollar" and nodes % 2 == 0:
            nodes //= 2
            lean = leanest(self.search_at(nodes).space, self.question.device.visible_memory_bytes)
            if lean is None or lean.bytes > self.question.device.visible_memory_bytes:
                return
            yield nodes

    def _score(self, found: Found) -> float:
        """Less is better: seconds, or seconds times nodes."""
        if self.answer.objective == "tokens_per_dollar":
            return found.step_s * found.result.gpus / self.question.cluster.gpus_per_node
        return found.step_s

    def _take(self, best: Best, weight: float) -> None:
        answer = self.answer
        answer.best = tuple(sorted((*answer.best, *best.plans), key=self._score)[: answer.top])
        answer.next_bound_s = min(answer.next_bound_s, best.next_bound_s * weight)
        answer.complete = answer.complete and best.complete

    def _roomiest(self) -> None:
        """The plans of least memory, the fastest of equals: memory needs no simulation, their rates do."""
        search = self.search_at(self.question.cluster.nodes)
        lean = leanest(search.space)
        assert lean is not None
        least = search.capacity_bytes - lean.bytes
        best = search.best(self.answer.top, free_bytes=least * (1.0 - 1e-9))
        self._take(best, 1.0)

    def _conclude(self) -> None:
        """What the best are, from all that was simulated; also when the search was cut short."""
        answer = self.answer
        known = [found for search in self.found.values() for found in search.known.values()]
        answer.simulated = len(known)
        answer.bounded = sum(search.tally.bounded for search in self.found.values())
        if not answer.best and known:
            answer.best = tuple(sorted(known, key=lambda found: found.rank)[: answer.top])
        if answer.best and answer.next_bound_s < math.inf:
            answer.gap = max(0.0, self._score(answer.best[0]) / answer.next_bound_s - 1.0)
        if not answer.front:
            answer.front = tuple(self._front_of(known))
        if not answer.best and answer.interrupted:
            raise KeyboardInterrupt
        if not answer.best:
            raise InfeasibleError("time ran out before a plan was simulated; give more with --budget")

    def _front_of(self, known: Sequence[Found]) -> list[Found]:
        def merits(found: Found) -> tuple[float, ...]:
            rate = self.answer.tokens / found.step_s
            return rate, rate / found.result.gpus, found.headroom_bytes

        return front_of(sorted(known, key=lambda found: found.rank), merits)

    def _front(self) -> None:
        search = self.search_at(self.question.cluster.nodes)
        search.deadline_s = self._deadline_s(WHOLE_SHARE)
        for share in FREE_SHARES:
            if self.progress is not None:
                self.progress(f"the fastest plan that leaves {100 * share:.0f} % of the memory free", 0.75)
            search.best(1, free_bytes=share * search.capacity_bytes, most_rounds=FREE_ROUNDS)
        known = [found for each in self.found.values() for found in each.known.values()]
        self.answer.front = tuple(self._front_of(known))
        self.answer.simulated = len(known)

    def _why(self) -> None:
        """The two best once more, here, with their timelines."""
        answer = self.answer
        if len(answer.best) < 2 or time.monotonic() > self._deadline_s(DETAIL_SHARE):
            return
        parts = []
        for found in answer.best[:2]:
            nodes = found.result.gpus // self.question.cluster.gpus_per_node
            asked = self.library.look_up(scenario_of(self.searches.resized(nodes), found.candidate))
            parts.append(parts_s(run_plan(asked, asked.plans[0])))
        answer.why, answer.rival = compare(parts[0], parts[1]), answer.best[1].candidate.name

    def _limits(self) -> None:
        if self.progress is not None:
            self.progress("longest context, largest batch, fewest nodes", 0.85)
        if time.monotonic() > self._deadline_s(DETAIL_SHARE):
            return
        search = self.search_at(self.question.cluster.nodes)

        def resized(nodes: int) -> Cluster:
            return self.searches.look_up(self.searches.resized(nodes)).cluster

        self.answer.limits = limits(search.space, search.capacity_bytes, resized)

    def _sensitivity(self) -> None:
        answer = self.answer
        around = list(places(self.question.cluster, answer.scenario.workload.sequence, answer.batch))
        for number, place in enumerate(around):
            if self.progress is not None:
                self.progress(f"the front at {place.what}", 0.9 + 0.1 * number / len(around))
            if time.monotonic() > self._deadline_s(DETAIL_SHARE):
                return
            deadline_s = self._deadline_s(WHOLE_SHARE)
            search = self.searches.search(place.nodes, place.batch, place.sequence, deadline_s=deadline_s)
            answer.sensitivity += (ranked((*answer.best, *answer.front), place, search),)
