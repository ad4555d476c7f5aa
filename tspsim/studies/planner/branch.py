"""Branch and bound: the fastest plans of a space, simulated in the order of what they cannot undercut.

The heap holds sets of plans with a time that the best of them cannot undercut: families, which become layouts, which
become plans. A bound that is cheap is replaced by a closer one before anything is done about it. Plans that come out on
top are simulated, :data:`ROUND` at a time, until what is left cannot be faster than the slowest of the best. Which
plans are simulated does not depend on how many processes do it, or on how fast.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from ...errors import UnreachableError
from ...parallel import Job, peak_memory, scheme_of
from ...parallel.memory import stage_memory
from ...parallel.pipeline import PipelineOrder, order_of
from ...paths import LowerBound
from ...result import PlanResult
from .clock import NEVER, Deadline
from .space import Candidate, Space

#: Plans simulated between two looks at the bounds: enough to keep a few processes busy, few enough to waste little.
ROUND = 4
#: Plans that take longer to simulate than this many instructions wait until the others are done.
QUICK = 400_000
#: Seconds of processor time that a simulation takes to begin, and that one of its instructions does, about.
BEGIN_S, INSTRUCTION_S = 0.2, 2e-5
#: Share of the time after which a search whose plans have not come out on top looks for any.
FIRST_SHARE = 0.3
#: Number, chunks a stage and schedule of a family's pipeline.
PipelineKey = tuple[int, int, str]
Given = TypeVar("Given")
Made = TypeVar("Made")
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


@dataclass
class Tally:
    """What a search has done so far."""

    bounded: int = 0
    too_large: int = 0
    simulated: int = 0
    failed: int = 0


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
    """A space, and what was found in it; what one question simulates the next one knows.

    Parameters
    ----------
    space
        The legal plans.
    bound
        Bounds on their steps.
    capacity_bytes
        Memory of a GPU.
    simulate
        Answers some plans, in their order; None for those it had no time for. May raise :class:`Interrupted`.
    deadline
        When to stop. A plan whose simulation would take longer than is left is not begun.
    least_s
        No plan at all is faster.
    report
        Called before plans are simulated: the lowest bound left, and the best found so far.
    """

    space: Space
    bound: LowerBound
    capacity_bytes: float
    simulate: Callable[[Sequence[Candidate]], list[PlanResult | None]]
    deadline: Deadline = NEVER
    report: Callable[[float, Sequence[Found]], None] | None = None
    least_s: float = 0.0
    known: dict[str, Found] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    #: Families, the floors of some by their number, what else was made of them with what it was made of, and what those
    #: that time was too short for cannot undercut.
    listed: list[Job] = field(default_factory=list)
    floors: dict[int, float] = field(default_factory=dict)
    made: dict[Hashable, tuple[Any, object]] = field(default_factory=dict)
    unseen_s: float = math.inf
    #: How much longer simulations have taken than was thought.
    pace: float = 1.0
    all_listed: bool = False

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
                self.floors[number] = self.bound.first_s(family, self.shapes(family, self.space.pipelines(family)))
            yield self.floors[number], family
        self.all_listed = True

    def roomy(self, family: Job, room_bytes: float) -> tuple[PipelineKey, ...]:
        """The pipelines with which some plan of a family may fit."""
        return tuple(each for each in self.space.pipelines(family) if self.least_bytes(family, each) <= room_bytes)

    def least_bytes(self, family: Job, pipeline: PipelineKey) -> float:
        """What no plan of a family with this pipeline can undercut on the first stage, which keeps most: residual
        streams cut where they can be, without what exchanges keep, which a schedule decides."""

        def least() -> float:
            _, vpp, schedule = pipeline
            plan = replace(family.plan, sequence_regions=family.plan.tp > 1, vpp=vpp, schedule=schedule)
            job, residency = without_gathered(replace(family, plan=plan)), scheme_of(plan).residency
            exchanged = {each.part for each in residency.buffers(job)}
            parts = stage_memory(job, residency, 0)
            return total({name: size for name, size in parts.items() if name not in exchanged})

        return self._remembered(("least_bytes", id(family), pipeline), family, least)

    def shapes(self, family: Job, pipelines: Iterable[PipelineKey]) -> tuple[tuple[int, PipelineOrder], ...]:
        """Chunks a stage and order of pipelines of a family."""
        return tuple((vpp, order_of(schedule, vpp)) for _, vpp, schedule in pipelines)

    def staged(self, family: Job) -> list[tuple[float, Candidate]]:
        """A family's schedules within a stage that reach all its ranks, each with what its step cannot undercut."""
        found = []
        for staged in self.space.within_stage(family):
            with contextlib.suppress(UnreachableError):  # dead links cut its ranks off from each other
                found.append((self.bound.even_s(staged.job, staged.mesh), staged))
        return found

    def layouts(self, staged: Candidate) -> list[tuple[float, Candidate]]:
        """Its pipelines, each with the same."""
        return [(self.bound.rough_s(each.job, each.mesh), each) for each in self.space.layouts(staged)]

    def outline_s(self, layout: Candidate) -> float:
        return self.bound.outline_s(layout.job, layout.mesh)

    def outline_of(self, thinner: Candidate, layout: Candidate) -> float:
        """The same of a layout's plan that keeps less: found once for all whose replicas divide other things."""
        plan = thinner.plan
        key = ("outline_of", id(layout), plan.recomputed, plan.offload_layers, plan.activation_store)
        return self._remembered(key, layout, lambda: self.outline_s(thinner))

    def plans(self, layout: Candidate) -> list[tuple[float, Candidate]]:
        """Its plans with the memory that they need."""
        return [(memory_bytes(each.job), each) for each in self.space.plans(layout)]

    def step_s(self, candidate: Candidate) -> float:
        return self.bound.step_s(candidate.job, candidate.mesh)

    def once(self, what: Callable[[Given], Made], of: Given) -> Made:
        """What a function makes of something that was listed, made once: further questions find it."""
        return self._remembered((what.__name__, id(of)), of, lambda: what(of))

    def _remembered(self, key: Hashable, of: object, make: Callable[[], Made]) -> Made:
        """What is made under a key with the identity of something, which is kept beside it so that its number stays."""
        if key not in self.made:
            self.made[key] = make(), of
        made: Made = self.made[key][0]
        return made

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


def without_gathered(job: Job) -> Job:
    """The job with all divided that replicas can divide."""
    return replace(job, plan=replace(job.plan, zero=3 if job.training else 0))


def total(parts: Mapping[str, float]) -> float:
    """Bytes of memory, but for weights that are gathered."""
    return sum(parts.values()) - parts.get("gathered_weights", 0.0)


def layout_bytes(layout: Candidate) -> float:
    """What no plan of a layout can undercut, whatever its replicas divide: with all of it divided, nothing gathered."""
    return total(peak_memory(without_gathered(layout.job), scheme_of(layout.plan).residency))


def memory_bytes(job: Job) -> float:
    """What a plan's fullest rank needs."""
    return sum(peak_memory(job, scheme_of(job.plan).residency).values())


def _rank(found: Found) -> tuple[float, tuple[int, ...], str]:
    return found.rank


class Frontier:
    """What has not been simulated yet, lowest bound first."""

    def __init__(
        self, search: Search, families: Iterable[tuple[float, Job]], room_bytes: float, quick: float = QUICK
    ) -> None:
        self._search, self._room_bytes, self._quick = search, room_bytes, quick
        self._ticks = 0
        #: The lowest bound of plans that time was too short for.
        self._late_s = math.inf
        self._heap: list[tuple[float, int, Callable[[float], None] | Candidate]] = []
        self._slow: list[tuple[float, int, Callable[[float], None] | Candidate]] = []
        for floor_s, family in families:
            self._push(floor_s, partial(self._floor if family.plan.ep > 1 else self._kernels, family))

    @property
    def next_bound_s(self) -> float:
        """No plan that is left is faster."""
        return min([self._late_s, self._search.unseen_s, *(heap[0][0] for heap in (self._heap, self._slow) if heap)])

    def take(
        self, count: int, limit_s: float, *, slow: bool = True, until: Deadline | None = None
    ) -> list[tuple[float, Candidate]]:
        """The next plans to simulate, those that may be faster than ``limit_s``; none when time is over.

        Those that are slow to simulate come last, and only if ``slow``.
        """
        deadline = until or self._search.deadline
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
            if entry.name in self._search.known:
                continue
            instructions = self._search.bound.instructions(entry.job, entry.mesh)
            if heap is self._heap and instructions > self._quick:
                heapq.heappush(self._slow, (bound_s, tick, entry))
                continue
            takes_s = self._search.pace * (BEGIN_S + instructions * INSTRUCTION_S)
            if planned_s + takes_s > self._search.deadline.left_s:
                self._late_s = min(self._late_s, bound_s)
                continue
            planned_s += takes_s
            taken.append((bound_s, entry))
        return taken

    def dive(self, count: int) -> list[tuple[float, Candidate]]:
        """The most promising plan of each of the most promising sets, quick ones alone: for where time runs out
        before plans come out on top."""
        whole, found = self._heap, list[tuple[float, Candidate]]()
        while whole and len(found) < count and not self._search.deadline.passed:
            self._heap = [heapq.heappop(whole)]
            while self._heap:
                bound_s, tick, entry = heapq.heappop(self._heap)
                if isinstance(entry, Candidate):
                    if self._search.bound.instructions(entry.job, entry.mesh) > self._quick:
                        heapq.heappush(self._slow, (bound_s, tick, entry))
                    elif entry.name not in self._search.known:
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
        return memory_bytes(job) <= self._room_bytes

    def _floor(self, family: Job, bound_s: float) -> None:
        """A family with its own way to experts."""
        search = self._search
        closer_s = max(bound_s, search.bound.floor_s(family, search.shapes(family, search.space.pipelines(family))))
        self._push(closer_s, partial(self._kernels, family))

    def _kernels(self, family: Job, bound_s: float) -> None:
        """A family with all its kernels."""
        search = self._search
        closer_s = max(bound_s, search.bound.compute_s(family, search.shapes(family, search.space.pipelines(family))))
        self._push(closer_s, partial(self._roomy, family))

    def _roomy(self, family: Job, bound_s: float) -> None:
        """A family with the pipelines that may fit."""
        search = self._search
        pipelines = search.roomy(family, self._room_bytes)
        if not pipelines:
            search.tally.too_large += 1
            return
        closer_s = max(bound_s, search.bound.compute_s(family, search.shapes(family, pipelines)))
        self._push(closer_s, partial(self._within_stage, family, frozenset(number for number, _, _ in pipelines)))

    def _within_stage(self, family: Job, pipelines: frozenset[int], bound_s: float) -> None:
        """A family's schedules within a stage, with what its kernels wait for."""
        for even_s, staged in self._search.once(self._search.staged, family):
            self._push(max(bound_s, even_s), partial(self._layouts, staged, pipelines))

    def _layouts(self, staged: Candidate, pipelines: frozenset[int], bound_s: float) -> None:
        """Its pipelines, each with its bubble."""
        for rough_s, layout in self._search.once(self._search.layouts, staged):
            if layout.order[-1] in pipelines:
                self._search.tally.bounded += 1
                self._push(max(bound_s, rough_s), partial(self._outline, layout))

    def _outline(self, layout: Candidate, bound_s: float) -> None:
        """A layout with its whole pipeline; to ask first whether it may fit is cheap."""
        if self._search.once(layout_bytes, layout) > self._room_bytes:
            self._search.tally.too_large += 1
            return
        closer_s = max(bound_s, self._search.once(self._search.outline_s, layout))
        self._push(closer_s, partial(self._plans, layout))

    def _plans(self, layout: Candidate, bound_s: float) -> None:
        """The plans of a layout that fit; those that only spare memory where another has the same program are left."""
        fitting: set[Hashable] = set()
        for needed_bytes, candidate in self._search.once(self._search.plans, layout):
            zero, group = candidate.plan.zero, candidate.plan.shard_group
            # ZeRO 2 runs what ZeRO 1 runs.
            if zero == 2 and (1, group) in fitting:
                continue
            if needed_bytes > self._room_bytes:
                for thinner in self._search.space.thinner(candidate, self._fits):
                    fitting.add((zero, group, thinner.name))
                    again_s = self._search.bound.partly_s(thinner.job)
                    self._push(max(bound_s, again_s), partial(self._thinner, thinner, layout))
                continue
            fitting.add((zero, group))
            if group is None:
                self._plan(candidate, bound_s)
            else:
                self._push(bound_s, partial(self._plan, candidate))
        if not fitting:
            self._search.tally.too_large += 1

    def _thinner(self, candidate: Candidate, layout: Candidate, bound_s: float) -> None:
        """A plan that keeps less than its layout, with its whole pipeline."""
        closer_s = max(bound_s, self._search.outline_of(candidate, layout))
        self._push(closer_s, partial(self._plan, candidate))

    def _plan(self, candidate: Candidate, bound_s: float) -> None:
        """A plan with what its replicas say to each other."""
        closer_s = max(bound_s, self._search.once(self._search.step_s, candidate))
        self._push(closer_s, candidate)
