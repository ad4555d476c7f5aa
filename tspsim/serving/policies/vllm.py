"""vLLM V1: one token budget per step, preemption by recomputation, a prefix cache.

Source: vllm-project/vllm, vllm/v1/core/sched/scheduler.py, vllm/v1/core/kv_cache_manager.py, vllm/config/scheduler.py
(read at 00024d3; the long-prefill threshold and its exception, since 0.31.0, at 0.33.0, scheduler.py:754 to 769).
"""

from __future__ import annotations

from pydantic import Field, PositiveInt, StrictBool

from ...base.errors import InputError
from ...scenario.section import Section
from ..blocks import Match
from ..rank_scheduler import StepPlan
from ..requests import Request
from ..sequence import Sequence
from ..settings import Settings
from .base import Policy, RunGroups
from .budget import BudgetScheduler


class VllmOptions(Section):
    """Options of vLLM by their real names."""

    max_num_batched_tokens: PositiveInt = Field(8192, description="tokens of a step")
    max_num_seqs: PositiveInt = Field(256, description="requests that run at once")
    enable_chunked_prefill: StrictBool = Field(True, description="a prompt may be computed in several steps")
    long_prefill_token_threshold: int = Field(
        0, ge=0, description="most tokens of a prompt in a step beside other requests; 0: no limit"
    )
    long_prefill_token_threshold_adaptive: StrictBool = Field(
        False, description="at least an equal share of the step's tokens"
    )
    scheduler_reserve_full_isl: StrictBool = Field(True, description="admit only requests whose whole prompt fits")
    enable_prefix_caching: StrictBool = Field(True, description="blocks of equal prefixes are shared")
    async_scheduling: StrictBool = Field(False, description="steps are planned while the one before runs")
    block_size: PositiveInt = Field(16, description="tokens of a block of the cache")


class VllmScheduler(BudgetScheduler):
    """A waiting request is admitted if its whole prompt fits, though it takes only the blocks of its first chunk.
    Requests admitted later in the same step can reuse what the step computes."""

    def __init__(self, settings: Settings) -> None:
        options = settings.options
        assert isinstance(options, VllmOptions)
        enable_prefix_caching, overlap = options.enable_prefix_caching, options.async_scheduling
        super().__init__(settings, enable_prefix_caching=enable_prefix_caching, in_turn=True, overlap=overlap)
        self.budget, self.max_num_seqs = options.max_num_batched_tokens, options.max_num_seqs
        self._threshold = options.long_prefill_token_threshold
        self._adaptive = options.long_prefill_token_threshold_adaptive
        self.most = self.budget
        self.chunked = options.enable_chunked_prefill
        self._splits = self.prefixes is not None and self.states is not None
        self._whole = options.scheduler_reserve_full_isl

    def schedule(self) -> StepPlan:
        if self._splits and self.prefixes is not None:
            self.prefixes.new_step()
        if self._threshold:
            self.most = self._most_of_a_prompt(self.present - len(self.mailbox) - len(self.noted))
        return super().schedule()

    def _most_of_a_prompt(self, eligible: int) -> int:
        """The threshold reserves tokens for others: a lone request has the whole budget."""
        if eligible <= 1:
            return self.budget
        return max(self._threshold, self.budget // eligible) if self._adaptive else self._threshold

    def _piece(self, sequence: Sequence, computed: int, budget: int) -> int:
        """States are stored at the end of a step: chunks end at blocks; one ends at the prompt's last block, unless a
        kernel writes the state there from inside, and one where another prompt diverged (_mamba_block_aligned_split). A
        chunk within a block goes as far as possible."""
        tokens = super()._piece(sequence, computed, budget)
        if not self._splits or self.states is None or tokens == 0:
            return tokens
        block, end = self.block, computed + tokens
        last = (sequence.target - 1) // block * block
        if end < sequence.target:
            aligned = end // block * block
            end = aligned if aligned > computed or block <= min(self.budget, self.most) else end
        inside = self.states.inside and computed % block == 0 and computed + block <= last
        if end < sequence.target or not inside:
            following = (computed // block + 1) * block if computed % block else last
            end = min((stop for stop in (following, last) if computed < stop < end), default=end)
        junction = 0 if sequence.trail is None else sequence.trail.junction * block
        return (junction if computed < junction < end else end) - computed

    def has_room(self, sequence: Sequence, tokens: int, match: Match) -> bool:
        # A state of the step being planned is not stored yet (MambaManager.get_num_blocks_to_allocate).
        if match.fresh:
            return False
        return self.blocks_to(sequence, sequence.target if self._whole else tokens, match) <= self.pool.free

    def _hold(self, sequence: Sequence, tokens: int) -> None:
        self.hold(sequence, tokens)
        self.remember(sequence, tokens)


class VllmPolicy(Policy):
    def check(self, settings: Settings, request: Request) -> None:
        super().check(settings, request)
        options = settings.options
        assert isinstance(options, VllmOptions)
        # Recomputed after a preemption, a request has its prompt and all outputs but the last.
        again = 0 if settings.kv_tokens is None else request.output_tokens - 1
        longest = request.prompt_tokens + again
        if not options.enable_chunked_prefill and longest > options.max_num_batched_tokens:
            problem = f"{longest} tokens to compute at once are more than max_num_batched_tokens"
            raise InputError(f"{problem} ({options.max_num_batched_tokens}) and enable_chunked_prefill is off")


VLLM = VllmPolicy(
    "vllm",
    VllmOptions,
    VllmScheduler,
    "block_size",
    "max_num_batched_tokens",
    "max_num_seqs",
    chunk_option="enable_chunked_prefill",
    switch=("enable_prefix_caching", False),
    groups=RunGroups("dense vLLM and TensorRT-LLM", "vLLM experts", "MI355X plug-in"),
    token_each=True,  # engine/arg_utils.py: min(max_num_seqs, max_num_batched_tokens); config/scheduler.py raises
)
