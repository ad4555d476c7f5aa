"""TensorRT-LLM: prompts and decodes in one step; by default no request is admitted that might be evicted.

Source: NVIDIA/TensorRT-LLM, tensorrt_llm/llmapi/llm_args.py, cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp and
microBatchScheduler.cpp, tensorrt_llm/_torch/pyexecutor/py_executor.py (_balance_adp_requests, _waiting_requests).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt, StrictBool

from ...base.errors import InputError
from ...scenario.section import Section
from ..blocks import NO_MATCH, Match
from ..rank_scheduler import RankScheduler, StepPlan
from ..requests import Request
from ..sequence import Sequence
from ..settings import Settings
from .base import Policy, ReplicaGroup, RunGroups
from .budget import BudgetScheduler


class AttentionDpOptions(Section):
    """``attention_dp_config``: whether attention replicas begin prompts together."""

    enable_balance: StrictBool = Field(False, description="prompts wait until every replica has one")
    timeout_iters: NonNegativeInt = Field(50, description="most steps that they wait")
    batching_wait_iters: NonNegativeInt = Field(10, description="further steps, to gather more prompts")


class MambaStateOptions(Section):
    """``mamba_state_config`` of ``kv_cache_config``: where states of linear attention are stored."""

    periodic_snapshot_interval: NonNegativeInt = Field(
        0, description="tokens between stored states of a prompt, where chunks end; 0: none, and no prefix is reused"
    )


class TrtllmOptions(Section):
    """Options of TensorRT-LLM by their real names."""

    max_batch_size: PositiveInt = Field(2048, description="requests that run at once")
    max_num_tokens: PositiveInt = Field(8192, description="tokens of a step")
    enable_chunked_prefill: StrictBool = Field(False, description="a prompt may be computed in several steps")
    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"] = Field(
        "GUARANTEED_NO_EVICT", description="reserve all outputs at admission, or only the next step"
    )
    enable_block_reuse: StrictBool = Field(True, description="blocks of equal beginnings are shared")
    disable_overlap_scheduler: StrictBool = Field(False, description="steps are not planned ahead")
    tokens_per_block: PositiveInt = Field(32, description="tokens of a block of the cache")
    mamba_state_config: MambaStateOptions = MambaStateOptions()
    attention_dp_config: AttentionDpOptions = AttentionDpOptions()
    batch_wait_timeout_iters: NonNegativeInt = Field(
        0, description="steps that prompts wait for others during decoding; 0: none"
    )
    batch_wait_max_tokens_ratio: float = Field(
        0.0, ge=0.0, le=1.0, description="share of max_num_tokens that ends the wait; 0: no wait"
    )

    @property
    def evicts(self) -> bool:
        """Whether a request may be evicted before it has ended."""
        return self.capacity_scheduler_policy == "MAX_UTILIZATION"


class TrtllmScheduler(BudgetScheduler):
    """With GUARANTEED_NO_EVICT a request is admitted if its prompt and all its outputs fit beside the reservations of
    others; with MAX_UTILIZATION if its next step fits, and the last admitted request pauses when a step does not."""

    def __init__(self, settings: Settings) -> None:
        options = settings.options
        assert isinstance(options, TrtllmOptions)
        overlap = not options.disable_overlap_scheduler
        if settings.states is not None:
            every = options.mamba_state_config.periodic_snapshot_interval // settings.block_tokens
            states = replace(settings.states, at="every", every=every)
            settings = Settings(options, settings.kv_tokens, settings.block_tokens, settings.speculation, states)
        super().__init__(settings, enable_prefix_caching=options.enable_block_reuse, overlap=overlap, wastes=overlap)
        self.budget, self.max_num_seqs = options.max_num_tokens, options.max_batch_size
        self.most, self.chunked = self.budget, options.enable_chunked_prefill
        self.unit = options.tokens_per_block
        self._evicts = options.evicts
        self._promised = 0

    def _piece(self, sequence: Sequence, computed: int, budget: int) -> int:
        """Chunks end where a state is stored, with chunked prefill or without (calc_next_context_chunk_size)."""
        tokens = super()._piece(sequence, computed, budget)
        if self.states is None or not self.states.every or self.prefixes is None:
            return tokens
        every = self.states.every * self.block
        return min(tokens, every - computed % every)

    def has_room(self, sequence: Sequence, tokens: int, match: Match) -> bool:
        if self._evicts:
            return self.blocks_to(sequence, tokens, match) <= self.pool.free
        # Shared blocks stay with their users when the sequence that computed them has left.
        saved = self.prefixes.saved if self.prefixes is not None else 0
        promised = self._promised - saved + self._promise(sequence) - match.blocks + match.idle
        return promised <= self.pool.capacity

    def _promise(self, sequence: Sequence) -> int:
        """Blocks up to its end."""
        request = sequence.request
        tokens = request.prompt_tokens + request.output_tokens + self.slack
        return -(-(tokens + self.slack) // self.block) + self.state_blocks

    def admit(self, sequence: Sequence, match: Match = NO_MATCH) -> None:
        sequence.promised = self._promise(sequence)
        self._promised += sequence.promised
        super().admit(sequence, match)

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self._promised -= sequence.promised

    def computed_more(self, sequence: Sequence) -> None:
        self.remember(sequence, sequence.computed)

    def could_begin(self) -> bool:
        """Whether a prompt would be computed in the next step."""
        if self.prefilling:
            return True
        if not self.waiting or len(self.running) >= self.max_num_seqs:
            return False
        sequence = self.waiting[0]
        match = self.find(sequence)
        computed = self.computed_by(sequence, match)
        tokens = self._piece(sequence, computed, self.budget - self.decoders.count * self.query_len)
        return tokens > 0 and self.has_room(sequence, computed + tokens, match)

    def prompts_to_begin(self) -> int:
        """Tokens of the prompts that would be computed in the next step, whole ones as the engine counts; only the
        first is checked for memory."""
        left = self.budget - self.decoders.count * self.query_len
        tokens_to_begin = 0
        for sequence in self.prefilling.values():
            left -= self._piece(sequence, sequence.computed, left)
            tokens_to_begin += sequence.target
        places = self.max_num_seqs - len(self.running)
        for sequence in islice(self.waiting, max(0, places)) if self.could_begin() else ():
            tokens = self._piece(sequence, self.computed_by(sequence, self.find(sequence)), left)
            if tokens <= 0:
                break
            left -= tokens
            tokens_to_begin += sequence.target
        return tokens_to_begin


class TrtllmGroup(ReplicaGroup):
    """Attention replicas that, with ``enable_balance``, begin prompts together: a replica that could run a prompt
    beside its decodes waits until all have one, so that no step is long for one replica only. A lone replica lets
    prompts wait for others with ``batch_wait_timeout_iters``."""

    def __init__(self, settings: Settings, scheduler: type[RankScheduler], count: int) -> None:
        super().__init__(settings, scheduler, count)
        options = settings.options
        assert isinstance(options, TrtllmOptions)
        self._options = options.attention_dp_config
        self._batch_wait = options.batch_wait_timeout_iters
        self._enough = options.batch_wait_max_tokens_ratio * options.max_num_tokens
        self._waited = self._batched = 0

    def schedule(self) -> list[StepPlan]:
        if len(self.schedulers) == 1 and self._batch_wait and self._enough:
            return self._schedule_batches()
        if not self._options.enable_balance or len(self.schedulers) == 1:
            return super().schedule()
        schedulers = [scheduler for scheduler in self.schedulers if isinstance(scheduler, TrtllmScheduler)]
        for scheduler in schedulers:
            scheduler.still = False
        could = [scheduler.could_begin() for scheduler in schedulers]
        still = any(could) and self._wait(schedulers, all(could))
        for scheduler in schedulers:
            scheduler.still = still
        plans = super().schedule()
        for plan in plans:
            plan.again = plan.again and not still
        return plans

    def _schedule_batches(self) -> list[StepPlan]:
        """Prompts pause beside decodes until there are enough, or time is over (py_executor.py, _waiting_requests)."""
        (scheduler,) = self.schedulers
        assert isinstance(scheduler, TrtllmScheduler)
        scheduler.still = False
        prompts = scheduler.prompts_to_begin() if scheduler.decoders.count else 0
        tokens = prompts + scheduler.decoders.count * scheduler.query_len
        if prompts and self._waited < self._batch_wait and tokens < self._enough:
            self._waited += 1
            scheduler.still = True
        elif prompts:
            self._waited = 0
        plans = super().schedule()
        for plan in plans:
            plan.again = plan.again and not scheduler.still
        return plans

    def _wait(self, schedulers: list[TrtllmScheduler], all_could: bool) -> bool:
        """Whether prompts pause in this step."""
        all_decode = all(scheduler.decoders.count for scheduler in schedulers)
        if all_could and all(scheduler.decoders.count < scheduler.max_num_seqs for scheduler in schedulers):
            self._waited = 0
            if all_decode and self._batched < self._options.batching_wait_iters:
                self._batched += 1
                return True
            self._batched = 0
            return False
        self._waited += 1
        if self._waited >= self._options.timeout_iters or not all_decode:
            self._waited = 0
            return False
        return True


class TrtllmPolicy(Policy):
    def check(self, settings: Settings, request: Request) -> None:
        super().check(settings, request)
        options = settings.options
        assert isinstance(options, TrtllmOptions)
        tokens, blocks = request.prompt_tokens + request.output_tokens, settings.capacity_blocks
        evicts = options.evicts
        longest = tokens - 1 if evicts and blocks is not None else request.prompt_tokens
        if not options.enable_chunked_prefill and longest > options.max_num_tokens:
            problem = f"{longest} tokens to compute at once are more than max_num_tokens"
            raise InputError(f"{problem} ({options.max_num_tokens}) and enable_chunked_prefill is off")
        if options.enable_chunked_prefill and options.tokens_per_block > options.max_num_tokens:
            raise InputError("a block is more than a step computes", key="max_num_tokens")
        slack = 0 if settings.speculation is None else 2 * settings.speculation.drafts
        if not evicts and blocks is not None and -(-(tokens + slack) // settings.block_tokens) > blocks:
            room = f"{blocks * settings.block_tokens} (kv_tokens)"
            raise InputError(f"{tokens} tokens of a prompt and its outputs never fit: there are {room}")


TRTLLM = TrtllmPolicy(
    "trtllm",
    TrtllmOptions,
    TrtllmScheduler,
    "tokens_per_block",
    "max_num_tokens",
    "max_batch_size",
    TrtllmGroup,
    chunk_option="enable_chunked_prefill",
    switch=("enable_block_reuse", False),
    groups=RunGroups("dense vLLM and TensorRT-LLM", "TensorRT-LLM experts"),
    checkpoint_cache="fp8",
)
