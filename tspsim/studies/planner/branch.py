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

from ...base.memo import once
from ...parallel import Job
from ...step.paths import LowerBound
from ...step.result import PlanResult
from .candidate import Candidate
from .climb import Climb
from .clock import NEVER, Deadline
from .found import Found
from .frontier import Frontier, Tally
from .sets import Sets
from .shapes import Shapes
from .space import Space

#: Plans simulated between two looks at the bounds: enough to keep a few processes busy, few enough to waste little.
ROUND = 4
#: Share of the time after which a search whose plans have not come out on top looks for any.
FIRST_SHARE = 0.3
#: Share of the effort for a side that cannot win.
HOPELESS = 0.5


class SimulationsInterrupted(KeyboardInterrupt):
    """Ctrl-C while plans were simulated; ``answers`` to those that were done by then, None for the others."""

    def __init__(self, answers: Sequence[PlanResult | None]) -> None:
        self.answers = answers


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
    #: Answers some plans, in their order; None for those it had no time for. May raise :class:`SimulationsInterrupted`.
    simulate: Callable[[Sequence[Candidate]], list[PlanResult | None]]
    #: When to stop. A plan whose simulation would take longer than is left is not begun.
    deadline: Deadline = NEVER
    #: Called before plans are simulated: the lowest bound left, and the best found so far.
    report: Callable[[float, Sequence[Found]], None] | None = None
    #: No plan at all is faster.
    least_s: float = 0.0
    known: dict[str, Found] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    #: The floors of some spreads by their number, and what those that time was too short for cannot undercut.
    floors: dict[int, float] = field(default_factory=dict)
    unseen_s: float = math.inf
    sets: Sets = field(init=False, repr=False)

    @once
    def shapes(self) -> Shapes:
        """The spreads, the same objects each time, and what they are made of."""
        return Shapes(self.sets, list(self.space.spreads()))

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
            How many.
        free_bytes
            Memory that they leave free.
        admit
            Which spreads and families are looked at.
        below_s
            Slower plans are of no interest.
        most_rounds
            Rounds after which to stop though something better may be left; plans that are slow to simulate are then
            not looked at.
        at_once
            Plans that are simulated between two looks at the bounds.
        gap
            The best is good enough when nothing that is left is better by more than this share.
        until
            When to stop, where that is before the search's own deadline.
        """
        deadline = until or self.deadline
        spreads = self._spreads(admit, deadline)
        frontier = Frontier(self, spreads, self.capacity_bytes - free_bytes, deadline, admit=admit)
        best = sorted((each for each in self.known.values() if self._fits(each, free_bytes, admit)), key=_rank)
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
            for found in self._answers(batch, frontier.put_back):
                best.append(found)
            best.sort(key=_rank)

    def begin(
        self,
        *,
        free_bytes: float = 0.0,
        admit: Callable[[Job], bool] = lambda job: True,
        below_s: float = math.inf,
    ) -> None:
        """Simulate the most promising of the first portfolio; parameters as in :meth:`best`."""
        self._climb(free_bytes, admit, below_s, self.deadline).begin()

    def climb(
        self,
        *,
        free_bytes: float = 0.0,
        admit: Callable[[Job], bool] = lambda job: True,
        below_s: float = math.inf,
        until: Deadline | None = None,
    ) -> None:
        """From the best that is known to better ones beside it; parameters as in :meth:`best`."""
        self._climb(free_bytes, admit, below_s, until or self.deadline).up()

    def _climb(self, free_bytes: float, admit: Callable[[Job], bool], below_s: float, deadline: Deadline) -> Climb:
        def fits(found: Found) -> bool:
            return self._fits(found, free_bytes, admit)

        return Climb(self, self.capacity_bytes - free_bytes, admit, fits, below_s, deadline)

    def answers(self, batch: Sequence[tuple[float, Candidate]]) -> list[Found]:
        """Those of some plans that ran, simulated."""
        return list(self._answers(batch, lambda bound_s, candidate: None))

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
        spreads = self._spreads(admit, self.deadline)
        frontier = Frontier(self, spreads, self.capacity_bytes, self.deadline, quick=math.inf, admit=admit)
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
            for found in self._answers(batch, frontier.put_back):
                best = found if best is None else min(best, found, key=_rank)

    def _spreads(self, admit: Callable[[Job], bool], deadline: Deadline) -> Iterator[tuple[float, Job]]:
        """Spreads with their floors, each found once; after the deadline those found before."""
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

    def _fits(self, found: Found, free_bytes: float, admit: Callable[[Job], bool]) -> bool:
        return found.headroom_bytes >= free_bytes and admit(found.candidate.job)

    def _answers(
        self, batch: Sequence[tuple[float, Candidate]], put_back: Callable[[float, Candidate], None]
    ) -> Iterable[Found]:
        for _, candidate in batch:
            self.space.effort.add(self.bound.simulation_s(candidate.job, candidate.mesh))
        try:
            answers = self.simulate([candidate for _, candidate in batch])
        except SimulationsInterrupted as interrupted:
            for (bound_s, candidate), answer in zip(batch, interrupted.answers, strict=True):
                if answer is not None and answer.ran:
                    self.known[candidate.name] = Found(candidate, answer, bound_s)
            raise
        for (bound_s, candidate), answer in zip(batch, answers, strict=True):
            if answer is None:
                put_back(bound_s, candidate)
            elif answer.ran:
                self.tally.simulated += 1
                found = self.known[candidate.name] = Found(candidate, answer, bound_s)
                yield found
            else:
                self.tally.failed += 1


def _rank(found: Found) -> tuple[float, tuple[int, ...], str]:
    return found.rank
