"""What a search has not simulated yet, as sets of plans in a heap, lowest bound first.

A set that comes out on top gets a closer bound, or is split into smaller ones, before anything else is done about it;
a plan that does is there to be simulated.
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

#: Plans that take longer to simulate than this many instructions wait until the others are done.
QUICK = 400_000


@dataclass
class Tally:
    """What a search has done so far."""

    bounded: int = 0
    too_large: int = 0
    simulated: int = 0
    failed: int = 0


class Course(Protocol):
    """How far the search is whose frontier it is."""

    @property
    def sets(self) -> Sets: ...
    @property
    def known(self) -> Container[str]: ...
    @property
    def tally(self) -> Tally: ...
    @property
    def unseen_s(self) -> float: ...


class Frontier:
    """What has not been simulated yet, lowest bound first."""

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
        #: The lowest bound of plans that time was too short for.
        self._late_s = math.inf
        self._heap: list[tuple[float, int, Callable[[float], None] | Candidate]] = []
        self._slow: list[tuple[float, int, Callable[[float], None] | Candidate]] = []
        for floor_s, spread in spreads:
            self._push(floor_s, partial(self._ways, spread))

    @property
    def next_bound_s(self) -> float:
        """No plan that is left is faster."""
        return min([self._late_s, self._course.unseen_s, *(heap[0][0] for heap in (self._heap, self._slow) if heap)])

    def take(
        self, count: int, limit_s: float, *, slow: bool = True, until: Deadline | None = None
    ) -> list[tuple[float, Candidate]]:
        """The next plans to simulate, those that may be faster than ``limit_s``; none when time is over.

        Those that are slow to simulate come last, and only if ``slow``.
        """
        deadline = until or self._deadline
        taken: list[tuple[float, Candidate]] = []
        planned_s = 0.0
        heaps = (self._heap, self._slow) if slow else (self._heap,)
        while len(taken) < count:
            heap = next((each for each in heaps if each and each[0][0] < limit_s), None)
            if heap is None or (heap is self._slow and taken):
                break
            if deadline.passed:
                return taken
            bound_s, tick, entry = heapq.heappop(heap)
            if not isinstance(entry, Candidate):
                with contextlib.suppress(UnreachableError):  # dead links cut its ranks off from each other
                    entry(bound_s)
                continue
            if entry.name in self._course.known:
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
        """The most promising plan of each of the most promising sets, quick ones alone: for where time runs out
        before plans come out on top."""
        whole, found = self._heap, list[tuple[float, Candidate]]()
        while whole and len(found) < count and not self._deadline.passed:
            self._heap = [heapq.heappop(whole)]
            while self._heap:
                bound_s, tick, entry = heapq.heappop(self._heap)
                if isinstance(entry, Candidate):
                    if self._sets.bound.instructions(entry.job, entry.mesh) > self._quick:
                        heapq.heappush(self._slow, (bound_s, tick, entry))
                    elif entry.name not in self._course.known:
                        found.append((bound_s, entry))
                    break
                with contextlib.suppress(UnreachableError):
                    entry(bound_s)
            whole += self._heap
            heapq.heapify(whole)
        self._heap = whole
        return found

    def put_back(self, bound_s: float, candidate: Candidate) -> None:
        """A plan that was taken and not simulated."""
        self._push(bound_s, candidate)

    def _push(self, bound_s: float, entry: Callable[[float], None] | Candidate) -> None:
        self._ticks += 1
        heapq.heappush(self._heap, (bound_s, self._ticks, entry))

    def _fits(self, job: Job) -> bool:
        """Whether a plan's memory is within the limit."""
        return self._sets.memory_bytes(job) <= self._room_bytes

    def _ways(self, spread: Job, bound_s: float) -> None:
        """The ways to experts, whatever is made again."""
        for way in self._sets.once(self._sets.ways, spread):
            self._push(bound_s, partial(self._floor if way.plan.ep > 1 else self._kernels, way))

    def _floor(self, way: Job, bound_s: float) -> None:
        """One of them with the kernels of its experts."""
        self._push(max(bound_s, self._sets.once(self._sets.floor_s, way)), partial(self._kernels, way))

    def _kernels(self, way: Job, bound_s: float) -> None:
        """One with all its kernels, those that are run again left out."""
        self._push(max(bound_s, self._sets.once(self._sets.kernels_s, way)), partial(self._waits, way))

    def _waits(self, way: Job, bound_s: float) -> None:
        """One with what its kernels wait for and lose."""
        self._push(max(bound_s, self._sets.once(self._sets.waits_s, way)), partial(self._families, way))

    def _families(self, way: Job, bound_s: float) -> None:
        """What is made again."""
        for family in filter(self._admit, self._sets.once(self._sets.makings, way)):
            kept = family.making(KEPT) is family
            self._push(bound_s, partial(self._roomy if kept else self._again, family))

    def _again(self, family: Job, bound_s: float) -> None:
        """One that makes some again, with all its kernels."""
        closer_s = max(bound_s, self._sets.compute_s(family, self._sets.space.pipelines(family)))
        self._push(closer_s, partial(self._roomy, family))

    def _roomy(self, family: Job, bound_s: float) -> None:
        """A family with the pipelines that may fit."""
        pipelines = self._sets.roomy(family, self._room_bytes)
        if not pipelines:
            self._course.tally.too_large += 1
            return
        closer_s = max(bound_s, self._sets.compute_s(family, pipelines))
        self._push(closer_s, partial(self._within_stage, family, frozenset(number for number, _, _ in pipelines)))

    def _within_stage(self, family: Job, pipelines: frozenset[int], bound_s: float) -> None:
        """A family's schedules within a stage, with the kernels of each."""
        for kernels_s, staged in self._sets.once(self._sets.schedules, family):
            self._push(max(bound_s, kernels_s), partial(self._staged, staged, family, pipelines))

    def _staged(self, staged: Candidate, family: Job, pipelines: frozenset[int], bound_s: float) -> None:
        """One of them with what its kernels wait for and lose."""
        closer_s = self._sets.once(self._sets.staged_s, staged)
        self._push(max(bound_s, closer_s), partial(self._beside, staged, family, pipelines))

    def _beside(self, staged: Candidate, family: Job, pipelines: frozenset[int], bound_s: float) -> None:
        """One of them with what replicas say to each other."""
        closer_s = self._sets.beside_s(staged, family)
        self._push(max(bound_s, closer_s), partial(self._layouts, staged, pipelines))

    def _layouts(self, staged: Candidate, pipelines: frozenset[int], bound_s: float) -> None:
        """Its pipelines, each with its bubble."""
        for rough_s, layout in self._sets.once(self._sets.layouts, staged):
            if layout.order[-1] in pipelines:
                self._course.tally.bounded += 1
                self._push(max(bound_s, rough_s), partial(self._outlined, layout))

    def _outlined(self, layout: Candidate, bound_s: float) -> None:
        """A layout with its whole pipeline, each way to divide its state; to ask first whether it may fit is cheap."""
        if self._sets.once(self._sets.layout_bytes, layout) > self._room_bytes:
            self._course.tally.too_large += 1
            return
        for outline_s, division in self._sets.once(self._sets.outlined, layout):
            self._push(max(bound_s, outline_s), partial(self._divided, layout, division))

    def _divided(self, layout: Candidate, division: Division, bound_s: float) -> None:
        """The plan of a layout that divides its state so, or where it does not fit what keeps less; one that only
        spares memory where another has the same program is left."""
        if (found := self._sets.plan(layout, division)) is None:
            return
        needed_bytes, candidate = found
        if division.zero == 2:  # runs what ZeRO 1 runs
            first = self._sets.plan(layout, division._replace(zero=1))
            if first is not None and first[0] <= self._room_bytes:
                return
        if needed_bytes <= self._room_bytes:
            self._plan(candidate, bound_s)
            return
        for thinner in self._sets.space.thinner(candidate, self._fits):
            again_s = self._sets.thin_s(thinner, division)
            self._push(max(bound_s, again_s), partial(self._thinner, thinner, layout))

    def _thinner(self, candidate: Candidate, layout: Candidate, bound_s: float) -> None:
        """A plan that keeps less than its layout, with its whole pipeline."""
        closer_s = max(bound_s, self._sets.outline_of(candidate, layout))
        self._push(closer_s, partial(self._plan, candidate))

    def _plan(self, candidate: Candidate, bound_s: float) -> None:
        """A plan with what its replicas say to each other."""
        closer_s = max(bound_s, self._sets.once(self._sets.step_s, candidate))
        self._push(closer_s, candidate)
