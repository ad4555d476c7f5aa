"""SGLang: prompts first, decodes pause meanwhile; a radix cache; admission by an estimate of future outputs.

Source: sgl-project/sglang, python/sglang/srt/managers/scheduler.py, schedule_policy.py (PrefillAdder, read at 00550cd;
at 0.5.23 where ends are ignored: line 787, since 0.5.22, and without a radix cache 1241, in all), schedule_batch.py
(retract_decode), scheduler_recv_skipper.py, server_args.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import cycle
from typing import Annotated, Any

from numpy.random import default_rng
from pydantic import Field, PositiveFloat, PositiveInt, StrictBool

from ...base.errors import InputError
from ...base.strict import OneOf
from ...scenario.section import Section
from ..blocks import Match
from ..rank_scheduler import RankScheduler, StepPlan
from ..requests import Request
from ..sequence import Sequence
from ..settings import Settings
from .base import Policy, ReplicaGroup, RunGroups

#: Most outputs per request in admission's estimate (SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION).
CLIP = 4096
#: Share of future outputs reserved at admission: its initial value, its least value relative to that, and decode steps
#: between them (SGLANG_INIT_NEW_TOKEN_RATIO, ..._MIN_NEW_TOKEN_RATIO_FACTOR, ..._NEW_TOKEN_RATIO_DECAY_STEPS).
FIRST_RATIO, LEAST_RATIO, DECAY_STEPS = 0.7, 0.14, 600
#: Steps that must fit after a retraction (SGLANG_RETRACT_DECODE_STEPS).
ROOM_STEPS = 20
#: Tokens per request that admission leaves free where ends are ignored (IGNORE_EOS_RESERVE_TOKENS).
RESERVED = 1
#: With more waiting requests they are not sorted by cached prefix.
MOST_SORTED = 128


#: Requests at once in an attention replica where none are stated: the engine's least number for any cache
#: (model_executor/pool_configurator.py).
USUAL_REQUESTS = 2048
#: Factor on schedule_conservativeness where attention replicas step together (server_args.py:1497 at 0.5.6,
#: arg_groups/parallel_hook.py:318 at 0.5.23).
REPLICAS_DARE = 0.3


#: Default of ``load_balance_method``.
AUTO = "auto"
#: Attention backend → tokens of its pages, where it requires a size (arg_groups/overrides.py:1145 to 1198 and 1295 of
#: 0.5.23, which no longer has cutlass_mla with pages of 128).
PAGES = {
    "flashmla": 64, "trtllm_mla": 64, "cutedsl_mla": 64, "trtllm_mha": 64, "hpc_ops": 64,
    "fa4": 128, "dsa": 64, "dsv4": 256, "fa3": 1, "flashinfer": 1, "triton": 1, "aiter": 1,
}  # fmt: skip


class SglangOptions(Section):
    """Options of SGLang by their real names."""

    chunked_prefill_size: int = Field(
        8192, ge=-1, description="tokens of prompts in a step, of all attention replicas; -1: no chunked prefill"
    )
    max_prefill_tokens: PositiveInt = Field(16384, description="tokens of prompts in a step, unless one is longer")
    max_running_requests: PositiveInt | None = Field(
        None, description="requests that run at once, in all attention replicas; none: 2048 in each"
    )
    page_size: PositiveInt = Field(1, description="tokens of a block of the cache")
    attention_backend: Annotated[str, OneOf(lambda: tuple(PAGES))] | None = Field(
        None, description="sets the page size; none: by GPU and the model's attention"
    )
    disable_radix_cache: StrictBool = Field(False, description="no prefix caching")
    schedule_policy: Annotated[str, OneOf(lambda: tuple(ORDERS))] = Field(
        "fcfs", description="lpm: longest prefix in the cache first"
    )
    schedule_conservativeness: PositiveFloat = Field(
        1.0, description="factor on the memory reserved for future outputs"
    )
    scheduler_recv_interval: PositiveInt = Field(1, description="decode steps between two looks at new requests")
    enable_mixed_chunk: StrictBool = Field(False, description="decodes continue beside prompts")
    disable_overlap_schedule: StrictBool = Field(False, description="steps are not planned ahead")
    load_balance_method: Annotated[str, OneOf(lambda: tuple(ASSIGNMENTS))] = Field(
        AUTO, description="assignment of requests to attention replicas; auto: in turn, in a prefill pool by room"
    )


class SglangScheduler(RankScheduler):
    """If requests wait and fit, the next step computes prompts, the last of them chunked; otherwise all decode. Memory
    is reserved for a share of future outputs, which shrinks as long as no retraction happens. When the cache is full,
    requests with fewest outputs are retracted and wait behind all others."""

    def __init__(self, settings: Settings) -> None:
        options = settings.options
        assert isinstance(options, SglangOptions)
        overlap = not options.disable_overlap_schedule
        super().__init__(
            settings, enable_prefix_caching=not options.disable_radix_cache, overlap=overlap, wastes=overlap
        )
        self.late = overlap
        self._options = options
        self._max_num_seqs = options.max_running_requests or USUAL_REQUESTS
        if self.states is not None and self.states.running is not None:
            self._max_num_seqs = min(self._max_num_seqs, self.states.running)
        self._chunk = options.chunked_prefill_size if options.chunked_prefill_size > 0 else None
        self._interval = options.scheduler_recv_interval
        self._first_ratio = min(1.0, FIRST_RATIO * options.schedule_conservativeness)
        self._least_ratio = self._first_ratio * LEAST_RATIO
        self._ratio, self._decayed = self._first_ratio, 0
        #: Decode steps since the last look at new requests.
        self._unseen = 0
        #: No further request fits until one leaves.
        self._full = False
        #: Places of ended sequences, free from the next decode step without them on.
        self._gone = 0
        #: _left: that step is being planned, and requests wait. _renewed: the last step had prompts of all that run.
        #: _parts: sequences that ended with the last step leave at once. _reads: the planned step reads prompts.
        self._left = self._renewed = self._parts = self._reads = False
        #: _clips: requests exceed CLIP outputs. _fixed: requests ignore ends.
        self._clips = self._fixed = False

    # --- arrivals -------------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        super().submit(sequence)
        self._clips = self._clips or sequence.request.output_tokens > CLIP
        self._fixed = self._fixed or sequence.request.ignore_eos

    def open(self, fresh: bool) -> None:
        if fresh:
            self._idles()
            return
        self.waiting.extend(self.noted)
        self.noted.clear()
        if self._unseen >= self._interval:
            self._unseen = 0
            if self.overlap:
                self.noted, self.mailbox = self.mailbox, self.noted
            else:
                self.waiting.extend(self.mailbox)
                self.mailbox.clear()

    def seen_after(self, steps: int) -> int | None:
        if self._full and not self.overlap and self._interval == 1:
            return None
        return steps + -(self._unseen + steps) % self._interval

    def steady(self) -> int:
        if self._left or self.noted or (self.lingering and self.overlap):
            return 1
        steps = self.steady_decodes()
        return max(1, min(steps, self._interval - self._unseen)) if self.mailbox else steps

    # --- a step ---------------------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        plan = StepPlan()
        decoders = self.decoders
        self._full = self._full and not self._renewed
        self._left = self._renewed = False
        if not self._full or self.prefilling:
            self._compute_prompts(plan)
        self._reads = self.begins(plan)
        if self._gone and not self._reads:
            self._leave_out()
            if not decoders.count and not plan.chunks:
                self._idles()
                self._compute_prompts(plan)
                self._reads = self.begins(plan)
        if self._reads:
            mixes = self._options.enable_mixed_chunk
            self._renewed = mixes or not decoders.count + self._gone
            self._gone = 0 if mixes else self._gone
            if mixes and decoders.count and decoders.blocks() <= self.pool.free:
                self.decode(plan)
            return plan
        if decoders.count:
            if decoders.blocks() > self.pool.free:
                self._retract()
                plan.again = False
            # Sequences that ended in the step before may still hold the missing blocks.
            if decoders.blocks() <= self.pool.free:
                self.decode(plan)
        return plan

    def _idles(self) -> None:
        """Nothing runs: all counters are reset, and all arrivals are seen."""
        self._ratio, self._decayed, self._unseen = self._first_ratio, 0, 0
        self._gone, self._full = 0, False
        self.see()

    def _leave_out(self) -> None:
        """A decode step without ended sequences: the next may admit others."""
        self._gone, self._full = 0, False
        self._left = bool(self.waiting)

    def complete(self, plan: StepPlan, steps: int) -> tuple[list[Sequence], list[Sequence]]:
        if self._reads:
            self._unseen = self._interval
        else:
            self._unseen = (self._unseen + steps - 1) % self._interval + 1
            self._decayed += steps if plan.again else 0
        # Sequences that end with a prompt leave before the next step, unless that is planned already.
        self._parts = self._reads and (plan.decodes or not self.overlap)
        return super().complete(plan, steps)

    def computed_more(self, sequence: Sequence) -> None:
        self.remember(sequence, sequence.computed)

    def left_behind(self, sequence: Sequence) -> int:
        """The radix tree gets answers only when they have ended."""
        return min(sequence.computed, sequence.target)

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        if sequence.ended and not self._parts:
            self._gone += 1
        else:
            self._full = False

    # --- prompts --------------------------------------------------------------------------------------------

    def _compute_prompts(self, plan: StepPlan) -> None:
        """The chunked prompt continues, then waiting requests are admitted while they fit."""
        mixes = self._options.enable_mixed_chunk
        decodes = (self.decoders.count + self._gone) * self.query_len if mixes else 0
        chunk_left = None if self._chunk is None else self._chunk - decodes
        input_left = self._options.max_prefill_tokens - decodes
        kept = float(decodes) + self._outputs_to_come()
        for sequence in self.prefilling.values():
            tokens = sequence.target - sequence.computed
            if chunk_left is not None:
                tokens = min(tokens, chunk_left)
            tokens = min(tokens, int(self.pool.free) * self.block) if self.decoders.limited else tokens
            if tokens <= 0:
                return
            self._compute(plan, sequence, tokens)
            input_left -= self._pages(tokens)
            chunk_left = None if chunk_left is None else chunk_left - self._pages(tokens)
            if sequence.computed + tokens < sequence.target:
                return
            kept += self._outputs_of(sequence)
        ORDERS[self._options.schedule_policy](self)
        while self.waiting and (chunk_left is None or chunk_left > 0) and input_left > 0:
            if len(self.running) + self._gone >= self._max_num_seqs:
                self._full = True
                return
            sequence = self.waiting[0]
            match = self.find(sequence)
            extend = sequence.target - self.computed_by(sequence, match)
            if not self._has_room(sequence, match, plan, decodes, kept):
                self._full = True
                return
            if chunk_left is None and self._pages(extend) >= input_left and plan.chunks:
                return
            tokens = extend if chunk_left is None else self._paged(chunk_left, extend)
            if tokens <= 0:
                return
            self.admit(sequence, match)
            self._compute(plan, sequence, tokens)
            input_left -= self._pages(tokens)
            chunk_left = None if chunk_left is None else chunk_left - self._pages(tokens)
            if tokens < extend:
                return
            kept += self._outputs_of(sequence)

    def _has_room(self, sequence: Sequence, match: Match, plan: StepPlan, decodes: int, kept: float) -> bool:
        """Whether a request fits beside ``kept`` tokens of future outputs."""
        free = (self.pool.free - match.idle - self.state_blocks) * self.block
        # Transferred tokens are not computed, but need memory.
        room = sequence.target - match.blocks * self.block
        if not (self._fixed and self.prefixes is None):
            return room + self._outputs_of(sequence) < free - kept
        return self._pages(room) <= free - kept and self._lasts(sequence, plan, free - decodes - self._pages(room))

    def _lasts(self, sequence: Sequence, plan: StepPlan, free: float) -> bool:
        """Whether ``free`` tokens last until every running request, and this one, has put out all outputs: as one ends,
        the others use its memory (add_one_req_ignore_eos)."""
        decoders, beside = self.decoders, [member for member, _ in plan.chunks]
        beside.append(sequence)
        lefts = [member.request.output_tokens - member.emitted for member in beside]
        if free - decoders.tokens_left - sum(lefts) > RESERVED * (decoders.count + len(lefts)):
            return True
        states = [
            (left, member.request.prompt_tokens + member.emitted) for left, member in zip(lefts, beside, strict=True)
        ]
        states += [
            (member.end_at - decoders.counter, member.offset + decoders.counter) for member in decoders.sequences()
        ]
        states.sort()
        for place, (left, occupied) in enumerate(states):
            going = len(states) - place
            if free - left * going <= RESERVED * going:
                return False
            free += occupied
        return True

    def _compute(self, plan: StepPlan, sequence: Sequence, tokens: int) -> None:
        self.hold(sequence, sequence.computed + tokens)
        plan.chunks.append((sequence, tokens))

    def _paged(self, tokens: int, rest: int) -> int:
        """As much of a rest as fits, in whole pages."""
        return rest if self._pages(rest) <= tokens else tokens - tokens % self.block

    def _pages(self, tokens: int) -> int:
        """Tokens that a budget is charged: whole pages."""
        return -(-tokens // self.block) * self.block

    def _outputs_of(self, sequence: Sequence) -> int:
        return min(sequence.request.output_tokens - sequence.emitted, CLIP)

    def _outputs_to_come(self) -> float:
        """Tokens reserved for outputs of decoding sequences."""
        decoders = self.decoders
        if self._clips:
            lefts = [member.end_at - decoders.counter for member in decoders.sequences()]
            return self.ratio * sum([min(left, CLIP) for left in lefts])
        return self.ratio * decoders.tokens_left

    @property
    def ratio(self) -> float:
        """Share of future outputs to reserve (new_token_ratio): one where requests cannot end earlier."""
        if self._fixed:
            return 1.0
        decay = (self._first_ratio - self._least_ratio) / DECAY_STEPS
        return max(self._least_ratio, self._ratio - decay * self._decayed)

    def _retract(self) -> None:
        """Retracts by fewest outputs, then longest prompt, until the others fit for some steps. The last decoding
        request stays; incomplete prompts go instead."""
        decoders = self.decoders
        left = sorted(
            decoders.sequences(),
            key=lambda member: (
                member.request.output_tokens - member.end_at + decoders.counter,
                -member.request.prompt_tokens,
            ),
            reverse=True,
        )
        while len(left) > 1:
            self.preempt(left.pop(), at_head=False)
            if self.pool.free * self.block >= len(left) * ROOM_STEPS and decoders.blocks() <= self.pool.free:
                break
        for sequence in list(self.prefilling.values()):
            if decoders.blocks() > self.pool.free:
                self.preempt(sequence, at_head=False)
        outputs = sum([member.request.output_tokens for member in left])
        emitted = outputs - decoders.tokens_left
        self._ratio, self._decayed = min(1.0, (emitted + ROOM_STEPS * len(left)) / outputs), 0


def in_order(scheduler: SglangScheduler) -> None:
    """Waiting requests keep their order."""


def longest_prefix_first(scheduler: SglangScheduler) -> None:
    """Longest cached prefix first, unless too many wait."""
    if 1 < len(scheduler.waiting) <= MOST_SORTED:
        ordered = sorted(scheduler.waiting, key=lambda sequence: -scheduler.find(sequence).blocks)
        scheduler.waiting.clear()
        scheduler.waiting.extend(ordered)


#: ``schedule_policy`` → sorts waiting requests.
ORDERS: dict[str, Callable[[SglangScheduler], None]] = {"fcfs": in_order, "lpm": longest_prefix_first}


class SglangPolicy(Policy):
    def block_of(self, options: Mapping[str, Any]) -> int | None:
        """As stated, or the attention backend's page size."""
        backend = options.get("attention_backend")
        return super().block_of(options) or (PAGES.get(backend) if isinstance(backend, str) else None)

    def of_replica(self, option: str, value: Any, replicas: int) -> Any:
        """Attention replicas divide chunks and places, and reserve less for future outputs."""
        if replicas == 1 or value is None:
            return value
        if option == "schedule_conservativeness":
            return value * REPLICAS_DARE
        if option == self.token_option:
            return value // replicas
        return max(1, value // replicas) if option == self.sequence_option else value

    def step_tokens(self, options: Mapping[str, Any]) -> int | None:
        chunk = options.get(self.token_option)
        if isinstance(chunk, int) and chunk <= 0:
            chunk = options.get("max_prefill_tokens", SglangOptions().max_prefill_tokens)
        return chunk if isinstance(chunk, int) and chunk > 0 else None

    def check(self, settings: Settings, request: Request) -> None:
        super().check(settings, request)
        blocks = settings.capacity_blocks
        needed = request.prompt_tokens + min(request.output_tokens, CLIP)
        options = settings.options
        assert isinstance(options, SglangOptions)
        if request.ignore_eos and options.disable_radix_cache:
            needed = request.prompt_tokens + request.output_tokens + RESERVED
        if blocks is not None and needed >= blocks * settings.block_tokens:
            lengths = f"a prompt of {request.prompt_tokens} tokens and {request.output_tokens} outputs"
            raise InputError(
                f"{lengths} are never admitted to a cache of {blocks * settings.block_tokens} tokens (kv_tokens)"
            )


class SglangGroup(ReplicaGroup):
    """Attention replicas that get requests by ``load_balance_method``."""

    def __init__(self, settings: Settings, scheduler: type[RankScheduler], count: int) -> None:
        super().__init__(settings, scheduler, count)
        options = settings.options
        assert isinstance(options, SglangOptions)
        self._choose = ASSIGNMENTS[_assignment(options.load_balance_method, settings.reads_only)](self.schedulers)

    def assign(self, request: Request) -> RankScheduler:
        return self._choose(request)


#: Chooses the attention replica of a request.
Assignment = Callable[[Request], RankScheduler]


def in_turn(schedulers: SequenceOf[RankScheduler]) -> Assignment:
    """Round robin."""
    turn = cycle(schedulers)
    return lambda _request: next(turn)


def by_room(schedulers: SequenceOf[RankScheduler]) -> Assignment:
    """By the number of the room in which two pools meet, which a router draws: at random, whoever is busy."""
    return lambda request: schedulers[int(default_rng([ROOMS, request.number]).integers(len(schedulers)))]


def with_fewest(schedulers: SequenceOf[RankScheduler]) -> Assignment:
    """The scheduler with fewest requests, the first of equals."""
    return lambda _request: min(schedulers, key=lambda scheduler: scheduler.present)


#: Seed of rooms.
ROOMS = 30001
#: ``load_balance_method`` → chooses the attention replica of the next request.
ASSIGNMENTS: dict[str, Callable[[SequenceOf[RankScheduler]], Assignment]] = {
    "round_robin": in_turn,
    "follow_bootstrap_room": by_room,
    "total_requests": with_fewest,
    AUTO: in_turn,
}


def _assignment(stated: str, reads_only: bool) -> str:
    """The method of a name. In a prefill pool ``auto`` is by room, and so is ``round_robin``, which it was called first
    (server_args.py, _handle_load_balance_method)."""
    return "follow_bootstrap_room" if reads_only and stated in (AUTO, "round_robin") else stated


SGLANG = SglangPolicy(
    "sglang",
    SglangOptions,
    SglangScheduler,
    "page_size",
    "chunked_prefill_size",
    "max_running_requests",
    SglangGroup,
    shares_tokens=True,
    switch=("disable_radix_cache", True),
    groups=RunGroups("dense SGLang", "SGLang experts", "MI355X plug-in"),
)
