"""Sets of plans that a search splits, with lower bounds for each; every set is made once.

Families are split into schedules within a stage, these into layouts with a pipeline, these into divisions of state over
replicas, and these into plans. Division of state comes last, for a layout has a dozen divisions that run the same
kernels. Until then a bound counts the cheapest communication between replicas among the divisions that may fit.
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

#: Number, chunks per stage and schedule of a family's pipeline.
PipelineKey = tuple[int, int, str]
#: Most entries that one search keeps; no search came near it.
MOST_ENTRIES = 4_000_000
Source = TypeVar("Source")
Value = TypeVar("Value")


@dataclass
class Sets:
    """The sets of one search."""

    #: The legal plans.
    space: Space
    #: Bounds on their steps.
    bound: LowerBound
    #: Memory of a GPU.
    capacity_bytes: float
    #: Memoized results by function and argument.
    _memo: BoundedCache = field(default_factory=lambda: BoundedCache(MOST_ENTRIES))
    _states: dict[Hashable, list[float]] = field(default_factory=dict)
    _first: dict[Hashable, Job | None] = field(default_factory=dict)

    def memory_bytes(self, job: Job) -> float:
        """Bytes of a plan's fullest rank."""
        self.space.effort.add(MEMORY_S)
        return memory_bytes(job)

    def layout_bytes(self, layout: Candidate) -> float:
        """A lower bound on the bytes of a layout's plans."""
        self.space.effort.add(MEMORY_S)
        return layout_bytes(layout)

    def first_stage_bytes(self, job: Job) -> float:
        """A lower bound on the bytes of the first stage, for any division of a job's state."""
        self.space.effort.add(MEMORY_S)
        return first_stage_bytes(job)

    def may_fit(self, spread: Job) -> bool:
        """Whether one layer's input, in a byte an element and divided by all ranks of a replica's stage, fits at all: a
        check before any kernel is priced, since a large batch has micro-batches of thousands of sequences."""
        ranks = math.prod(spread.plan.degree(axis) for axis in scheme_axes())
        return spread.group_tokens * spread.model.hidden <= self.capacity_bytes * ranks

    def first_s(self, spread: Job) -> float:
        """A lower bound on all families of a spread; infinite where none is legal. Spreads that differ only in the
        pipeline share one look for a legal family, in the shallowest: kernels and divisibility of the other degrees are
        the same."""
        plan = spread.plan
        alike = tuple(plan.degree(axis) for axis in scheme_axes()), plan.ep, plan.micro_batch, plan.exchange
        if spread.unequal or alike not in self._first:
            self._first[alike] = next(self.space.dispatches(spread), None)
        like = self._first[alike]
        if like is None:
            return math.inf
        family = replace(spread, plan=replace(like.plan, degrees=plan.degrees))
        return self.bound.first_s(family, self.shapes(family, self.space.pipelines(family)))

    def dispatches(self, spread: Job) -> list[Job]:
        return list(self.space.dispatches(spread))

    def recomputations(self, way: Job) -> list[Job]:
        return list(self.space.recomputations(way))

    def families(self, spread: Job) -> list[Job]:
        """The families of a spread, those without recomputation first."""
        every = [family for way in self.once(self.dispatches, spread) for family in self.once(self.recomputations, way)]
        return sorted(every, key=lambda family: RECOMPUTATION.index(family.plan.recomputation))

    def floor_s(self, family: Job) -> float:
        return self.bound.floor_s(family, self.shapes(family, self.space.pipelines(family)))

    def kernels_s(self, way: Job) -> float:
        """A lower bound on an expert dispatch with all its kernels, without recomputation."""
        kept = way.with_recomputation(KEPT)
        return self.compute_s(kept, self.space.pipelines(kept))

    def waits_s(self, way: Job) -> float:
        """The same with waits and losses of kernels, for the cheapest schedule within a stage; infinite where dead
        links disconnect ranks in all of them."""
        return min(map(self._reached_s, self.once(self.staged, way)), default=math.inf)

    def _reached_s(self, staged: Candidate) -> float:
        try:
            return self.once(self.staged_s, staged)
        except UnreachableError:
            return math.inf

    def compute_s(self, family: Job, pipelines: Sequence[PipelineKey]) -> float:
        return self.bound.compute_s(family, self.shapes(family, pipelines))

    def shapes(self, family: Job, pipelines: Iterable[PipelineKey]) -> tuple[tuple[int, PipelineOrder], ...]:
        """Chunks per stage and order of a family's pipelines."""
        return tuple((vpp, order_of(schedule, vpp)) for _, vpp, schedule in pipelines)

    def roomy(self, family: Job, room_bytes: float) -> tuple[PipelineKey, ...]:
        """The pipelines with which some plan of a family may fit."""
        return tuple(
            pipeline for pipeline in self.space.pipelines(family) if self.least_bytes(family, pipeline) <= room_bytes
        )

    def least_bytes(self, family: Job, pipeline: PipelineKey) -> float:
        """A lower bound on the bytes of a family's first stage, which keeps most, with this pipeline: with sequence
        regions where possible."""

        def least() -> float:
            _, vpp, schedule = pipeline
            plan = replace(family.plan, sequence_regions=family.plan.tp > 1, vpp=vpp, schedule=schedule)
            return self.first_stage_bytes(replace(family, plan=plan))

        return self._memo.once(("least_bytes", Itself(family), pipeline), least)

    def divisions(self, layout: Candidate, least_bytes: float) -> list[Division]:
        """Divisions of state with which a layout may fit that keeps ``least_bytes`` when everything is divided."""
        every = self.space.divisions(layout)
        if len(every) == 1:
            return []
        states = self._state_bytes(layout, every)
        # Full division is the least. A plan that keeps everything and does not fit may keep less.
        kept_bytes = 0.0 if layout.plan.recomputation == KEPT else max(0.0, least_bytes - min(states))
        spare_bytes = self.capacity_bytes - kept_bytes
        return [division for division, state in zip(every, states, strict=True) if state <= spare_bytes]

    def _state_bytes(self, layout: Candidate, every: Sequence[Division]) -> list[float]:
        plan = layout.plan
        key = (*plan.degrees.values(), plan.rail_axes, plan.schedule, plan.vpp, plan.expert_shards)
        if key not in self._states:
            self._states[key] = [state_bytes(layout.job, division) for division in every]
        return self._states[key]

    def schedules(self, family: Job) -> list[tuple[float, Candidate]]:
        """A family's schedules within a stage, each with the time of its own kernels."""
        shapes = self.shapes(family, self.space.pipelines(family))
        return [(self.bound.schedule_s(schedule.job, shapes), schedule) for schedule in self.once(self.staged, family)]

    def staged(self, family: Job) -> list[Candidate]:
        return list(self.space.within_stage(family))

    def pipelined(self, staged: Candidate) -> list[Candidate]:
        return list(self.space.layouts(staged))

    def staged_s(self, staged: Candidate) -> float:
        """A schedule with waits and losses of its kernels, for the task order with the shortest waits."""
        return min(self.bound.even_s(job, staged.mesh) for job in self._in_orders(staged.job))

    def _in_orders(self, job: Job) -> list[Job]:
        """A job once for each kind of order that its pipeline may have: whole backward passes, or split ones."""
        by_order: dict[bool, Job] = {}
        for number, vpp, schedule in self.space.pipelines(job):
            if (splits := order_of(schedule, vpp).splits_backward) not in by_order:
                around = replace(job, plan=replace(job.plan, vpp=vpp, schedule=schedule))
                if number == 0 or self.space.legal(around):
                    by_order[splits] = around
        return list(by_order.values())

    def beside_s(self, staged: Candidate, family: Job) -> float:
        """The same with communication between replicas."""

        def bound() -> float:
            least_bytes = min(self.least_bytes(family, pipeline) for pipeline in self.space.pipelines(family))
            divisions = self.divisions(staged, least_bytes)
            return min(self.bound.even_s(job, staged.mesh, divisions) for job in self._in_orders(staged.job))

        return self._memo.once(("beside_s", Itself(staged)), bound)

    def layouts(self, staged: Candidate) -> list[tuple[float, Candidate]]:
        """The schedule's pipelines, each with the same bound."""
        bounded = []
        for layout in self.once(self.pipelined, staged):
            divisions = self.divisions(layout, 0.0)
            bounded.append((self.bound.rough_s(layout.job, layout.mesh, divisions), layout))
        return bounded

    def rough_s(self, layout: Candidate, division: Division) -> float:
        """A layout with one division of its state."""

        def bound() -> float:
            divisions = () if layout.job.copies == 1 else (division,)
            return self.bound.rough_s(layout.job, layout.mesh, divisions)

        return self._memo.once(("rough_s", Itself(layout), division.zero, division.shard_group), bound)

    def outline(self, layout: Candidate) -> Outline:
        return self.bound.outline(layout.job, layout.mesh)

    def outlined(self, layout: Candidate) -> list[tuple[float, Division]]:
        """Divisions of a layout's state with which it may fit, each with a lower bound on its step."""
        job, mesh, outline = layout.job, layout.mesh, self.once(self.outline, layout)
        every = self.space.divisions(layout)
        if len(every) == 1:
            return [(self.bound.outline_s(job, mesh, (), outline), division) for division in every]
        fitting = self.divisions(layout, self.first_stage_bytes(job))
        return [(self.bound.outline_s(job, mesh, (division,), outline), division) for division in fitting]

    def outline_of(self, thinner: Candidate, layout: Candidate) -> float:
        """The outline of a layout's plan that keeps less; computed once for all divisions."""
        plan = thinner.plan
        key = ("outline_of", Itself(layout), plan.recomputed, plan.offload_layers, plan.activation_store)
        return self._memo.once(key, lambda: self.bound.outline_s(thinner.job, thinner.mesh))

    def thin_s(self, thinner: Candidate, division: Division) -> float:
        """A plan that keeps less, by its kernels and the transfers beside them."""
        divisions = () if thinner.job.copies == 1 else (division,)
        return self.bound.partly_s(thinner.job, thinner.mesh, divisions)

    def plan(self, layout: Candidate, division: Division) -> tuple[float, Candidate] | None:
        """The plan of a layout and a division, with the memory that it needs; None where it is not legal."""

        def sized() -> tuple[float, Candidate] | None:
            plan = self.space.plan(layout, division)
            return None if plan is None else (self.memory_bytes(plan.job), plan)

        return self._memo.once(("plan", Itself(layout), *division[:2]), sized)

    def step_s(self, candidate: Candidate) -> float:
        return self.bound.step_s(candidate.job, candidate.mesh)

    def once(self, what: Callable[[Source], Value], of: Source) -> Value:
        """The memoized result of a function of one listed set."""
        return self._memo.once((what.__name__, Itself(of)), lambda: what(of))
