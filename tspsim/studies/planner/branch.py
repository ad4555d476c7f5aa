"""Branch and bound: the fastest plans of a space, simulated in the order of their lower bounds.

The heap holds sets of plans, each with a lower bound on its best step. Families are split into layouts, layouts into
plans. A cheap bound is replaced by a closer one before its set is split. Plans at the top are simulated, :data:`ROUND`
at a time, until no remaining bound is below the slowest of the best. Which plans are simulated does not depend on the
number or speed of processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...base.memo import once
from ...parallel import Job
from ...step.paths import LowerBound
from ...step.result import PlanResult
from .candidate import Candidate
from .climb import Climb
from .clock import NEVER, Deadline
from .frontier import Frontier, Tally
from .sets import Sets
from .shapes import Shapes
from .simulated_plan import SimulatedPlan
from .space import Space

#: Plans simulated between two looks at the bounds: enough to keep a few processes busy, few enough to waste little.
ROUND = 4
#: Share of the time after which a search without any simulated plan takes whichever is promising.
FIRST_SHARE = 0.3
#: Share of the effort for a side that cannot win.
HOPELESS = 0.5


class SimulationsInterrupted(KeyboardInterrupt):
    """Ctrl-C during simulations. ``answers``: the finished results, None for the others."""

    def __init__(self, answers: Sequence[PlanResult | None]) -> None:
        self.answers = answers


@dataclass(frozen=True)
class Best:
    """The fastest plans, fastest first, and a bound on every plan that was not simulated (infinite: none is left).

    The bound lies above the last of ``plans``, unless time ran out (``complete`` is False).
    """

    plans: tuple[SimulatedPlan, ...]
    next_bound_s: float
    complete: bool


@dataclass
class Search:
    """A space and its simulated plans; later questions to the search reuse them."""

    #: The legal plans.
    space: Space
    #: Bounds on their steps.
    bound: LowerBound
    #: Memory of a GPU.
    capacity_bytes: float
    #: Simulates plans, in their order; None for those without time. May raise :class:`SimulationsInterrupted`.
    simulate: Callable[[Sequence[Candidate]], list[PlanResult | None]]
    #: When to stop. A plan whose simulation would take longer than the rest of the time is not begun.
    deadline: Deadline = NEVER
    #: Called before simulations with the lowest bound left and the best plans so far.
    report: Callable[[float, Sequence[SimulatedPlan]], None] | None = None
    #: A lower bound on every plan.
    least_s: float = 0.0
    simulated: dict[str, SimulatedPlan] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    #: Floors of spreads by their number, and the bound on spreads that were not reached in time.
    floors: dict[int, float] = field(default_factory=dict)
    unseen_s: float = math.inf
    sets: Sets = field(init=False, repr=False)

    @once
    def shapes(self) -> Shapes:
        """The spreads that may fit, the same objects each time, and the sets they are made of."""
        return Shapes(self.sets, list(filter(self.sets.may_fit, self.space.spreads())))

    def __post_init__(self) -> None:
        self.sets = Sets(self.space, self.bound, self.capacity_bytes)

    def best(
        self,
        count: int,
        *,
        free_bytes: float = 0.0,
        admit: Callable[[Job], bool] = lambda job: True,
        below_s: float = math.inf,
        most_rounds: float = math.inf,
        at_once: int = ROUND,
        gap: float = 0.0,
        until: Deadline | None = None,
    ) -> Best:
        """The fastest plans.

        Parameters
        ----------
        count
            Number of plans.
        free_bytes
            Memory that plans must leave free.
        admit
            Which spreads and families are considered.
        below_s
            Slower plans are ignored.
        most_rounds
            Rounds after which to stop, even if better plans may be left; plans that are slow to simulate are then
            skipped.
        at_once
            Plans simulated between two looks at the bounds.
        gap
            The search ends when no remaining plan can be better by more than this share.
        until
            An earlier deadline than the search's own.
        """
        deadline = until or self.deadline
        spreads = self._spreads(admit, deadline)
        frontier = Frontier(self, spreads, self.capacity_bytes - free_bytes, deadline, admit=admit)
        best = sorted((plan for plan in self.simulated.values() if self._fits(plan, free_bytes, admit)), key=_rank)
        first_look = deadline.at_s < math.inf and most_rounds == math.inf and not best
        while True:
            limit_s = min(below_s, best[count - 1].step_s) if len(best) >= count else below_s
            if gap and len(best) >= count:
                limit_s = min(limit_s, best[0].step_s / (1.0 + gap))
            if first_look:
                first_look, soon = False, deadline.nearer(FIRST_SHARE)
                batch = frontier.take(at_once, limit_s, until=soon) or frontier.dive(at_once)
            elif most_rounds > 0:
                batch = frontier.take(at_once, limit_s, slow=most_rounds == math.inf)
            else:
                batch = []
            most_rounds -= 1
            if not batch:
                complete = frontier.next_bound_s >= limit_s or frontier.next_bound_s == math.inf
                return Best(tuple(best[:count]), frontier.next_bound_s, complete)
            if self.report is not None:
                self.report(frontier.next_bound_s, best)
            for plan in self._answers(batch, frontier.push):
                best.append(plan)
            best.sort(key=_rank)

    def begin(
        self,
        *,
        free_bytes: float = 0.0,
        admit: Callable[[Job], bool] = lambda job: True,
        below_s: float = math.inf,
    ) -> None:
        """Simulate the most promising plans of the first portfolio; parameters as in :meth:`best`."""
        self._climb(free_bytes, admit, below_s, self.deadline).begin()

    def climb(
        self,
        *,
        free_bytes: float = 0.0,
        admit: Callable[[Job], bool] = lambda job: True,
        below_s: float = math.inf,
        until: Deadline | None = None,
    ) -> None:
        """Climb from the best plan to better neighbours; parameters as in :meth:`best`."""
        self._climb(free_bytes, admit, below_s, until or self.deadline).up()

    def _climb(self, free_bytes: float, admit: Callable[[Job], bool], below_s: float, deadline: Deadline) -> Climb:
        def fits(plan: SimulatedPlan) -> bool:
            return self._fits(plan, free_bytes, admit)

        return Climb(self, self.capacity_bytes - free_bytes, admit, fits, below_s, deadline)

    def answers(self, batch: Sequence[tuple[float, Candidate]]) -> list[SimulatedPlan]:
        """The simulated plans of a batch that ran."""
        return list(self._answers(batch, lambda bound_s, candidate: None))

    def near(self, *, admit: Callable[[Job], bool], gap: float, effort: int, rival_s: float = math.inf) -> Best:
        """A plan at most ``gap`` slower than the fastest, or the best within ``effort``.

        Plans are simulated one by one, lowest bound first.

        Parameters
        ----------
        effort
            Instructions of all simulations. Once one plan was simulated, plans that take more than is left are skipped;
            ``next_bound_s`` counts them as not simulated.
        rival_s
            A step to beat. If no remaining plan can, :data:`HOPELESS` of the effort is spent.
        """
        spreads = self._spreads(admit, self.deadline)
        frontier = Frontier(self, spreads, self.capacity_bytes, self.deadline, quick=math.inf, admit=admit)
        best: SimulatedPlan | None = None
        passed_s, spent = math.inf, 0
        while True:
            limit_s = best.step_s / (1.0 + gap) if best is not None else math.inf
            batch = frontier.take(1, limit_s)
            if not batch:
                next_bound_s = min(passed_s, frontier.next_bound_s)
                complete = frontier.next_bound_s >= limit_s or frontier.next_bound_s == math.inf
                return Best((best,) if best is not None else (), next_bound_s, complete)
            ((bound_s, candidate),) = batch
            instructions = self.bound.instructions(candidate.job, candidate.mesh)
            if best is not None:
                hopeless = rival_s <= min(best.step_s, passed_s, bound_s)
                if spent + instructions > (HOPELESS * effort if hopeless else effort):
                    passed_s = min(passed_s, bound_s)
                    continue
            spent += instructions
            for plan in self._answers(batch, frontier.push):
                best = plan if best is None else min(best, plan, key=_rank)

    def _spreads(self, admit: Callable[[Job], bool], deadline: Deadline) -> Iterator[tuple[float, Job]]:
        """Spreads with their floors, each computed once; after the deadline only those computed before."""
        self.unseen_s = math.inf
        for number, spread in enumerate(self.shapes.spreads):
            if not admit(spread):
                continue
            if number not in self.floors:
                if deadline.passed:
                    self.unseen_s = self.least_s
                    return
                self.floors[number] = self.sets.first_s(spread)
            if self.floors[number] < math.inf:
                yield self.floors[number], spread

    def _fits(self, plan: SimulatedPlan, free_bytes: float, admit: Callable[[Job], bool]) -> bool:
        return plan.headroom_bytes >= free_bytes and admit(plan.candidate.job)

    def _answers(
        self, batch: Sequence[tuple[float, Candidate]], push: Callable[[float, Candidate], None]
    ) -> Iterable[SimulatedPlan]:
        for _, candidate in batch:
            self.space.effort.add(self.bound.simulation_s(candidate.job, candidate.mesh))
        try:
            answers = self.simulate([candidate for _, candidate in batch])
        except SimulationsInterrupted as interrupted:
            for (bound_s, candidate), answer in zip(batch, interrupted.answers, strict=True):
                if answer is not None and answer.ran:
                    self.simulated[candidate.name] = SimulatedPlan(candidate, answer, bound_s)
            raise
        for (bound_s, candidate), answer in zip(batch, answers, strict=True):
            if answer is None:
                push(bound_s, candidate)
            elif answer.ran:
                self.tally.simulated += 1
                plan = self.simulated[candidate.name] = SimulatedPlan(candidate, answer, bound_s)
                yield plan
            else:
                self.tally.failed += 1


def _rank(plan: SimulatedPlan) -> tuple[float, tuple[int, ...], str]:
    return plan.rank
