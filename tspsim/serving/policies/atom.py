"""ATOM on AMD Instinct: prompts first, as many as a budget allows, then all decode; preemption by recomputation.

Source: ROCm/ATOM, atom/model_engine/scheduler.py (read at 000acd9) and arg_utils.py (prefix caching is on by default
since pull request 762 of May 2026). As a plug-in of vLLM its kernels run under vLLM's scheduler.
"""

from __future__ import annotations

import sys

from pydantic import Field, NonNegativeInt, PositiveInt, StrictBool

from ...scenario.section import Section
from ..rank_scheduler import RankScheduler, StepPlan
from ..sequence import Sequence
from ..settings import Settings
from .base import Policy, RunGroups

#: A chunk that is not a prompt's last has a multiple of this number of tokens, or of a block if that is more.
ALIGNED = 64


class AtomOptions(Section):
    """Options of ATOM by their real names."""

    max_num_batched_tokens: PositiveInt = Field(16384, description="tokens of a step")
    max_num_seqs: PositiveInt = Field(512, description="requests that run at once")
    enable_chunked_prefill: StrictBool = Field(True, description="a prompt may be computed in several steps")
    long_prefill_token_threshold: NonNegativeInt = Field(0, description="most of a prompt in a step; 0: no such limit")
    enable_prefix_caching: StrictBool = Field(True, description="blocks of equal beginnings are shared")
    block_size: PositiveInt = Field(16, description="tokens of a block of the cache")


class AtomScheduler(RankScheduler):
    """A step computes prompts, begun ones first; otherwise all decode by one token. A request takes blocks for its
    whole prompt at admission; one without a block later preempts the last."""

    def __init__(self, settings: Settings) -> None:
        options = settings.options
        assert isinstance(options, AtomOptions)
        super().__init__(settings, enable_prefix_caching=options.enable_prefix_caching, in_turn=True)
        self._budget, self._max_num_seqs = options.max_num_batched_tokens, options.max_num_seqs
        self._most = options.long_prefill_token_threshold or sys.maxsize
        self._chunked = options.enable_chunked_prefill
        self._unit = max(self.block, ALIGNED)

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        self._compute_prompts(plan)
        if self.decoders.count and not self.begins(plan):
            self._decode(plan)
        return plan

    def _compute_prompts(self, plan: StepPlan) -> None:
        left = self._budget
        for sequence in self.prefilling.values():
            tokens = min(sequence.target - sequence.computed, self._most, left)
            if tokens <= 0:
                return
            left -= tokens
            plan.chunks.append((sequence, tokens))
        while (
            self.waiting
            and left > 0
            and len(self.running) < self._max_num_seqs
            and len(plan.chunks) < self._max_num_seqs
        ):
            sequence = self.waiting[0]
            match = self.find(sequence)
            if self.blocks_to(sequence, sequence.target, match) > self.pool.free:
                return
            tokens = self._piece(sequence.target - self.computed_by(sequence, match), left)
            if tokens > left and plan.chunks:
                return
            self.admit(sequence, match)
            self.hold(sequence, sequence.target)
            self.remember(sequence, sequence.target)
            left -= tokens
            plan.chunks.append((sequence, tokens))

    def _piece(self, rest: int, left: int) -> int:
        """Tokens of a prompt in a step; a lone prompt that is not chunked may exceed the budget."""
        if not self._chunked:
            return rest
        tokens = min(rest, self._most)
        if tokens <= left:
            return tokens
        return left // self._unit * self._unit or left

    def _decode(self, plan: StepPlan) -> None:
        fitting = self._budget // self.query_len - len(plan.chunks)
        short = self.decoders.blocks() > self.pool.free
        self.decode(plan, self._one_by_one(plan, fitting) if short or self.decoders.count > fitting else [])

    def _one_by_one(self, plan: StepPlan, fitting: int) -> list[Sequence]:
        """All decoding sequences advance in order while blocks last; returns those for which they do not."""
        order = [sequence for sequence in self.running.values() if sequence.decoding]
        free, index = self.pool.free, 0
        while index < min(len(order), fitting):
            blocks = self.decoders.blocks_of(order[index])
            while blocks > free and index < len(order):
                before = self.pool.used
                self.preempt(order.pop())
                free += before - self.pool.used
                plan.again = False
            if index < len(order):
                free -= blocks
                index += 1
        return order[index:]


ATOM = Policy(
    "atom",
    AtomOptions,
    AtomScheduler,
    "block_size",
    "max_num_batched_tokens",
    "max_num_seqs",
    chunk_option="enable_chunked_prefill",
    switch=("enable_prefix_caching", False),
    groups=RunGroups("dense vLLM and TensorRT-LLM", "TensorRT-LLM experts", "MI355X ATOM"),
)
