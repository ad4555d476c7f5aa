"""Costs of steps whose drafts come from other GPUs (:mod:`tspsim.parallel.decode.draft_pool`).

One replica drafts for several that verify, and these step together: each with its own queue and cache, and none begins
before all drafts have arrived. With V the seconds of a replica's own batch, D of all batches together through all
passes of the drafter, and x of their messages,

    draft_turns: 1    step = max V + D + x
    draft_turns: 2    step = max(max V₁, D₂) + max(max V₂, D₁) + x/2

for the two halves of every batch: only the part after the last pass is waited for. V and D are tabulated like any
plan's steps: D as a drafter on the same GPUs, after a step of all batches (:mod:`.model_drafts`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from ..base.memo import once
from ..network import point_to_point
from ..parallel import Plan
from ..parallel.decode import draft_pool
from ..parallel.engine_memory import Budget
from ..parallel.state.capacity import Capacity, capacity_of
from ..step.question import Question
from ..steps import Speculation
from . import costs
from .costs import ProgramCosts, undrafted
from .model_drafts import ModelDrafts, drafting_itself, hiding_nothing, passed_s
from .programs import StepPrograms
from .sampled import Deviation
from .tables import Floats
from .work import StepWork

#: The part of a step outside the verifying replica's kernels, transfers and host.
ELSEWHERE = "drafts from other GPUs"


class PooledDraftCosts(ProgramCosts):
    """Steps of a plan's replicas that verify for one drafting replica: one :class:`StepWork` each."""

    def __init__(
        self, question: Question, plan: Plan, *, speculation: Speculation, num_gpu_blocks: int | None = None
    ) -> None:
        alone = drafting_itself(plan)
        super().__init__(question, alone, speculation=undrafted(speculation), num_gpu_blocks=num_gpu_blocks)
        self.pool, self.speculation = plan, speculation
        self._verifying, _ = draft_pool.group(plan)
        # Host time hidden behind the device is compared with the whole step, not with a part of it.
        self._verify = costs.costs_of(hiding_nothing(question), alone, speculation=undrafted(speculation))
        self._drafts = ModelDrafts(question, alone, speculation, costs.costs_of)

    def _together(self, works: Sequence[StepWork]) -> float:
        busy = [work for work in works if work.tokens]
        most = max(work.sequences + len(work.chunks) for work in busy)
        device_s = self._device_s(busy)
        return device_s + self.programs.host_s(most, device_s)

    def _device_s(self, works: Sequence[StepWork]) -> float:
        if draft_pool.turns(self.pool) == 1:
            return self._verified_s(works) + self._drafted_s(works) + self._messages_s(works)
        first, second = zip(*map(halves, works), strict=True)
        begin_s = max(self._verified_s(first), self._drafted_s(second))
        return begin_s + max(self._verified_s(second), self._drafted_s(first)) + self._messages_s(works) / 2

    def _verified_s(self, works: Sequence[StepWork]) -> float:
        """V of the slowest replica."""
        return max(passed_s(self._verify, work) for work in works)

    def _drafted_s(self, works: Sequence[StepWork]) -> float:
        """D of all batches."""
        return self._drafts.seconds(joined(works))

    def _messages_s(self, works: Sequence[StepWork]) -> float:
        """x: tokens go out and drafts come back, those of several replicas one after the other."""
        tokens = max(work.tokens for work in works)
        sequences = max(work.sequences + len(work.chunks) for work in works)
        drafts, taken_s = self.speculation.tokens, 0.0
        for stream, pair in ((draft_pool.ACCEPTED, self._ends), (draft_pool.DRAFTED, self._ends[::-1])):
            size_bytes = round(draft_pool.message_bytes(tokens, sequences, drafts, stream))
            traffic = point_to_point(self.question.cluster, pair[0], pair[1], size_bytes)
            taken_s += len(works) * (traffic.latency_s + traffic.fluid_s)
        return taken_s

    @once
    def _ends(self) -> tuple[int, int]:
        """The verifying GPU farthest from its drafting one, and that one."""
        first, mesh = draft_pool.verifying(self.pool), self.programs.mesh
        replica = mesh.positions["dp"]
        ranks = [int(np.flatnonzero(replica == number)[0]) for number in range(self.pool.dp)]
        size, cluster = draft_pool.size(self.pool), self.question.cluster
        pairs = [(ranks[number], ranks[first + number % size]) for number in range(first)]
        return max(pairs, key=lambda pair: point_to_point(cluster, pair[0], pair[1], 1).latency_s)

    def decode_each_s(self, works: Sequence[StepWork], steps: int) -> Floats:
        return np.array([self.seconds([work.later(more) for work in works]) for more in range(steps)])

    def breakdown(self, work: StepWork) -> dict[str, float]:
        """Parts of a step in which every replica has this work; its wait for drafts is one part."""
        parts = super().breakdown(work)
        whole_s = self._together([work] * self._verifying)
        return parts | {ELSEWHERE: max(0.0, whole_s - sum(parts.values()))}

    def range_of(self, work: StepWork) -> tuple[float, float]:
        """The range of the same work with the drafter on the same GPUs."""
        both = costs.costs_of(self.question, self.plan, speculation=self.speculation)
        return both.range_of(work)

    def check(self, samples: int = 50, seed: int = 0) -> Deviation:
        """The check of the verifying replicas' steps."""
        return self._verify.check(samples, seed)

    @once
    def capacity(self) -> Capacity:
        """Capacity of a verifying replica, limited by its part of the drafting replica's cache."""
        own = capacity_of(self.programs.decoding((1,)), self.question.device.visible_memory_bytes)
        drafter = capacity_of(self._drafts.job, self.question.device.visible_memory_bytes)
        length = self._longest
        share = drafter.sessions(length) / (self._verifying * own.sessions(length)) if own.sessions(length) else 1.0
        if share >= 1.0:
            return own
        stages = [replace(stage, budget=Budget(*(share * size for size in stage.budget))) for stage in own.stages]
        return replace(own, stages=tuple(stages))

    @once
    def notes(self) -> tuple[str, ...]:
        drafting = StepPrograms(self.question, self.pool, self.speculation).decoding((1,))
        several = f"the {self._verifying} replicas that one drafts for begin every step together"
        return (*draft_pool.notes(drafting), *((several,) if self._verifying > 1 else ()))


def joined(works: Iterable[StepWork]) -> StepWork:
    """The work of several replicas as one."""
    every = [work for work in works if work.tokens]
    if len(every) == 1:
        return every[0]
    return StepWork.counted(
        tuple(chunk for work in every for chunk in work.chunks),
        max((work.query_len for work in every), default=1),
        sum(work.sequences for work in every),
        sum(work.context_tokens for work in every),
        max((work.longest for work in every), default=0),
        lambda: tuple(context for work in every for context in work.contexts),
    )


def halves(work: StepWork) -> tuple[StepWork, StepWork]:
    """Every other prompt and every other decoding sequence, longest first; each half gets one of two odd ones."""
    contexts, odd = sorted(work.contexts, reverse=True), len(work.chunks) % 2
    first = StepWork(work.chunks[::2], contexts[odd::2], work.query_len)
    return first, StepWork(work.chunks[1::2], contexts[1 - odd :: 2], work.query_len)


def costs_of(
    question: Question, plan: Plan, *, speculation: Speculation | None = None, num_gpu_blocks: int | None = None
) -> ProgramCosts:
    """The costs of a plan's steps for any kind of drafter (:func:`.costs.costs_of`)."""
    if speculation is None or not draft_pool.size(plan):
        return costs.costs_of(question, plan, speculation=speculation, num_gpu_blocks=num_gpu_blocks)
    key: tuple[Hashable, ...] = (*costs.content(question, plan), speculation, num_gpu_blocks)
    return costs.kept(
        question,
        "pooled drafts",
        key,
        lambda: PooledDraftCosts(question, plan, speculation=speculation, num_gpu_blocks=num_gpu_blocks),
    )
