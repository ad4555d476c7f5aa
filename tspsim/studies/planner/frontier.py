"""The plans that a search has not simulated yet: sets in a heap, lowest bound first.

The set at the top gets a closer bound, or is split into smaller ones, until a single plan is at the top; that plan is
simulated.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ...base.errors import UnreachableError
from ...parallel import Job
from ...parallel.recomputed import KEPT
from ...step.paths import Division
from .candidate import Candidate
from .clock import NEVER, Deadline
from .sets import Sets

#: Plans whose simulation has more instructions wait until the others are done.
QUICK = 400_000


@dataclass
class Tally:
    """Counts of a search."""

    bounded: int = 0
    too_large: int = 0
    simulated: int = 0
    failed: int = 0


class Course(Protocol):
    """The state of a search that its frontier reads."""

    @property
    def sets(self) -> Sets: ...
    @property
    def simulated(self) -> Container[str]: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def unseen_s(self) -> float: ...


class Frontier:
    """The plans not simulated yet, lowest bound first."""

    def __init__(
        self,
        course: Course,
        spreads: Iterable[tuple[float, Job]],
        room_bytes: float,
        deadline: Deadline = NEVER,
        quick: float = QUICK,
        admit: Callable[[Job], bool] = lambda job: True,
    ) -> None:
        self._course, self._sets, self._room_bytes, self._quick = course, course.sets, room_bytes, quick
        self._deadline, self._admit = deadline, admit
        self._ticks = 0
        #: The lowest bound of plans that did not fit into the time.
        self._late_s = math.inf
        self._heap: list[tuple[float, int, Callable[[float], None] | Candidate]] = []
        self._slow: list[tuple[float, int, Callable[[float], None] | Candidate]] = []
        for floor_s, spread in spreads:
            self.push(floor_s, partial(self._dispatches, spread))

    @property
    def next_bound_s(self) -> float:
        """A lower bound on every remaining plan."""
        return min([self._late_s, self._course.unseen_s, *(heap[0][0] for heap in (self._heap, self._slow) if heap)])

    def take(
        self, count: int, limit_s: float, *, slow: bool = True, until: Deadline | None = None
    ) -> list[tuple[float, Candidate]]:
        """The next plans to simulate that may be faster than ``limit_s``; none when time is over.

        Plans that are slow to simulate come last, and only if ``slow``.
        """
        deadline = until or self._deadline
        taken: list[tuple[float, Candidate]] = []
        planned_s = 0.0
        heaps = (self._heap, self._slow) if slow else (self._heap,)
        while len(taken) < count:
            heap = next(
                (candidate_heap for candidate_heap in heaps if candidate_heap and candidate_heap[0][0] < limit_s), None
            )
            if heap is None or (heap is self._slow and taken):
                break
            if deadline.passed:
                return taken
            bound_s, tick, entry = heapq.heappop(heap)
            if not isinstance(entry, Candidate):
                with contextlib.suppress(UnreachableError):  # dead links disconnect its ranks
                    entry(bound_s)
                continue
            if entry.name in self._course.simulated:
                continue
            instructions = self._sets.bound.instructions(entry.job, entry.mesh)
            if heap is self._heap and instructions > self._quick:
                heapq.heappush(self._slow, (bound_s, tick, entry))
                continue
            takes_s = self._sets.bound.simulation_s(entry.job, entry.mesh)
            if planned_s + takes_s > deadline.left_s:
                self._late_s = min(self._late_s, bound_s)
                continue
            planned_s += takes_s
            taken.append((bound_s, entry))
        return taken

    def dive(self, count: int) -> list[tuple[float, Candidate]]:
        """The most promising quick plan of each of the most promising sets, for searches whose time runs out before
        plans reach the top."""
        whole, plans = self._heap, list[tuple[float, Candidate]]()
        while whole and len(plans) < count and not self._deadline.passed:
            self._heap = [heapq.heappop(whole)]
            while self._heap:
                bound_s, tick, entry = heapq.heappop(self._heap)
                if isinstance(entry, Candidate):
                    if self._sets.bound.instructions(entry.job, entry.mesh) > self._quick:
                        heapq.heappush(self._slow, (bound_s, tick, entry))
                    elif entry.name not in self._course.simulated:
                        plans.append((bound_s, entry))
                    break
                with contextlib.suppress(UnreachableError):
                    entry(bound_s)
            whole += self._heap
            heapq.heapify(whole)
        self._heap = whole
        return plans

    def push(self, bound_s: float, entry: Callable[[float], None] | Candidate) -> None:
        """Adds a set of plans, or one: also one that was taken and not simulated."""
        self._ticks += 1
        heapq.heappush(self._heap, (bound_s, self._ticks, entry))

    def _fits(self, job: Job) -> bool:
        """Whether a plan's memory is within the limit."""
        return self._sets.memory_bytes(job) <= self._room_bytes

    def _dispatches(self, spread: Job, bound_s: float) -> None:
        """Splits a spread by expert dispatch, before recomputation is chosen."""
        for way in self._sets.once(self._sets.dispatches, spread):
            self.push(bound_s, partial(self._floor if way.plan.ep > 1 else self._kernels, way))

    def _floor(self, way: Job, bound_s: float) -> None:
        """Bounds a dispatch with the kernels of its experts."""
        self.push(max(bound_s, self._sets.once(self._sets.floor_s, way)), partial(self._kernels, way))

    def _kernels(self, way: Job, bound_s: float) -> None:
        """Bounds a dispatch with all its kernels, without recomputation."""
        self.push(max(bound_s, self._sets.once(self._sets.kernels_s, way)), partial(self._waits, way))

    def _waits(self, way: Job, bound_s: float) -> None:
        """Bounds a dispatch with waits and losses of its kernels."""
        self.push(max(bound_s, self._sets.once(self._sets.waits_s, way)), partial(self._families, way))

    def _families(self, way: Job, bound_s: float) -> None:
        """Splits a dispatch by recomputation."""
        for family in filter(self._admit, self._sets.once(self._sets.recomputations, way)):
            kept = family.with_recomputation(KEPT) is family
            self.push(bound_s, partial(self._roomy if kept else self._again, family))

    def _again(self, family: Job, bound_s: float) -> None:
        """Bounds a family that recomputes, with all its kernels."""
        closer_s = max(bound_s, self._sets.compute_s(family, self._sets.space.pipelines(family)))
        self.push(closer_s, partial(self._roomy, family))

    def _roomy(self, family: Job, bound_s: float) -> None:
        """Bounds a family with the pipelines that may fit."""
        pipelines = self._sets.roomy(family, self._room_bytes)
        if not pipelines:
            self._course.tally.too_large += 1
            return
        closer_s = max(bound_s, self._sets.compute_s(family, pipelines))
        self.push(closer_s, partial(self._within_stage, family, frozenset(number for number, _, _ in pipelines)))

    def _within_stage(self, family: Job, pipelines: frozenset[int], bound_s: float) -> None:
        """Splits a family into schedules within a stage, with the kernels of each."""
        for kernels_s, staged in self._sets.once(self._sets.schedules, family):
            self.push(max(bound_s, kernels_s), partial(self._staged, staged, family, pipelines))

    def _staged(self, staged: Candidate, family: Job, pipelines: frozenset[int], bound_s: float) -> None:
        """Bounds a schedule with waits and losses of its kernels."""
        closer_s = self._sets.once(self._sets.staged_s, staged)
        self.push(max(bound_s, closer_s), partial(self._beside, staged, family, pipelines))

    def _beside(self, staged: Candidate, family: Job, pipelines: frozenset[int], bound_s: float) -> None:
        """Bounds a schedule with communication between replicas."""
        closer_s = self._sets.beside_s(staged, family)
        self.push(max(bound_s, closer_s), partial(self._layouts, staged, pipelines))

    def _layouts(self, staged: Candidate, pipelines: frozenset[int], bound_s: float) -> None:
        """Splits a schedule into pipelines, each with its bubble."""
        for rough_s, layout in self._sets.once(self._sets.layouts, staged):
            if layout.order[-1] in pipelines:
                self._course.tally.bounded += 1
                self.push(max(bound_s, rough_s), partial(self._outlined, layout))

    def _outlined(self, layout: Candidate, bound_s: float) -> None:
        """Splits a layout, with its whole pipeline, into divisions of its state; a check of memory comes first."""
        if self._sets.once(self._sets.layout_bytes, layout) > self._room_bytes:
            self._course.tally.too_large += 1
            return
        for outline_s, division in self._sets.once(self._sets.outlined, layout):
            self.push(max(bound_s, outline_s), partial(self._divided, layout, division))

    def _divided(self, layout: Candidate, division: Division, bound_s: float) -> None:
        """The plan of a layout and a division of state, or plans that keep less where it does not fit. A plan with the
        same program as another, which only saves memory that is not needed, is skipped."""
        if (sized := self._sets.plan(layout, division)) is None:
            return
        needed_bytes, candidate = sized
        if division.zero == 2:  # runs what ZeRO 1 runs
            first = self._sets.plan(layout, division._replace(zero=1))
            if first is not None and first[0] <= self._room_bytes:
                return
        if needed_bytes <= self._room_bytes:
            self._plan(candidate, bound_s)
            return
        for thinner in self._sets.space.thinner(candidate, self._fits):
            again_s = self._sets.thin_s(thinner, division)
            self.push(max(bound_s, again_s), partial(self._thinner, thinner, layout))

    def _thinner(self, candidate: Candidate, layout: Candidate, bound_s: float) -> None:
        """Bounds a plan that keeps less than its layout, with its whole pipeline."""
        closer_s = max(bound_s, self._sets.outline_of(candidate, layout))
        self.push(closer_s, partial(self._plan, candidate))

    def _plan(self, candidate: Candidate, bound_s: float) -> None:
        """Bounds a plan with communication between its replicas."""
        closer_s = max(bound_s, self._sets.once(self._sets.step_s, candidate))
        self.push(closer_s, candidate)
