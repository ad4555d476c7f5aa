"""Branch and bound: the fastest plans of a space, simulated in the order of what they cannot undercut.

The heap holds sets of plans with a time that the best of them cannot undercut: families, which become layouts, which
become plans. A bound that is cheap is replaced by a closer one before anything is done about it. Plans that come out on
top are simulated, :data:`ROUND` at a time, until what is left cannot be faster than the slowest of the best. Which
plans are simulated does not depend on how many processes do it, or on how fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...parallel import Job
from ...paths import LowerBound
from ...result import PlanResult
from ...scenario import Scenario
from .candidate import Candidate
from .clock import NEVER, Deadline
from .frontier import BEGIN_S, INSTRUCTION_S, Frontier, Tally
from .sets import Sets
from .space import Space

#: Plans simulated between two looks at the bounds: enough to keep a few processes busy, few enough to waste little.
ROUND = 4
#: Share of the time after which a search whose plans have not come out on top looks for any.
FIRST_SHARE = 0.3
#: Share of the effort for a side that cannot win.
HOPELESS = 0.5


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while plans were simulated; ``answers`` to those that were done by then, None for the others."""

    def __init__(self, answers: Sequence[PlanResult | None]) -> None:
        self.answers = answers


@dataclass(frozen=True)
class Found:
    """A plan that was simulated, and the bound it was picked by."""

    candidate: Candidate
    result: PlanResult
    bound_s: float
    #: The scenario with it alone, once an answer tells it.
    asked: Scenario | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def step_s(self) -> float:
        return self.result.step_time_s

    @property
    def headroom_bytes(self) -> float:
        return self.result.memory.capacity_bytes - self.result.memory.peak_bytes

    @property
    def rank(self) -> tuple[float, tuple[int, ...], str]:
        """Faster first, of equals the simpler."""
        return self.step_s, self.candidate.order, self.candidate.name


@dataclass(frozen=True)
class Best:
    """The fastest plans, fastest first, and a bound on every plan that was not simulated (infinite: none is left).

    It lies above the last of ``plans``, unless time ran out first (``complete`` is False).
    """

    plans: tuple[Found, ...]
    next_bound_s: float
    complete: bool


@dataclass
class Search:
    """A space, and what was found in it; what one question simulates the next one knows."""

    #: The legal plans.
    space: Space
    #: Bounds on their steps.
    bound: LowerBound
    #: Memory of a GPU.
    capacity_bytes: float
    #: Answers some plans, in their order; None for those it had no time for. May raise :class:`Interrupted`.
    simulate: Callable[[Sequence[Candidate]], list[PlanResult | None]]
    #: When to stop. A plan whose simulation would take longer than is left is not begun.
    deadline: Deadline = NEVER
    #: Called before plans are simulated: the lowest bound left, and the best found so far.
    report: Callable[[float, Sequence[Found]], None] | None = None
    #: No plan at all is faster.
    least_s: float = 0.0
    known: dict[str, Found] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    #: Families, the floors of some by their number, and what those that time was too short for cannot undercut.
    listed: list[Job] = field(default_factory=list)
    floors: dict[int, float] = field(default_factory=dict)
    unseen_s: float = math.inf
    #: How much longer simulations have taken than was thought.
    pace: float = 1.0
    all_listed: bool = False
    sets: Sets = field(init=False, repr=False)

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
    ) -> Best:
        """The fastest plans.

        Parameters
        ----------
        count
            How many.
        free_bytes
            Memory that they leave free.
        admit
            Which families are looked at.
        below_s
            Slower plans are of no interest.
        most_rounds
            Rounds after which to stop though something better may be left; plans that are slow to simulate are then
            not looked at.
        at_once
            Plans that are simulated between two looks at the bounds.
        gap
            The best is good enough when nothing that is left is better by more than this share.
        """
        families = self._families(admit)
        frontier = Frontier(self, families, self.capacity_bytes - free_bytes)
        best = sorted((each for each in self.known.values() if self._fits(each, free_bytes, admit)), key=_rank)
        first_look = self.deadline.at_s < math.inf and most_rounds == math.inf
        while True:
            limit_s = min(below_s, best[count - 1].step_s) if len(best) >= count else below_s
            if gap and len(best) >= count:
                limit_s = min(limit_s, best[0].step_s / (1.0 + gap))
            if first_look:
                first_look, soon = False, self.deadline.nearer(FIRST_SHARE)
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
            for found in self._answers(batch, frontier):
                best.append(found)
            best.sort(key=_rank)

    def near(self, *, admit: Callable[[Job], bool], gap: float, effort: int, rival_s: float = math.inf) -> Best:
        """A plan that is at most ``gap`` slower than the fastest, or the best that ``effort`` finds.

        Plans are simulated one by one, lowest bound first.

        Parameters
        ----------
        effort
            Instructions that simulations may run in all; a plan that takes more than is left is passed over once one
            was found. ``next_bound_s`` counts it among those that were not simulated.
        rival_s
            A step to beat: where no plan that is left can, :data:`HOPELESS` of the effort is enough.
        """
        families = self._families(admit)
        frontier = Frontier(self, families, self.capacity_bytes, quick=math.inf)
        best: Found | None = None
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
            for found in self._answers(batch, frontier):
                best = found if best is None else min(best, found, key=_rank)

    def _families(self, admit: Callable[[Job], bool]) -> Iterator[tuple[float, Job]]:
        """Families with their floors, each found once; after the deadline those found before."""
        self.unseen_s = math.inf
        every: Iterable[Job] = self.listed if self.all_listed else self.space.families()
        for number, family in enumerate(every):
            if len(self.listed) <= number:
                self.listed.append(family)
            family = self.listed[number]  # the same object each time
            if not admit(family):
                continue
            if number not in self.floors:
                if self.deadline.passed:
                    self.unseen_s = self.least_s
                    return
                self.floors[number] = self.sets.first_s(family)
            yield self.floors[number], family
        self.all_listed = True

    def _fits(self, found: Found, free_bytes: float, admit: Callable[[Job], bool]) -> bool:
        return found.headroom_bytes >= free_bytes and admit(found.candidate.job)

    def _answers(self, batch: Sequence[tuple[float, Candidate]], frontier: Frontier) -> Iterable[Found]:
        instructions = sum(self.bound.instructions(each.job, each.mesh) for _, each in batch)
        before_s = self.deadline.now()
        try:
            answers = self.simulate([candidate for _, candidate in batch])
        except Interrupted as interrupted:
            for (bound_s, candidate), answer in zip(batch, interrupted.answers, strict=True):
                if answer is not None and answer.ran:
                    self.known[candidate.name] = Found(candidate, answer, bound_s)
            raise
        thought_s = len(batch) * BEGIN_S + instructions * INSTRUCTION_S
        self.pace = max(self.pace, (self.deadline.now() - before_s) / thought_s)
        for (bound_s, candidate), answer in zip(batch, answers, strict=True):
            if answer is None:
                frontier.put_back(bound_s, candidate)
            elif answer.ran:
                self.tally.simulated += 1
                found = self.known[candidate.name] = Found(candidate, answer, bound_s)
                yield found
            else:
                self.tally.failed += 1


def _rank(found: Found) -> tuple[float, tuple[int, ...], str]:
    return found.rank
