"""vLLM V1: one budget of tokens a step, those that run first, then those that wait, first come first served.

Source: vllm-project/vllm, vllm/v1/core/sched/scheduler.py and vllm/config/scheduler.py (read at 00024d3).
"""

from __future__ import annotations

from pydantic import Field, PositiveInt, StrictBool

from ...errors import InputError
from ...scenario.section import Section
from ..lane import Lane, Sequence, StepPlan
from ..requests import Request
from ..settings import Settings
from .base import Policy


class VllmOptions(Section):
    """Options of vLLM by their real names."""

    max_num_batched_tokens: PositiveInt = Field(8192, description="tokens of a step")
    max_num_seqs: PositiveInt = Field(256, description="requests that run at once")
    enable_chunked_prefill: StrictBool = Field(True, description="a prompt may be computed in several steps")
    long_prefill_token_threshold: int = Field(0, ge=0, description="most of a prompt in a step; 0: no such limit")
    scheduler_reserve_full_isl: StrictBool = Field(True, description="admit only what has room for its whole prompt")
    enable_prefix_caching: StrictBool = Field(True, description="blocks of equal beginnings are shared")
    async_scheduling: StrictBool = Field(False, description="a step is planned while the one before runs")
    block_size: PositiveInt = Field(16, description="tokens of a block of the cache")


class VllmLane(Lane):
    """Running requests in order of admission, each one token or as much of its prompt as the budget allows; a request
    without a block takes it from the last; then, if none was preempted, waiting ones until the first that has no room.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        options = settings.options
        assert isinstance(options, VllmOptions)
        self._budget = options.max_num_batched_tokens
        self._seats = options.max_num_seqs
        self._threshold = options.long_prefill_token_threshold or self._budget
        self._chunked = options.enable_chunked_prefill
        self._whole = options.scheduler_reserve_full_isl
        self.overlap = options.async_scheduling

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        budget = self._continue(plan)
        if budget is None:
            budget, preempted = self._one_by_one(plan)
            plan.again = not preempted
            if preempted:
                return plan
        self._admit(plan, budget)
        return plan

    def _continue(self, plan: StepPlan) -> int | None:
        """All that run go on, if the budget and the blocks last for all: the budget that is left; else None."""
        budget = self._budget - self.decoding * self.queries
        blocks = self.decode_blocks()
        if self.prefilling:
            if budget < 0 or not self._decoders_come_first():
                return None
            for sequence in self.prefilling.values():
                tokens = min(sequence.target - sequence.computed, self._threshold, budget)
                if tokens == 0:
                    break
                budget -= tokens
                blocks += self.blocks_to(sequence, sequence.computed + tokens)
                plan.chunks.append((sequence, tokens))
        if budget < 0 or blocks > self.pool.free:
            plan.chunks.clear()
            return None
        for sequence, tokens in plan.chunks:
            self.hold(sequence, sequence.computed + tokens)
        plan.decodes = self.decoding > 0
        self.take_decode_blocks()
        return budget

    def _decoders_come_first(self) -> bool:
        """Whether nothing that decodes was admitted behind a prompt that is not computed."""
        left = len(self.prefilling)
        for sequence in reversed(self.running.values()):
            if left == 0:
                return True
            if sequence.decoding:
                return False
            left -= not sequence.ended
        return True

    def _one_by_one(self, plan: StepPlan) -> tuple[int, bool]:
        """All that run go on in order, while budget and blocks last: what is left of the budget, and whether any was
        preempted."""
        order = [sequence for sequence in self.running.values() if not sequence.ended]
        budget, free, preempted, index = self._budget, self.pool.free, False, 0
        while index < len(order) and budget > 0:
            sequence = order[index]
            tokens = min(sequence.target - sequence.computed, self._threshold, budget)
            blocks = self._blocks_of(sequence, tokens)
            while blocks > free:
                preempted = True
                last = order.pop()
                held = self.pool.used
                self.preempt(last)
                free += held - self.pool.used
                if last is sequence:
                    break
            if index == len(order):
                break
            free -= blocks
            if sequence.decoding:
                budget -= self.queries
            else:
                budget -= tokens
                plan.chunks.append((sequence, tokens))
            index += 1
        self._commit(plan, order[:index], order[index:])
        return max(0, budget), preempted

    def _blocks_of(self, sequence: Sequence, tokens: int) -> int:
        if sequence.decoding:
            return self.decode_blocks_of(sequence)
        return self.blocks_to(sequence, sequence.computed + tokens)

    def _commit(self, plan: StepPlan, scheduled: list[Sequence], others: list[Sequence]) -> None:
        for sequence, tokens in plan.chunks:
            self.hold(sequence, sequence.computed + tokens)
        plan.stalled = [sequence for sequence in others if sequence.decoding]
        for sequence in plan.stalled:
            self.stall(sequence)
        plan.decodes = any(sequence.decoding for sequence in scheduled)
        self.take_decode_blocks()

    def _admit(self, plan: StepPlan, budget: int) -> None:
        """Waiting requests, while there are budget, seats and blocks."""
        while self.waiting and budget > 0 and len(self.running) < self._seats:
            sequence = self.waiting[0]
            computed = min(sequence.given, sequence.target - 1)
            tokens = min(sequence.target - computed, self._threshold)
            if tokens > budget and not self._chunked:
                break
            tokens = min(tokens, budget)
            needed = self.blocks_to(sequence, sequence.target if self._whole else computed + tokens)
            if needed > self.pool.free:
                break
            self.admit(sequence, computed)
            self.hold(sequence, computed + tokens)
            budget -= tokens
            plan.chunks.append((sequence, tokens))


class VllmPolicy(Policy):
    def check(self, settings: Settings, request: Request) -> None:
        super().check(settings, request)
        options = settings.options
        assert isinstance(options, VllmOptions)
        if not options.enable_chunked_prefill and request.prompt_tokens > options.max_num_batched_tokens:
            problem = f"a prompt of {request.prompt_tokens} tokens is more than max_num_batched_tokens"
            raise InputError(f"{problem} ({options.max_num_batched_tokens}) and enable_chunked_prefill is off")


VLLM = VllmPolicy("vllm", VllmOptions, VllmLane, "block_size")
