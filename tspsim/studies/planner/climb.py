"""A good plan early: the first portfolio, then hill climbing from its best plan.

A search with proof simulates in the order of bounds, of which a model with experts has thousands alike: it would find a
good plan late. The proof reuses every bound and simulation of the climb.
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
from .frontier import Tally
from .portfolio import USUAL, in_turn, portfolio
from .sets import Sets
from .shapes import PlanLine, Shapes, SpreadKey, distance, key_of
from .simulated_plan import SimulatedPlan

#: Most promising plans per kind of the portfolio that may be simulated.
PROMISING = 3
#: NEARLY: among the plans of a kind whose bounds are within this share of the lowest, the quickest to simulate goes
#: first. BOUNDED_SHARE, PORTFOLIO_SHARE: effort of bounding a portfolio, and of simulating it. WRITTEN_SHARE: part of a
#: kind's remaining bounding effort for its plans at larger micro-batches.
NEARLY, BOUNDED_SHARE, PORTFOLIO_SHARE, WRITTEN_SHARE = 0.03, 0.25, 0.45, 0.5
#: A neighbouring plan is simulated where it may be faster by this share.
WORTH = 0.002
#: Plans simulated between two looks.
TOGETHER = 2
#: Shares by which a plan may be expected to be slower than the best and is still simulated, in the last rounds.
SLACKS = (0.0, 0.03, 0.08)


class ClimbCourse(Protocol):
    """The search that a climb works for."""

    @property
    def sets(self) -> Sets: ...
    @property
    def shapes(self) -> Shapes: ...
    @property
    def simulated(self) -> Mapping[str, SimulatedPlan]: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def least_s(self) -> float: ...
    @property
    def report(self) -> Callable[[float, Sequence[SimulatedPlan]], None] | None: ...
    def answers(self, batch: Sequence[tuple[float, Candidate]]) -> list[SimulatedPlan]: ...


class Climb:
    """The beginning of a search.

    Parameters
    ----------
    course
        The search; a climb starts from its simulated plans.
    room_bytes
        Memory that plans may need.
    admit
        Which degrees may be considered.
    fits
        Whether a simulated plan may be the answer.
    below_s
        Slower plans are ignored.
    deadline
        When to stop.
    """

    def __init__(
        self,
        course: ClimbCourse,
        room_bytes: float,
        admit: Callable[[Job], bool],
        fits: Callable[[SimulatedPlan], bool],
        below_s: float,
        deadline: Deadline,
    ) -> None:
        self.course, self.shapes, self.sets = course, course.shapes, course.sets
        self.room_bytes, self.admit, self.fits = room_bytes, admit, fits
        self.below_s, self.deadline = below_s, deadline

    def begin(self) -> None:
        """Simulate the most promising plans of the first portfolio: first one of each kind, since some kinds exceed
        their bounds by more than others; then plans that are expected to be faster."""
        every = (of(self.shapes, self.room_bytes, self.admit) for of in (portfolio, in_turn))
        kinds = self.first(itertools.chain.from_iterable(every), self.deadline.nearer(BOUNDED_SHARE))
        until = self.deadline.nearer(PORTFOLIO_SHARE)
        best = self._best()
        for bounded in sorted(kinds, key=lambda kind: kind[0][0]):
            near = [pair for pair in bounded if pair[0] <= (1.0 + NEARLY) * bounded[0][0]]
            batch = [min(near, key=lambda pair: self._takes_s(pair[1]))]
            if batch[0][0] < self._limit_s(best) and self._takes_s(batch[0][1]) < until.left_s:
                best = self._simulated(batch, best)
        waiting = [pair for bounded in kinds for pair in bounded]
        while batch := self._promising(waiting, self._limit_s(best), until):
            best = self._simulated(batch, best)

    def up(self) -> None:
        """Climb from the best plan to its neighbours while that is faster. Then climb from the next best of other
        spreads while they are hardly slower: these differ from the best in several keys."""
        seen: set[SpreadKey] = set()
        while (start := self._next_best(seen)) is not None and not self.deadline.passed:
            seen |= self._up_from(start)

    def _next_best(self, seen: Container[SpreadKey]) -> SimulatedPlan | None:
        best = self._best()
        others = (plan for plan in self.course.simulated.values() if key_of(plan.candidate.plan) not in seen)
        next_best = min(filter(self.fits, others), key=lambda plan: plan.rank, default=None)
        near = best is not None and next_best is not None and next_best.step_s <= (1.0 + SLACKS[-1]) * best.step_s
        return next_best if near else None

    def _up_from(self, start: SimulatedPlan) -> set[SpreadKey]:
        """One climb: returns the spreads it visited. From the overall best, neighbours that are expected to be slightly
        slower are simulated too."""
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

    def _best(self) -> SimulatedPlan | None:
        return min(filter(self.fits, self.course.simulated.values()), key=lambda plan: plan.rank, default=None)

    def _limit_s(self, best: SimulatedPlan | None) -> float:
        return self.below_s if best is None else min(self.below_s, best.step_s / (1.0 + WORTH))

    def _simulated(self, batch: Sequence[tuple[float, Candidate]], best: SimulatedPlan | None) -> SimulatedPlan | None:
        """The best after simulating a batch."""
        if self.course.report is not None:
            self.course.report(self.course.least_s, [best] if best is not None else [])
        plans = [*self.course.answers(batch), *([best] if best is not None else [])]
        return min(filter(self.fits, plans), key=lambda plan: plan.rank, default=None)

    def _promising(
        self, waiting: Sequence[tuple[float, Candidate]], limit_s: float, until: Deadline
    ) -> list[tuple[float, Candidate]]:
        """Plans likely faster than ``limit_s``, if they exceed their bounds by the same factor as the most similar
        simulated plan."""
        likely = []
        for number, (bound_s, candidate) in enumerate(waiting):
            if candidate.name not in self.course.simulated:
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
        """The factor by which the most similar simulated plan exceeds its bound."""
        alike = [plan for plan in self.course.simulated.values() if 0.0 < plan.bound_s <= plan.step_s]
        if not alike:
            return 1.0
        like = min(alike, key=lambda plan: distance(plan.candidate.plan, candidate.plan))
        return like.step_s / like.bound_s

    def _takes_s(self, candidate: Candidate) -> float:
        return self.sets.bound.simulation_s(candidate.job, candidate.mesh)

    def first(self, lines: Iterable[PlanLine], until: Deadline) -> list[list[tuple[float, Candidate]]]:
        """The most promising plans of a portfolio by kind, also at larger micro-batches, lowest bound first. Every kind
        gets an equal share of the time."""
        kinds: dict[Hashable, list[PlanLine]] = {}
        for line in lines:
            kinds.setdefault(self._kind(line.candidate), []).append(line)
            if until.passed:
                break
        first = [self._first_of(alike, until.nearer(1.0 / (len(kinds) - n))) for n, alike in enumerate(kinds.values())]
        return [kind for kind in first if kind]

    def _first_of(self, lines: Sequence[PlanLine], until: Deadline) -> list[tuple[float, Candidate]]:
        """Plans with one sequence per micro-batch first. With experts every plan is tried at larger micro-batches: one
        that gathers all weights per micro-batch, or hardly fills its experts, is slow with one sequence. Without
        experts a proof comes soon, and only the most promising are."""
        best = self.bounded(lines, math.inf, PROMISING, until)
        limit_s = best[-1][0] if len(best) >= PROMISING else math.inf
        if self.sets.space.model.experts is None:
            lines = [line for _, candidate in best if (line := self.shapes.of(candidate.plan)) is not None]
        larger = self.bounded(self._larger_of(lines, until.nearer(WRITTEN_SHARE)), limit_s, PROMISING, until)
        return sorted((*best, *larger), key=lambda pair: pair[0])[:PROMISING]

    def _larger_of(self, lines: Sequence[PlanLine], until: Deadline) -> Iterator[PlanLine]:
        """Plans at the next larger micro-batch while that fits, then at the one after, and so on."""
        while lines:
            larger = []
            for line in lines:
                if until.passed:
                    return
                if (next_line := self._larger(line)) is not None:
                    larger.append(next_line)
                    yield next_line
            lines = larger

    def _kind(self, candidate: Candidate) -> Hashable:
        """Plans of a kind exceed their bounds by similar factors: interleaved micro-batches, a pipeline with them,
        experts on one rank, experts across nodes."""
        plan, near = candidate.plan, self.sets.space.cluster.gpus_per_node
        turns = plan.hiding.micro_batches
        return turns, turns and plan.pp > 1, plan.ep == 1, plan.ep > near

    def _larger(self, line: PlanLine) -> PlanLine | None:
        """The same plan at the next larger micro-batch, where that fits."""
        for spread in self.shapes.larger(line.spread):
            return self.shapes.lightest(spread, line.division.zero, line.candidate.plan, self.room_bytes)
        return None

    def beside(self, best: Candidate, limit_s: float) -> list[tuple[float, Candidate]]:
        """Neighbours of a plan that may take less than ``limit_s``, lowest bound first."""
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
                lightest = self.shapes.lightest(spread, zero, like, self.room_bytes)
                if lightest is not None:
                    yield lightest

    def bounded(
        self, lines: Iterable[PlanLine], limit_s: float, count: int = 0, until: Deadline | None = None
    ) -> list[tuple[float, Candidate]]:
        """Plans that may be faster than ``limit_s`` with their bounds, lowest first. With ``count`` only the first
        ones, and the others get only cheap bounds. At least one is returned, however short the time."""
        rough: list[tuple[float, int, Candidate]] = []
        until = until or self.deadline
        for number, line in enumerate(lines):
            if until.passed and rough:
                break
            if self._bound_s(self.sets.once, self.sets.staged_s, line.staged) < limit_s:
                rough_s = self._bound_s(self.sets.rough_s, line.layout, line.division)
                rough += [(rough_s, number, candidate) for candidate in self._fitting(line) if rough_s < limit_s]
        return self._closer(sorted(rough, key=lambda entry: entry[:2]), limit_s, count, until)

    def _closer(
        self, rough: Sequence[tuple[float, int, Candidate]], limit_s: float, count: int, until: Deadline
    ) -> list[tuple[float, Candidate]]:
        closer: dict[str, tuple[float, int, Candidate]] = {}
        for rough_s, number, candidate in rough:
            if rough_s >= limit_s or (until.passed and closer):
                break
            if candidate.name in closer:
                continue
            self.course.tally.bounded += 1
            bound_s = self._bound_s(self.sets.once, self.sets.step_s, candidate)
            if bound_s < limit_s:
                closer[candidate.name] = bound_s, number, candidate
                if count and len(closer) >= count:
                    limit_s = sorted(entry[0] for entry in closer.values())[count - 1]
        ordered = sorted(closer.values(), key=lambda entry: entry[:2])
        return [(bound_s, candidate) for bound_s, _, candidate in (ordered[:count] if count else ordered)]

    @staticmethod
    def _bound_s(find: Callable[..., float], *of: Any) -> float:
        """A bound; infinite where dead links disconnect ranks."""
        try:
            return find(*of)
        except UnreachableError:
            return math.inf

    def _fitting(self, line: PlanLine) -> Iterator[Candidate]:
        """The plan, or where it keeps all activations and does not fit, plans that keep slightly less."""
        if line.needed_bytes <= self.room_bytes:
            yield line.candidate
        elif line.candidate.plan.recomputation == KEPT:
            yield from self.sets.space.thinner(line.candidate, self._has_room)

    def _has_room(self, job: Job) -> bool:
        return self.sets.memory_bytes(job) <= self.room_bytes
