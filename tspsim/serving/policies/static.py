"""A static batcher, as served models before iteration-level scheduling (Yu et al. 2022, Orca): for teaching.

It waits for a full batch, or for as long as the first may wait; computes all prompts in one step; then all decode until
the last of them has ended, those that ended before being computed all the same.
"""

from __future__ import annotations

from math import inf

from pydantic import Field, NonNegativeFloat, PositiveInt, StrictBool

from ...scenario.section import Section
from ..lane import Lane, StepPlan
from ..sequence import Sequence
from ..settings import Settings
from .base import Policy


class StaticOptions(Section):
    """Options of the static batcher."""

    max_batch_size: PositiveInt = Field(8, description="requests of a batch")
    batch_timeout_s: NonNegativeFloat = Field(1.0, description="seconds that the first waits for a full batch")
    pad: StrictBool = Field(True, description="what has ended is computed until the batch ends")
    block_size: PositiveInt = Field(1, description="tokens of a block of the cache")


class StaticLane(Lane):
    """Batches one after another, first come, first served; each has blocks for all it will ever need."""

    def __init__(self, settings: Settings) -> None:
        options = settings.options
        assert isinstance(options, StaticOptions)
        super().__init__(settings)
        self._seats, self._patience_s, self._pads = options.max_batch_size, options.batch_timeout_s, options.pad
        self._settings = settings

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        if self.decoders.count:
            self.decode(plan)
        elif self.waiting and (len(self.waiting) >= self._seats or self.wake_s() <= self.now_s):
            self._begin(plan)
        return plan

    def seen_after(self, steps: int) -> int | None:
        return None if self.running else steps

    def wake_s(self) -> float:
        return inf if self.running or not self.waiting else self.waiting[0].arrived_s + self._patience_s

    def _begin(self, plan: StepPlan) -> None:
        """As many prompts as there are seats, and blocks to their ends."""
        promised = 0
        while self.waiting and len(self.running) < self._seats:
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


STATIC = Policy("static", StaticOptions, StaticLane, "block_size", "", "max_batch_size", in_batches=True)
