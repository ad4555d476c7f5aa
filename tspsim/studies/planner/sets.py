"""Sets of plans that a search splits, with what none of each can undercut: every one is found once.

Families become schedules within a stage, these layouts with a pipeline, these divisions of state over replicas, and
these plans. How state is divided is asked last, for a layout has a dozen ways that all run the same kernels; up to then
a bound counts what replicas say to each other in the way that says least, of those that may fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...base.errors import UnreachableError
from ...base.memo import BoundedCache, Itself
from ...base.quick import replace
from ...parallel import Job, scheme_axes
from ...parallel.pipeline import PipelineOrder, order_of
from ...parallel.recomputed import KEPT
from ...step.paths import MEMORY_S, Division, LowerBound, Outline
from .candidate import Candidate
from .room import first_stage_bytes, layout_bytes, memory_bytes, state_bytes
from .space import RECOMPUTATION, Space

#: Number, chunks a stage and schedule of a family's pipeline.
PipelineKey = tuple[int, int, str]
#: What one search keeps of what it has made: none came near it.
MOST_MADE = 4_000_000
Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass
class Sets:
    """The sets of one search."""

    #: The legal plans.
    space: Space
    #: Bounds on their steps.
    bound: LowerBound
    #: Memory of a GPU.
    capacity_bytes: float
    #: What was made, under what it was made of.
    _made: BoundedCache = field(default_factory=lambda: BoundedCache(MOST_MADE))
    _states: dict[Hashable, list[float]] = field(default_factory=dict)
    _first: dict[Hashable, Job | None] = field(default_factory=dict)

    def memory_bytes(self, job: Job) -> float:
        """What a plan's fullest rank needs."""
        self.space.effort.add(MEMORY_S)
        return memory_bytes(job)

    def layout_bytes(self, layout: Candidate) -> float:
        """What no plan of a layout can undercut."""
        self.space.effort.add(MEMORY_S)
        return layout_bytes(layout)

    def first_stage_bytes(self, job: Job) -> float:
        """What no plan that divides a job's state somehow can undercut on its first stage."""
        self.space.effort.add(MEMORY_S)
        return first_stage_bytes(job)

    def first_s(self, spread: Job) -> float:
        """Of all families of a spread; infinite where none is legal. Of spreads that differ in the pipeline alone the
        first legal family is looked for once, in the shallowest: what else a plan's degrees must divide and what its
        kernels are is the same."""
        plan = spread.plan
        alike = tuple(plan.degree(axis) for axis in scheme_axes()), plan.ep, plan.micro_batch, plan.exchange
        if spread.unequal or alike not in self._first:
            self._first[alike] = next(self.space.ways(spread), None)
        like = self._first[alike]
        if like is None:
            return math.inf
        family = replace(spread, plan=replace(like.plan, degrees=plan.degrees))
        return self.bound.first_s(family, self.shapes(family, self.space.pipelines(family)))

    def ways(self, spread: Job) -> list[Job]:
        return list(self.space.ways(spread))

    def makings(self, way: Job) -> list[Job]:
        return list(self.space.makings(way))

    def families(self, spread: Job) -> list[Job]:
        """Those that make nothing again first."""
        every = [family for way in self.once(self.ways, spread) for family in self.once(self.makings, way)]
        return sorted(every, key=lambda family: RECOMPUTATION.index(family.plan.recomputation))

    def floor_s(self, family: Job) -> float:
        return self.bound.floor_s(family, self.shapes(family, self.space.pipelines(family)))

    def kernels_s(self, way: Job) -> float:
        """Of a way to experts with all its kernels, those that are run again left out."""
        kept = way.making(KEPT)
        return self.compute_s(kept, self.space.pipelines(kept))

    def waits_s(self, way: Job) -> float:
        """The same with what they wait for and lose, of the schedule within a stage that takes least; infinite where
        dead links cut ranks off from each other in all of them."""
        return min(map(self._reached_s, self.once(self.staged, way)), default=math.inf)

    def _reached_s(self, staged: Candidate) -> float:
        try:
            return self.once(self.staged_s, staged)
        except UnreachableError:
            return math.inf

    def compute_s(self, family: Job, pipelines: Sequence[PipelineKey]) -> float:
        return self.bound.compute_s(family, self.shapes(family, pipelines))

    def shapes(self, family: Job, pipelines: Iterable[PipelineKey]) -> tuple[tuple[int, PipelineOrder], ...]:
        """Chunks a stage and order of pipelines of a family."""
        return tuple((vpp, order_of(schedule, vpp)) for _, vpp, schedule in pipelines)

    def roomy(self, family: Job, room_bytes: float) -> tuple[PipelineKey, ...]:
        """The pipelines with which some plan of a family may fit."""
        return tuple(each for each in self.space.pipelines(family) if self.least_bytes(family, each) <= room_bytes)

    def least_bytes(self, family: Job, pipeline: PipelineKey) -> float:
        """What no plan of a family with this pipeline can undercut on the first stage, which keeps most: residual
        streams cut where they can be."""

        def least() -> float:
            _, vpp, schedule = pipeline
            plan = replace(family.plan, sequence_regions=family.plan.tp > 1, vpp=vpp, schedule=schedule)
            return self.first_stage_bytes(replace(family, plan=plan))

        return self._made.once(("least_bytes", Itself(family), pipeline), least)

    def divisions(self, layout: Candidate, least_bytes: float) -> list[Division]:
        """Ways to divide state with which a layout may fit that keeps ``least_bytes`` with all of it divided."""
        every = self.space.divisions(layout)
        if len(every) == 1:
            return []
        states = self._state_bytes(layout, every)
        # All of it divided by all is the least; a plan that keeps everything and misses may keep less.
        kept_bytes = 0.0 if layout.plan.recomputation == KEPT else max(0.0, least_bytes - min(states))
        spare_bytes = self.capacity_bytes - kept_bytes
        return [each for each, state in zip(every, states, strict=True) if state <= spare_bytes]

    def _state_bytes(self, layout: Candidate, every: Sequence[Division]) -> list[float]:
        plan = layout.plan
        key = (*plan.degrees.values(), plan.rail_axes, plan.schedule, plan.vpp, plan.expert_shards)
        if key not in self._states:
            self._states[key] = [state_bytes(layout.job, each) for each in every]
        return self._states[key]

    def schedules(self, family: Job) -> list[tuple[float, Candidate]]:
        """A family's schedules within a stage, each with what its own kernels take."""
        shapes = self.shapes(family, self.space.pipelines(family))
        return [(self.bound.schedule_s(each.job, shapes), each) for each in self.once(self.staged, family)]

    def staged(self, family: Job) -> list[Candidate]:
        return list(self.space.within_stage(family))

    def pipelined(self, staged: Candidate) -> list[Candidate]:
        return list(self.space.layouts(staged))

    def staged_s(self, staged: Candidate) -> float:
        """One of them with what its kernels wait for and lose, of the order of tasks that lets them wait least."""
        return min(self.bound.even_s(job, staged.mesh) for job in self._in_orders(staged.job))

    def _in_orders(self, job: Job) -> list[Job]:
        """A job once for each kind of order that its pipeline may have: backwards whole, or weights put off."""
        found: dict[bool, Job] = {}
        for number, vpp, schedule in self.space.pipelines(job):
            if (splits := order_of(schedule, vpp).splits_backward) not in found:
                around = replace(job, plan=replace(job.plan, vpp=vpp, schedule=schedule))
                if number == 0 or self.space.legal(around):
                    found[splits] = around
        return list(found.values())

    def beside_s(self, staged: Candidate, family: Job) -> float:
        """The same with what replicas say to each other."""

        def found() -> float:
            least_bytes = min(self.least_bytes(family, each) for each in self.space.pipelines(family))
            divisions = self.divisions(staged, least_bytes)
            return min(self.bound.even_s(job, staged.mesh, divisions) for job in self._in_orders(staged.job))

        return self._made.once(("beside_s", Itself(staged)), found)

    def layouts(self, staged: Candidate) -> list[tuple[float, Candidate]]:
        """Its pipelines, each with the same."""
        found = []
        for layout in self.once(self.pipelined, staged):
            divisions = self.divisions(layout, 0.0)
            found.append((self.bound.rough_s(layout.job, layout.mesh, divisions), layout))
        return found

    def rough_s(self, layout: Candidate, division: Division) -> float:
        """One of them with one way to divide its state."""

        def found() -> float:
            divisions = () if layout.job.copies == 1 else (division,)
            return self.bound.rough_s(layout.job, layout.mesh, divisions)

        return self._made.once(("rough_s", Itself(layout), division.zero, division.shard_group), found)

    def outline(self, layout: Candidate) -> Outline:
        return self.bound.outline(layout.job, layout.mesh)

    def outlined(self, layout: Candidate) -> list[tuple[float, Division]]:
        """A layout's ways to divide state with which it may fit, each with what its step cannot undercut."""
        job, mesh, outline = layout.job, layout.mesh, self.once(self.outline, layout)
        every = self.space.divisions(layout)
        if len(every) == 1:
            return [(self.bound.outline_s(job, mesh, (), outline), each) for each in every]
        fitting = self.divisions(layout, self.first_stage_bytes(job))
        return [(self.bound.outline_s(job, mesh, (each,), outline), each) for each in fitting]

    def outline_of(self, thinner: Candidate, layout: Candidate) -> float:
        """The outline of a layout's plan that keeps less: found once for all whose replicas divide other things."""
        plan = thinner.plan
        key = ("outline_of", Itself(layout), plan.recomputed, plan.offload_layers, plan.activation_store)
        return self._made.once(key, lambda: self.bound.outline_s(thinner.job, thinner.mesh))

    def thin_s(self, thinner: Candidate, division: Division) -> float:
        """A plan that keeps less, by its kernels and what moves beside them."""
        divisions = () if thinner.job.copies == 1 else (division,)
        return self.bound.partly_s(thinner.job, thinner.mesh, divisions)

    def plan(self, layout: Candidate, division: Division) -> tuple[float, Candidate] | None:
        """The plan of a layout and a way to divide, with the memory that it needs; None where it is not legal."""

        def made() -> tuple[float, Candidate] | None:
            found = self.space.plan(layout, division)
            return None if found is None else (self.memory_bytes(found.job), found)

        return self._made.once(("plan", Itself(layout), *division[:2]), made)

    def step_s(self, candidate: Candidate) -> float:
        return self.bound.step_s(candidate.job, candidate.mesh)

    def once(self, what: Callable[[Given], Made], of: Given) -> Made:
        """What a function makes of something that was listed, made once: further questions find it."""
        return self._made.once((what.__name__, Itself(of)), lambda: what(of))
