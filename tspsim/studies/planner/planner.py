"""The planner: from one scenario's cluster and workload to its best plans, their front and memory's limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ...base.display import Progress
from ...base.errors import InfeasibleError, InputError, TspsimError, UnknownNameError
from ...base.quick import seldom_collecting
from ...base.units import were
from ...parallel import Job, peak_memory, scheme_of
from ...parallel.checks import MOST_VISITS
from ...scenario import Scenario
from ...step.description import too_large
from ...step.paths import Effort
from ...step.result import Memory
from ..executors import executor_of, growing
from ..front import front_of
from ..query import Library
from .answer import Planned
from .branch import Best, Search
from .clock import NEVER, SEARCH_SHARE, WHOLE_SHARE, Deadline
from .details import PlanDetails
from .limit import Limits
from .limits import LeanPlan, leanest
from .scheme_map import Points
from .searches import Searches
from .simulated_plan import SimulatedPlan
from .space import Space
from .stated_plans import StatedPlans
from .workers import Simulators

#: What plans are ranked by.
OBJECTIVES = ("tokens_per_s", "tokens_per_dollar", "tokens_per_joule", "memory_headroom")
#: Objectives in which each GPU must earn its price or its power. On one device their order is that of rate per GPU, for
#: price and power do not depend on the step.
OF_A_GPU = ("tokens_per_dollar", "tokens_per_joule")
#: Least shares of a GPU's memory that plans of the front leave free; most rounds of simulations for each.
FREE_SHARES = (0.25, 0.5)
FREE_ROUNDS = 4
#: SOON_S: effort after which an unfinished proof waits for a climb, at most FIRST_SHARE of the budget; CLIMB_SHARE: the
#: climb's share of the rest; AGAIN_SHARE: the share of what then remains after which the proof waits for a climb again.
SOON_S, FIRST_SHARE, CLIMB_SHARE, AGAIN_SHARE = 6.0, 0.25, 0.6, 0.5
#: With a budget, the search ends when no remaining plan can be better by more than this share.
CLOSE_ENOUGH = 0.01
#: Last simulated plans whose timelines are kept: the best are among them when the comparison needs them.
RECENT = 8
#: Plans that the executor expects, for its number of processes.
MANY = 100


class Planner:
    """Plans one training step or forward pass; parameters as of :func:`~.choose.planner_of`.

    With a budget the best plan is proven only to :data:`CLOSE_ENOUGH`.

    Raises
    ------
    InputError
        The scenario, the objective or a limit is wrong.
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
        limits: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        if objective not in OBJECTIVES:
            raise UnknownNameError("objective", objective, OBJECTIVES, key="--objective")
        self.effort = Effort()
        self.budget_s = budget_s
        self.limits = Limits.of(limits, serves=False)
        self.progress = progress
        self.jobs = jobs
        self.library = Library(keep=RECENT)
        self.searches = Searches(
            scenario, self.library, lambda scenario, plans: self.simulators.simulate(scenario, plans), self.effort
        )
        scenario, self.question = self.searches.scenario, self.searches.question
        batch = self._batch(scenario, stated)
        self.answer = Planned(scenario, self.question, batch, objective, top, self.limits)
        self.stated = StatedPlans(scenario.plans if stated else (), self.answer, self.library, self.effort)
        self.details = PlanDetails(self.answer, self.searches, self._deadline, self._gap, progress)
        self.by_nodes: dict[int, Search] = {}
        self.points: Points | None = None

    def _batch(self, scenario: Scenario, stated: bool) -> int:
        """Sequences of a step: as stated, or of the first stated plan, or one replica per GPU."""
        if self.question.work.unequal.tokens:
            return len(self.question.work.unequal.tokens)
        dp = scenario.plans[0].degrees(self.question.cluster.gpus)["dp"] if stated else self.question.cluster.gpus
        return scenario.workload.batch_of(dp)

    def run(self, points: Points | None = None) -> Planned:
        """The whole answer, with the map over ``points``. Ctrl-C ends with the results so far (``interrupted``).

        Raises
        ------
        InfeasibleError
            No legal plan fits (with the bytes that the leanest misses), or none keeps the limits.
        TspsimError
            Time ran out before a plan that keeps the limits was simulated.
        """
        further = [self._front, self.details.why, self._limits, self.details.sensitivity]
        if self.question.work.unequal.tokens:  # another batch or length would change the sequences
            further = [self._front, self.details.why]
            if points is not None:
                problem = "has one longest length; --map needs sequences of equal length"
                raise InputError(problem, key="workload.lengths")
        if points is not None:
            self.points = points
            further.append(lambda: self.details.map(points, self.executor))
        return self._answer(self._stated, self._best, *further)

    def only_best(self) -> Planned:
        """The best plans and the stated ones, without the details of :meth:`run`; raises the same."""
        return self._answer(self._stated, self._best, self._unless_proven)

    def _unless_proven(self) -> None:
        """Computes the front too where the best are not proven, since it may hold a better plan: the answer is then
        that of :meth:`run`."""
        if not self.answer.enough:
            self._front()

    def _answer(self, *steps: Callable[[], None]) -> Planned:
        answer = self.answer
        self.lean = self._check_feasible(self.searches.space(self.question, answer.batch))
        # A map has many long-running points.
        mapped = self.points is not None
        self.executor = executor_of(self.jobs, None, MANY) if mapped else growing(self.jobs, self.library)
        self.simulators = Simulators(self.executor, self.library)
        finished = False
        try:
            try:
                with seldom_collecting():
                    for step in steps:
                        step()
            except KeyboardInterrupt:
                answer.interrupted, answer.complete = True, False
                self._unproven()
                self._conclude()
            finished = not answer.interrupted and answer.complete
        finally:
            self.executor.close(now=not finished)
        return answer

    def _unproven(self) -> None:
        """The bound of an interrupted search on plans that it did not reach: an MFU of one."""
        answer = self.answer
        if not answer.best and answer.next_bound_s == math.inf:
            dollar = answer.objective in OF_A_GPU
            least = [search.least_s * (nodes if dollar else 1) for nodes, search in self.by_nodes.items()]
            answer.next_bound_s = min((least_s for least_s in least if least_s > 0.0), default=math.inf)

    @property
    def _gap(self) -> float:
        """The share by which a plan that was not simulated may be better."""
        return 0.0 if self.budget_s is None else CLOSE_ENOUGH

    def _deadline(self, share: float) -> Deadline:
        return NEVER if self.budget_s is None else Deadline(share * self.budget_s, self.effort.now)

    def _check_feasible(self, space: Space) -> LeanPlan:
        """The first plan that fits; raises where none does, with the leanest."""
        capacity = self.question.device.visible_memory_bytes
        lean = leanest(space, capacity)
        if lean is None:
            visits = space.model.layers * space.batch // space.cluster.gpus
            if visits > MOST_VISITS:  # for any degrees: replicas · stages is at most the number of GPUs
                raise InputError(
                    f"{space.batch:,} sequences a step are {visits:,} layers of a GPU, one after the other; at most "
                    f"{MOST_VISITS:,} are simulated: state fewer",
                    key="workload.global_batch",
                )
            raise InputError(
                f"no plan is legal: {space.batch} sequences of {space.work.sequence} tokens of {space.model.name} "
                f"do not divide over {space.cluster.gpus} GPUs"
            )
        if lean.bytes > capacity:
            memory = Memory(peak_memory(lean.job, scheme_of(lean.job.plan).residency), capacity)
            raise InfeasibleError(f"no plan fits; the leanest, {lean.name}, {too_large(memory)}")
        return lean

    def leanest(self) -> LeanPlan | None:
        """The plan of least memory; None where none is legal."""
        return leanest(self.searches.space(self.question, self.answer.batch))

    def search_at(self, nodes: int) -> Search:
        """The search on a number of nodes, with the same batch."""
        if nodes not in self.by_nodes:
            search = self.searches.search(nodes, self.answer.batch, deadline=self._deadline(SEARCH_SHARE))
            search.report = self._report
            whole = self.by_nodes.get(self.question.cluster.nodes)
            if whole is not None:  # the same products on fewer GPUs
                search.least_s = whole.least_s * self.question.cluster.nodes / nodes
            self.by_nodes[nodes] = search
        return self.by_nodes[nodes]

    def _report(self, next_bound_s: float, best: Sequence[SimulatedPlan]) -> None:
        simulated = sum(search.tally.simulated for search in self.by_nodes.values())
        if self.progress is None:
            return
        words = f"{simulated} plans simulated"
        share = 0.1
        if best:
            tokens = self.answer.tokens
            gap = max(0.0, best[0].step_s / next_bound_s - 1.0) if 0.0 < next_bound_s < math.inf else 0.0
            words += f", best {tokens / best[0].step_s:,.0f} tokens/s, others at most {100 * gap:.1f} % faster"
            share = min(0.7, 0.2 + 0.05 * simulated)
        if self.budget_s is not None:
            left_s = max(0.0, self.budget_s - self.effort.spent_s)
            words += f", at most {left_s:.0f} s left"
            share = max(share, 1.0 - left_s / self.budget_s)
        self.progress(words, share)

    def _stated(self) -> None:
        search = self.search_at(self.question.cluster.nodes)
        self.stated.simulate(search, self.simulators, self._deadline(WHOLE_SHARE))

    def _best(self) -> None:
        answer = self.answer
        if answer.objective == "memory_headroom":
            self._roomiest()
        else:
            for nodes in self._node_counts():
                search = self.search_at(nodes)
                weight = nodes if answer.objective in OF_A_GPU else 1
                best = answer.best
                below_s = self._score(best[answer.top - 1]) / weight if len(best) >= answer.top else math.inf
                below_s = min(below_s, self.limits.ceiling("step"))
                self._take(self._searched(search, below_s), weight)
        self._conclude()

    def _searched(self, search: Search, below_s: float) -> Best:
        """The best plans of one search: the portfolio, then the proof, with a climb before a long proof."""
        free_bytes, deadline = self.limits.floor("memory_free"), search.deadline
        search.begin(free_bytes=free_bytes, admit=self._admits, below_s=below_s)
        soon = deadline.nearer(FIRST_SHARE).within(SOON_S, self.effort.now)

        def proven(until: Deadline | None = None) -> Best:
            return search.best(
                self.answer.top,
                free_bytes=free_bytes,
                admit=self._admits,
                below_s=below_s,
                gap=self._gap,
                until=until,
            )

        best, seen = proven(soon), -1
        while not (best.complete or deadline.passed):
            if len(search.simulated) == seen:  # neither climb nor proof simulates any more
                return proven()
            seen, until = len(search.simulated), deadline.nearer(CLIMB_SHARE)
            search.climb(free_bytes=free_bytes, admit=self._admits, below_s=below_s, until=until)
            best = proven(deadline.nearer(AGAIN_SHARE))
        return best

    def _admits(self, job: Job) -> bool:
        return self.limits.admits(job.plan.degrees)

    def _node_counts(self) -> Iterator[int]:
        """Numbers of nodes to search: all, and halves of them for objectives per GPU."""
        nodes = self.question.cluster.nodes
        yield nodes
        while self.answer.objective in OF_A_GPU and nodes % 2 == 0:
            nodes //= 2
            lean = leanest(self.search_at(nodes).space, self.question.device.visible_memory_bytes)
            if lean is None or lean.bytes > self.question.device.visible_memory_bytes:
                return
            yield nodes

    def _order(self, plan: SimulatedPlan) -> tuple[float, tuple[float, tuple[int, ...], str]]:
        return self._score(plan), plan.rank

    def _score(self, plan: SimulatedPlan) -> float:
        """Seconds, or seconds times nodes; less is better."""
        if self.answer.objective in OF_A_GPU:
            return plan.step_s * plan.result.gpus / self.question.cluster.gpus_per_node
        return plan.step_s

    def _take(self, best: Best, weight: float) -> None:
        answer = self.answer
        kept = [plan for plan in best.plans if self._keeps(plan)]
        answer.best = tuple(sorted((*answer.best, *kept), key=self._score)[: answer.top])
        answer.next_bound_s = min(answer.next_bound_s, best.next_bound_s * weight)
        answer.complete = answer.complete and best.complete

    def _roomiest(self) -> None:
        """The plans of least memory, the fastest of equals. Memory needs no simulation, rates do."""
        search = self.search_at(self.question.cluster.nodes)
        lean = leanest(search.space)
        assert lean is not None
        least = search.capacity_bytes - lean.bytes
        best = search.best(self.answer.top, free_bytes=least * (1.0 - 1e-9), admit=self._admits)
        self._take(best, 1.0)

    def _conclude(self) -> None:
        """The best of all simulated plans, also after an interruption."""
        answer = self.answer
        simulated = [plan for search in self.by_nodes.values() for plan in search.simulated.values()]
        answer.simulated = len(simulated)
        answer.bounded = sum(search.tally.bounded for search in self.by_nodes.values())
        simulated = [plan for plan in simulated if self._keeps(plan)]
        if not answer.best and simulated:
            answer.best = tuple(sorted(simulated, key=lambda plan: plan.rank)[: answer.top])
        if answer.best and 0.0 < answer.next_bound_s < math.inf:
            answer.gap = max(0.0, self._score(answer.best[0]) / answer.next_bound_s - 1.0)
        if not answer.front:
            answer.front = tuple(self._front_of(simulated))
        if not answer.best and answer.interrupted:
            raise KeyboardInterrupt
        if not answer.best and answer.complete:
            limits = " and ".join(self.limits.words)
            raise InfeasibleError(f"no plan keeps {limits}; {were(answer.simulated)} simulated")
        if not answer.best:
            raise TspsimError("time ran out before a plan was found that keeps the limits; give more with --budget")

    def _keeps(self, plan: SimulatedPlan) -> bool:
        return self.limits.hold(plan.candidate.plan, plan.result)

    def _front_of(self, simulated: Sequence[SimulatedPlan]) -> list[SimulatedPlan]:
        def merits(plan: SimulatedPlan) -> tuple[float, ...]:
            rate = self.answer.tokens / plan.step_s
            return rate, rate / plan.result.gpus, plan.headroom_bytes

        return front_of(sorted(simulated, key=lambda plan: plan.rank), merits)

    def _front(self) -> None:
        search = self.search_at(self.question.cluster.nodes)
        search.deadline = self._deadline(WHOLE_SHARE)
        for share in FREE_SHARES:
            if self.progress is not None:
                self.progress(f"the fastest plan that leaves {100 * share:.0f} % of the memory free", 0.75)
            if search.deadline.passed:
                break
            search.best(
                1,
                free_bytes=share * search.capacity_bytes,
                admit=self._admits,
                most_rounds=FREE_ROUNDS,
                at_once=1,
                gap=self._gap,
            )
        answer = self.answer
        simulated = [
            plan for search in self.by_nodes.values() for plan in search.simulated.values() if self._keeps(plan)
        ]
        if answer.best and answer.objective != "memory_headroom":
            ordered = sorted(
                {plan.candidate.name: plan for plan in (*answer.best, *simulated)}.values(), key=self._order
            )
            if self._score(ordered[0]) < self._score(answer.best[0]):
                answer.best = tuple(ordered[: answer.top])
        answer.front = ()
        self._conclude()

    def _limits(self) -> None:
        self.details.limits(self.search_at(self.question.cluster.nodes))
