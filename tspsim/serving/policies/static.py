"""A static batcher, as before iteration-level scheduling (Yu et al. 2022, Orca): for teaching.

It waits for a full batch, or for a limited time; computes all prompts in one step; then all decode until the last has
ended, with ended sequences computed as padding.
"""

from __future__ import annotations

from math import inf

from pydantic import Field, NonNegativeFloat, PositiveInt, StrictBool

from ...scenario.section import Section
from ..rank_scheduler import RankScheduler, StepPlan
from ..sequence import Sequence
from ..settings import Settings
from .base import Policy


class StaticOptions(Section):
    """Options of the static batcher."""

    max_batch_size: PositiveInt = Field(8, description="requests of a batch")
    batch_timeout_s: NonNegativeFloat = Field(1.0, description="seconds that the first request waits for a full batch")
    pad: StrictBool = Field(True, description="ended sequences are computed until the batch ends")
    block_size: PositiveInt = Field(1, description="tokens of a block of the cache")


class StaticScheduler(RankScheduler):
    """Batches one after another, first come, first served; each request has all its blocks from the start."""

    def __init__(self, settings: Settings) -> None:
        options = settings.options
        assert isinstance(options, StaticOptions)
        super().__init__(settings)
        self._max_num_seqs, self._patience_s, self._pads = options.max_batch_size, options.batch_timeout_s, options.pad
        self._settings = settings

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        if self.decoders.count:
            self.decode(plan)
        elif self.waiting and (len(self.waiting) >= self._max_num_seqs or self.wake_s() <= self.now_s):
            self._begin(plan)
        return plan

    def seen_after(self, steps: int) -> int | None:
        return None if self.running else steps

    def wake_s(self) -> float:
        return inf if self.running or not self.waiting else self.waiting[0].arrived_s + self._patience_s

    def _begin(self, plan: StepPlan) -> None:
        """Admits prompts while there are places, and blocks to their ends."""
        promised = 0
        while self.waiting and len(self.running) < self._max_num_seqs:
            sequence = self.waiting[0]
            promised += -(-self._settings.most_tokens(sequence.request) // self.block) + self.state_blocks
            if promised > self.pool.capacity:
                break
            self.admit(sequence)
            self.hold(sequence, sequence.target)
            plan.chunks.append((sequence, sequence.target - sequence.computed))

    def padded(self) -> list[Sequence]:
        return self.lingering if self._pads else []

    def leave(self, sequence: Sequence) -> None:
        self.lingering.append(sequence)
        if len(self.lingering) == len(self.running):
            self.let_go()


STATIC = Policy("static", StaticOptions, StaticScheduler, "block_size", "", "max_batch_size", in_batches=True)
