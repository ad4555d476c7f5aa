"""A good plan early: the first portfolio, and from the best of it to what differs in one thing, as long as that helps.

A search that proves its answer looks at sets of plans in the order of their bounds, of which a model with experts has
thousands alike: it would simulate late what is good. What is bounded and simulated here the proof does not ask again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ...base.errors import UnreachableError
from ...parallel import Job
from ...parallel.recomputed import KEPT
from .candidate import Candidate
from .clock import Deadline
from .found import Found
from .frontier import Tally
from .portfolio import USUAL, in_turn, portfolio
from .sets import Sets
from .shapes import PlanLine, Shapes, SpreadKey, distance, key_of

#: Of each kind in the portfolio so many of the most promising may be simulated.
PROMISING = 3
#: The first of a kind is the one that is quickest to simulate of those whose bounds are so near to its lowest; shares
#: of the effort that writing and bounding a portfolio may take, and simulating it; share of what is left of a kind's
#: part of the former that writing its plans at further micro-batches may take.
NEARLY, BOUNDED_SHARE, PORTFOLIO_SHARE, WRITTEN_SHARE = 0.03, 0.25, 0.45, 0.5
#: A plan that differs in one thing is worth a look where it may be faster by this share.
WORTH = 0.002
#: Plans that are simulated between two looks.
TOGETHER = 2
#: By what share a plan may be expected to be slower than the best and is simulated all the same, at last.
SLACKS = (0.0, 0.03, 0.08)


class ClimbCourse(Protocol):
    """The search that is begun."""

    @property
    def sets(self) -> Sets: ...
    @property
    def shapes(self) -> Shapes: ...
    @property
    def known(self) -> Mapping[str, Found]: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def least_s(self) -> float: ...
    @property
    def report(self) -> Callable[[float, Sequence[Found]], None] | None: ...
    def answers(self, batch: Sequence[tuple[float, Candidate]]) -> list[Found]: ...


class Climb:
    """Where a search begins.

    Parameters
    ----------
    course
        The search; what it knows is where a climb starts.
    room_bytes
        What plans may need of memory.
    admit
        Which degrees may be looked at.
    fits
        Whether a plan that was simulated may be the answer.
    below_s
        Slower plans are of no interest.
    deadline
        When to stop.
    """

    def __init__(
        self,
        course: ClimbCourse,
        room_bytes: float,
        admit: Callable[[Job], bool],
        fits: Callable[[Found], bool],
        below_s: float,
        deadline: Deadline,
    ) -> None:
        self.course, self.shapes, self.sets = course, course.shapes, course.sets
        self.room_bytes, self.admit, self.fits = room_bytes, admit, fits
        self.below_s, self.deadline = below_s, deadline

    def begin(self) -> None:
        """Simulate the most promising of the first portfolio: one of each kind first, for some kinds exceed their
        bounds by more than others, and then those that are expected to be faster."""
        every = (of(self.shapes, self.room_bytes, self.admit) for of in (portfolio, in_turn))
        kinds = self.first(itertools.chain.from_iterable(every), self.deadline.nearer(BOUNDED_SHARE))
        until = self.deadline.nearer(PORTFOLIO_SHARE)
        best = self._best()
        for bounded in sorted(kinds, key=lambda each: each[0][0]):
            near = [each for each in bounded if each[0] <= (1.0 + NEARLY) * bounded[0][0]]
            batch = [min(near, key=lambda each: self._takes_s(each[1]))]
            if batch[0][0] < self._limit_s(best) and self._takes_s(batch[0][1]) < until.left_s:
                best = self._simulated(batch, best)
        waiting = [each for bounded in kinds for each in bounded]
        while batch := self._promising(waiting, self._limit_s(best), until):
            best = self._simulated(batch, best)

    def up(self) -> None:
        """From the best to what differs from it in one thing, as long as that is faster; then the same from what is
        next best of other spreads, as long as it is hardly slower: what differs from the best in several things."""
        seen: set[SpreadKey] = set()
        while (start := self._next_best(seen)) is not None and not self.deadline.passed:
            seen |= self._up_from(start)

    def _next_best(self, seen: Container[SpreadKey]) -> Found | None:
        best = self._best()
        known = (each for each in self.course.known.values() if key_of(each.candidate.plan) not in seen)
        found = min(filter(self.fits, known), key=lambda each: each.rank, default=None)
        near = best is not None and found is not None and found.step_s <= (1.0 + SLACKS[-1]) * best.step_s
        return found if near else None

    def _up_from(self, start: Found) -> set[SpreadKey]:
        """One of them, and which spreads it was at; beside the best in the end also what is expected to be a little
        slower."""
        here, slack, seen = start, 0, {key_of(start.candidate.plan)}
        while not self.deadline.passed:
            best = self._best()
            limit_s = self._limit_s(best)
            waiting, slacks = self.beside(here.candidate, limit_s), SLACKS if here is best else SLACKS[:1]
            while slack < len(slacks) and not self.deadline.passed:
                batch = self._promising(waiting, limit_s * (1.0 + slacks[slack]), self.deadline)
                if not batch:
                    slack += 1
                    continue
                before, best = best, self._simulated(batch, best)
                if best is not None and best is not before:
                    here, slack = best, 0
                    seen.add(key_of(here.candidate.plan))
                    break
            else:
                break
        return seen

    def _best(self) -> Found | None:
        return min(filter(self.fits, self.course.known.values()), key=lambda each: each.rank, default=None)

    def _limit_s(self, best: Found | None) -> float:
        return self.below_s if best is None else min(self.below_s, best.step_s / (1.0 + WORTH))

    def _simulated(self, batch: Sequence[tuple[float, Candidate]], best: Found | None) -> Found | None:
        """The best after some were simulated."""
        if self.course.report is not None:
            self.course.report(self.course.least_s, [best] if best is not None else [])
        found = [*self.course.answers(batch), *([best] if best is not None else [])]
        return min(filter(self.fits, found), key=lambda each: each.rank, default=None)

    def _promising(
        self, waiting: Sequence[tuple[float, Candidate]], limit_s: float, until: Deadline
    ) -> list[tuple[float, Candidate]]:
        """Of plans with their bounds those that are likely faster than ``limit_s``: if they take as much longer than
        their bounds as what is most like them did."""
        likely = []
        for number, (bound_s, candidate) in enumerate(waiting):
            if candidate.name not in self.course.known:
                likely.append((bound_s * self._usual_ratio(candidate), number))
        left_s, chosen = until.left_s, list[tuple[float, Candidate]]()
        for step_s, number in sorted(likely):
            if step_s >= limit_s or len(chosen) == TOGETHER:
                break
            candidate = waiting[number][1]
            left_s -= self._takes_s(candidate)
            if left_s > 0.0:
                chosen.append(waiting[number])
        return chosen

    def _usual_ratio(self, candidate: Candidate) -> float:
        """By what factor the simulated plan that is most like another exceeds its bound."""
        alike = [each for each in self.course.known.values() if 0.0 < each.bound_s <= each.step_s]
        if not alike:
            return 1.0
        like = min(alike, key=lambda each: distance(each.candidate.plan, candidate.plan))
        return like.step_s / like.bound_s

    def _takes_s(self, candidate: Candidate) -> float:
        return self.sets.bound.simulation_s(candidate.job, candidate.mesh)

    def first(self, lines: Iterable[PlanLine], until: Deadline) -> list[list[tuple[float, Candidate]]]:
        """The most promising of a portfolio by their kinds, and of these with more sequences a micro-batch, lowest
        bound first; every kind has as much of the time."""
        kinds: dict[Hashable, list[PlanLine]] = {}
        for line in lines:
            kinds.setdefault(self._kind(line.candidate), []).append(line)
            if until.passed:
                break
        first = [self._first_of(alike, until.nearer(1.0 / (len(kinds) - n))) for n, alike in enumerate(kinds.values())]
        return [found for found in first if found]

    def _first_of(self, lines: Sequence[PlanLine], until: Deadline) -> list[tuple[float, Candidate]]:
        """One sequence a micro-batch first. With experts every plan is tried at further micro-batches: what gathers all
        weights for each, or hardly fills its experts, is slow with one. Without, where a proof comes soon, the most
        promising are."""
        best = self.bounded(lines, math.inf, PROMISING, until)
        limit_s = best[-1][0] if len(best) >= PROMISING else math.inf
        if self.sets.space.model.experts is None:
            lines = [line for _, each in best if (line := self.shapes.of(each.plan)) is not None]
        larger = self.bounded(self._larger_of(lines, until.nearer(WRITTEN_SHARE)), limit_s, PROMISING, until)
        return sorted((*best, *larger), key=lambda each: each[0])[:PROMISING]

    def _larger_of(self, lines: Sequence[PlanLine], until: Deadline) -> Iterator[PlanLine]:
        """Some plans at the next larger micro-batch where that fits, then at the one after that, and so on."""
        while lines:
            larger = []
            for line in lines:
                if until.passed:
                    return
                if (found := self._larger(line)) is not None:
                    larger.append(found)
                    yield found
            lines = larger

    def _kind(self, candidate: Candidate) -> Hashable:
        """What says by how much a step exceeds its bound: turns of micro-batches, then a pipeline; ways of tokens."""
        plan, near = candidate.plan, self.sets.space.cluster.gpus_per_node
        turns = plan.hiding.micro_batches
        return turns, turns and plan.pp > 1, plan.ep == 1, plan.ep > near

    def _larger(self, line: PlanLine) -> PlanLine | None:
        """The same at the next larger micro-batch, where that fits."""
        for spread in self.shapes.larger(line.spread):
            return self.shapes.lightest(spread, line.division.zero, line.candidate.plan, self.room_bytes)
        return None

    def beside(self, best: Candidate, limit_s: float) -> list[tuple[float, Candidate]]:
        """What differs from a plan in one thing and may take less than ``limit_s``, lowest bound first."""
        line = self.shapes.of(best.plan)
        if line is None:
            return []
        return self.bounded(self._around(line), limit_s)

    def _around(self, line: PlanLine) -> Iterator[PlanLine]:
        yield from self.shapes.within(line)
        plan, zeros = line.candidate.plan, (0, 1, 3) if line.spread.training else (0,)
        for spread in self.shapes.beside(line):
            if not self.admit(spread):
                continue
            like = plan if spread.plan.scheme == plan.scheme else USUAL
            for zero in dict.fromkeys((plan.zero, *zeros)) if spread.copies > 1 else (0,):
                if zero == 0 and plan.zero and spread.copies > 1:
                    continue
                found = self.shapes.lightest(spread, zero, like, self.room_bytes)
                if found is not None:
                    yield found

    def bounded(
        self, lines: Iterable[PlanLine], limit_s: float, count: int = 0, until: Deadline | None = None
    ) -> list[tuple[float, Candidate]]:
        """Plans that may be faster than ``limit_s`` with their bounds, lowest first; with ``count`` the first so
        many, of the others hardly anything is asked. One is there however little time there is."""
        rough: list[tuple[float, int, Candidate]] = []
        until = until or self.deadline
        for number, line in enumerate(lines):
            if until.passed and rough:
                break
            if self._bound_s(self.sets.once, self.sets.staged_s, line.staged) < limit_s:
                rough_s = self._bound_s(self.sets.rough_s, line.layout, line.division)
                rough += [(rough_s, number, each) for each in self._fitting(line) if rough_s < limit_s]
        return self._closer(sorted(rough, key=lambda each: each[:2]), limit_s, count, until)

    def _closer(
        self, rough: Sequence[tuple[float, int, Candidate]], limit_s: float, count: int, until: Deadline
    ) -> list[tuple[float, Candidate]]:
        found: dict[str, tuple[float, int, Candidate]] = {}
        for rough_s, number, candidate in rough:
            if rough_s >= limit_s or (until.passed and found):
                break
            if candidate.name in found:
                continue
            self.course.tally.bounded += 1
            bound_s = self._bound_s(self.sets.once, self.sets.step_s, candidate)
            if bound_s < limit_s:
                found[candidate.name] = bound_s, number, candidate
                if count and len(found) >= count:
                    limit_s = sorted(each[0] for each in found.values())[count - 1]
        ordered = sorted(found.values(), key=lambda each: each[:2])
        return [(bound_s, candidate) for bound_s, _, candidate in (ordered[:count] if count else ordered)]

    @staticmethod
    def _bound_s(find: Callable[..., float], *of: Any) -> float:
        """A bound, infinite where dead links cut ranks off from each other."""
        try:
            return find(*of)
        except UnreachableError:
            return math.inf

    def _fitting(self, line: PlanLine) -> Iterator[Candidate]:
        """The plan, or where it keeps everything and does not fit what keeps a little less."""
        if line.needed_bytes <= self.room_bytes:
            yield line.candidate
        elif line.candidate.plan.recomputation == KEPT:
            yield from self.sets.space.thinner(line.candidate, self._has_room)

    def _has_room(self, job: Job) -> bool:
        return self.sets.memory_bytes(job) <= self.room_bytes
