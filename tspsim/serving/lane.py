"""One attention replica of an engine: who waits, who runs, and what their caches hold.

Sequences that decode all move on by the same number of tokens a step. They are therefore kept in coordinates that do
not change while they do: a lane counts tokens (``counter``), a sequence keeps the difference of its context from the
counter (``offset``) and the counter's value at its end (``end_at``). Sums, the longest context, the next end and the
blocks that further steps take follow without a look at each sequence.

    Σ contexts = Σ offsets + B · counter
    a step from counter c takes a new block for the sequences with (offset + c) mod block = 0
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from .blocks import BlockPool
from .requests import Request
from .settings import Settings
from .work import Chunk, Work


class Sequence:
    """A request inside an engine.

    Attributes
    ----------
    place
        In the order of admissions; a sequence that was preempted gets a new one.
    target
        Tokens that must be in the cache before the next output: the prompt, and the outputs before a preemption.
    computed
        Of them, what is in the cache; of a sequence that does not decode yet.
    given
        Of the prompt, what is in the cache from elsewhere when it is admitted.
    made
        Outputs so far; of a sequence that does not decode.
    held
        Blocks; of a sequence that does not decode.
    """

    __slots__ = (
        "computed",
        "decoding",
        "end_at",
        "ended",
        "given",
        "held",
        "made",
        "offset",
        "place",
        "request",
        "target",
    )

    def __init__(self, request: Request, given: int = 0) -> None:
        self.request = request
        self.given = given
        self.target = request.prompt_tokens
        self.place = self.computed = self.made = self.held = self.offset = self.end_at = 0
        self.decoding = self.ended = False


@dataclass(slots=True)
class StepPlan:
    """What a lane does in the next step.

    Attributes
    ----------
    chunks
        Tokens of prompts, in order.
    decodes
        Whether the sequences that decode do.
    stalled
        Those of them that do not.
    again
        Whether further steps would be planned alike until one ends, the cache is full or requests arrive.
    """

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)
    decodes: bool = False
    stalled: list[Sequence] = field(default_factory=list)
    again: bool = True


class Lane:
    """Queues and cache of one attention replica; a policy's own lane says what the next step does (:meth:`schedule`).

    Attributes
    ----------
    waiting
        Sequences that have been seen and not admitted, in order.
    running
        Those admitted, by place.
    prefilling
        Those of them whose prompt is not computed.
    decoding
        How many of them decode.
    now_s
        When the step under way began.
    """

    #: Steps are planned while the one before runs: what arrives during a step is seen one step later, and what ended
    #: in it leaves one step later.
    overlap = False
    #: The sequence that ended in the step before is computed once more.
    wastes = False

    def __init__(self, settings: Settings) -> None:
        capacity = inf if settings.capacity_blocks is None else settings.capacity_blocks
        self.block = settings.block_tokens
        self.pool = BlockPool(capacity, self.block)
        self.queries, self.slack = 1, 0
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}
        self.prefilling: dict[int, Sequence] = {}
        self.decoding = 0
        self.now_s = 0.0
        self._counter = 0
        self._offsets = 0
        self._ends_sum = 0
        self._prefilled = 0
        self._to_prefill = 0
        self._outputs_ahead = 0
        self._places = 0
        self._ends: list[tuple[int, int, Sequence]] = []
        self._tall: list[tuple[int, int, Sequence]] = []
        #: Sequences that decode, by (offset + slack) mod block; and the counter up to which their blocks are held.
        self._phases = [0] * self.block
        self._level = 0
        self._limited = capacity != inf
        self._mailbox: deque[Sequence] = deque()
        self._noted: deque[Sequence] = deque()
        self._lingering: list[Sequence] = []
        self._edition = 0

    # --- what policies decide -------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """What the next step does; admits, preempts and takes blocks for it."""
        raise NotImplementedError

    def wake_s(self) -> float:
        """When an idle lane looks again though nothing arrives; inf: never."""
        return inf

    # --- arrivals -------------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """It arrives now."""
        self._mailbox.append(sequence)
        self._to_prefill += sequence.target - sequence.given
        self._outputs_ahead += sequence.request.output_tokens - sequence.made

    def open(self, fresh: bool) -> None:
        """See what has arrived, before a step is planned; ``fresh``: the engine was idle."""
        if not self._mailbox and not self._noted:
            return
        if self.overlap and not fresh:
            self.waiting.extend(self._noted)
            self._noted.clear()
            self._noted, self._mailbox = self._mailbox, self._noted
        else:
            self.flush()

    def flush(self) -> bool:
        """See all that has arrived, and let go what has ended: nothing runs. Whether there was anything."""
        found = bool(self._mailbox or self._noted or self._lingering)
        self.waiting.extend(self._noted)
        self.waiting.extend(self._mailbox)
        self._noted.clear()
        self._mailbox.clear()
        self._let_go()
        return found

    def seen_after(self, steps: int) -> int:
        """Of a run of decode steps, after which of them what arrives during step ``steps`` is looked at."""
        return steps

    # --- what policies use ----------------------------------------------------------------------------------

    def admit(self, sequence: Sequence, computed: int) -> None:
        """The first that waits runs from now on, with ``computed`` tokens in the cache already."""
        self._enter(self.waiting.popleft() if self.waiting[0] is sequence else self._pick(sequence), computed)

    def _pick(self, sequence: Sequence) -> Sequence:
        self.waiting.remove(sequence)
        return sequence

    def _enter(self, sequence: Sequence, computed: int) -> None:
        self._places += 1
        sequence.place = self._places
        sequence.computed = computed
        self._prefilled += computed
        self._to_prefill -= computed - sequence.given
        self.running[sequence.place] = self.prefilling[sequence.place] = sequence
        request = sequence.request
        if request.first_scheduled_s != request.first_scheduled_s:
            request.first_scheduled_s = self.now_s
            request.cached_tokens = computed

    def blocks_to(self, sequence: Sequence, tokens: int) -> int:
        """Blocks that a sequence that does not decode needs beside its own to hold so many tokens."""
        return -(-(tokens + self.slack) // self.block) - sequence.held

    def hold(self, sequence: Sequence, tokens: int) -> None:
        """Take those."""
        blocks = self.blocks_to(sequence, tokens)
        sequence.held += blocks
        self.pool.take(blocks)

    def decode_blocks(self) -> int:
        """Blocks that one more step of all sequences that decode takes."""
        return self._growth(self._level, self._counter + self._advance(1)) if self._limited else 0

    def decode_blocks_of(self, sequence: Sequence) -> int:
        """And of one of them."""
        tokens = sequence.offset + self.slack + self._counter
        return -(-(tokens + self._advance(1)) // self.block) - -(-tokens // self.block)

    def take_decode_blocks(self) -> None:
        """Hold the blocks of the next step."""
        self._grow_to(self._counter + self._advance(1))

    def stall(self, sequence: Sequence) -> None:
        """It stands still while the others decode; before their blocks are taken."""
        self._shift(sequence, -self._advance(1))

    def preempt(self, sequence: Sequence, *, at_head: bool = True) -> None:
        """Its blocks are freed and it waits again, to be computed anew with the outputs so far."""
        if sequence.decoding:
            sequence.made = sequence.request.output_tokens - (sequence.end_at - self._counter)
            sequence.held = -(-(sequence.offset + self.slack + self._counter) // self.block)
            self._drop(sequence)
        else:
            del self.prefilling[sequence.place]
            self._prefilled -= sequence.computed
            self._to_prefill -= sequence.target - sequence.computed
        self._release(sequence)
        sequence.target = sequence.request.prompt_tokens + sequence.made
        sequence.computed = sequence.given = 0
        sequence.request.preemptions += 1
        self._to_prefill += sequence.target
        if at_head:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)

    # --- a step ---------------------------------------------------------------------------------------------

    def work(self, plan: StepPlan) -> Work:
        """The work of a plan's step, as long as the lane has not moved on."""
        self._edition += 1
        chunks = tuple([Chunk(n, s.computed, s.computed + n == s.target) for s, n in plan.chunks])
        if not plan.decodes:
            return Work(chunks, (), self.queries)
        extra = self._lingering if self.wastes else []
        count = self.decoding - len(plan.stalled) + len(extra)
        tokens = self._offsets + self.decoding * self._counter
        longest = self._longest() if self.decoding else 0
        if plan.stalled or extra:
            # One that stands still was moved back by what the others will move on: sums hold it as it is subtracted.
            tokens -= sum([s.offset + self._counter for s in plan.stalled])
            tokens += sum([s.offset + self._counter for s in extra])
            stalled = {s.place for s in plan.stalled}
            own = [s.offset + self._counter for s in self._decoders() if s.place not in stalled]
            longest = max([*own, *(s.offset + self._counter for s in extra)], default=0)
        return Work.counted(chunks, self.queries, count, tokens, longest, self._lister(plan, extra))

    def _lister(self, plan: StepPlan, extra: list[Sequence]) -> Callable[[], tuple[int, ...]]:
        edition, counter = self._edition, self._counter

        def contexts() -> tuple[int, ...]:
            if edition != self._edition:
                raise RuntimeError("contexts of a step that is over; Work.kept() lists them in time")
            stalled = {s.place for s in plan.stalled}
            own = [s.offset + counter for s in self._decoders() if s.place not in stalled]
            return tuple(own + [s.offset + counter for s in extra])

        return contexts

    def steady(self) -> int:
        """Steps from now, the planned one included, that are planned alike: to an end, or while there are blocks."""
        if self._mailbox or self._noted or (self._lingering and self.overlap):
            return 1
        steps = self._steps_for(self._next_end() - self._counter)
        if self._limited:
            most = self._level - self._counter + self._room()
            steps = min(steps, self._steps_within(most))
        return max(1, steps)

    def advances(self, steps: int) -> range | list[int]:
        """Tokens by which contexts have grown before each of the next ``steps`` decode steps."""
        return range(steps)

    def complete(self, plan: StepPlan, steps: int) -> tuple[list[Sequence], list[Sequence]]:
        """``steps`` of a plan are done: sequences that put out their first token, and those that ended, in order."""
        self._edition += 1
        self._let_go()
        first: list[Sequence] = []
        ended: list[Sequence] = []
        if plan.decodes and self.decoding:
            self._grow_to(self._counter + self._advance(steps))
            self._counter = self._level
            self._pop_ended(ended)
        for sequence, tokens in plan.chunks:
            sequence.computed += tokens
            self._prefilled += tokens
            self._to_prefill -= tokens
            if sequence.computed == sequence.target:
                self._prompt_is_done(sequence, first, ended)
        if len(ended) > 1:
            ended.sort(key=_place)
        for sequence in ended:
            sequence.ended = True
            if self.overlap:
                self._lingering.append(sequence)
            else:
                self._leave(sequence)
        return first, ended

    def _prompt_is_done(self, sequence: Sequence, first: list[Sequence], ended: list[Sequence]) -> None:
        del self.prefilling[sequence.place]
        self._prefilled -= sequence.computed
        sequence.made += 1
        self._outputs_ahead -= 1
        if sequence.made == 1:
            first.append(sequence)
        if sequence.made == sequence.request.output_tokens:
            sequence.offset = sequence.computed - self._counter
            ended.append(sequence)
        else:
            self._start(sequence)

    def _pop_ended(self, ended: list[Sequence]) -> None:
        ends, counter = self._ends, self._counter
        while ends and ends[0][0] <= counter:
            end_at, place, sequence = heappop(ends)
            if sequence.decoding and sequence.end_at == end_at and sequence.place == place:
                sequence.held = -(-(sequence.offset + self.slack + counter) // self.block)
                self._drop(sequence)
                ended.append(sequence)

    def _let_go(self) -> None:
        """What ended in the step before leaves."""
        if self._lingering:
            for sequence in self._lingering:
                self._leave(sequence)
            self._lingering.clear()

    def _leave(self, sequence: Sequence) -> None:
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        del self.running[sequence.place]
        self.pool.give_back(sequence.held)
        sequence.held = 0

    # --- sequences that decode ------------------------------------------------------------------------------

    def _decoders(self) -> list[Sequence]:
        return [sequence for sequence in self.running.values() if sequence.decoding]

    def _start(self, sequence: Sequence) -> None:
        """It decodes from the next step on."""
        counter = self._counter
        sequence.decoding = True
        sequence.offset = sequence.computed - counter
        sequence.end_at = counter + sequence.request.output_tokens - sequence.made
        self.decoding += 1
        self._offsets += sequence.offset
        self._ends_sum += sequence.end_at
        self._outputs_ahead -= sequence.request.output_tokens - sequence.made
        self._phases[(sequence.offset + self.slack) % self.block] += 1
        heappush(self._ends, (sequence.end_at, sequence.place, sequence))
        heappush(self._tall, (-sequence.offset, sequence.place, sequence))

    def _drop(self, sequence: Sequence) -> None:
        """It decodes no more."""
        sequence.decoding = False
        self.decoding -= 1
        self._offsets -= sequence.offset
        self._ends_sum -= sequence.end_at
        self._phases[(sequence.offset + self.slack) % self.block] -= 1
        left = sequence.end_at - self._counter
        if left > 0:
            self._outputs_ahead += left

    def _shift(self, sequence: Sequence, tokens: int) -> None:
        """It gets ``tokens`` more than the others, in the same steps."""
        self._phases[(sequence.offset + self.slack) % self.block] -= 1
        sequence.offset += tokens
        sequence.end_at -= tokens
        self._phases[(sequence.offset + self.slack) % self.block] += 1
        self._offsets += tokens
        self._ends_sum -= tokens
        heappush(self._ends, (sequence.end_at, sequence.place, sequence))
        heappush(self._tall, (-sequence.offset, sequence.place, sequence))

    def _next_end(self) -> int:
        """The counter at the next end; there is one."""
        ends = self._ends
        while True:
            end_at, place, sequence = ends[0]
            if sequence.decoding and sequence.end_at == end_at and sequence.place == place:
                return end_at
            heappop(ends)

    def _longest(self) -> int:
        """The longest context of those that decode; there is one."""
        tall = self._tall
        if len(tall) > 4 * self.decoding + 64:
            tall = self._tall = [(-s.offset, s.place, s) for s in self._decoders()]
            heapify(tall)
        while True:
            offset, place, sequence = tall[0]
            if sequence.decoding and sequence.offset == -offset and sequence.place == place:
                return self._counter - offset
            heappop(tall)

    def _advance(self, steps: int) -> int:
        """Tokens that the next ``steps`` decode steps put out for every sequence."""
        return steps

    def _steps_for(self, tokens: int) -> int:
        """The fewest steps that put out so many."""
        return tokens

    def _steps_within(self, tokens: float) -> int:
        """The most steps that put out no more."""
        return tokens if isinstance(tokens, int) else int(tokens)

    # --- their blocks ---------------------------------------------------------------------------------------

    def _grow_to(self, level: int) -> None:
        if self._limited:
            self.pool.take(self._growth(self._level, level))
        self._level = level

    def _growth(self, level: int, to: int) -> int:
        """Blocks that sequences that decode take from one value of the counter to another."""
        if not self.decoding or to <= level:
            return 0
        cycles, rest = divmod(to - level, self.block)
        blocks = cycles * self.decoding
        if rest:
            # A token at counter c is the first of a block for the phase −c mod block: c = level, …, level + rest − 1.
            last, phases = -(level + rest - 1) % self.block, self._phases
            blocks += sum(phases[last : last + rest]) + sum(phases[: max(0, last + rest - self.block)])
        return blocks

    def _room(self) -> int:
        """Tokens by which the counter may move on from the level until a block is missing."""
        free = int(self.pool.free)
        cycles, left = divmod(free, self.decoding)
        tokens = cycles * self.block
        level, phases, block = self._level + tokens, self._phases, self.block
        for _ in range(block):
            left -= phases[-level % block]
            if left < 0:
                break
            level += 1
            tokens += 1
        return tokens

    # --- what others ask ------------------------------------------------------------------------------------

    @property
    def present(self) -> int:
        """Requests that are here and have not ended."""
        return len(self.running) + self.queued - len(self._lingering)

    @property
    def queued(self) -> int:
        """Requests that are here and not admitted."""
        return len(self.waiting) + len(self._mailbox) + len(self._noted)

    def tokens_ahead(self, steps: int = 0) -> int:
        """Tokens to be computed for requests that are here: of prompts, and of answers; ``steps`` of a run are done."""
        decoded = self.decoding * self._advance(steps) if steps else 0
        return self._to_prefill + self._outputs_ahead + self._ends_sum - self.decoding * self._counter - decoded

    def used_tokens(self, steps: int = 0) -> int:
        """Tokens of the cache in use: whole blocks where it is limited; ``steps`` of a run are done."""
        tokens = self._advance(steps) if steps else 0
        if self._limited:
            return (self.pool.used + self._growth(self._level, self._counter + tokens)) * self.block
        return self._offsets + self.decoding * (self._counter + tokens) + self._prefilled


def _place(sequence: Sequence) -> int:
    return sequence.place
