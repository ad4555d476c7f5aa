"""The scheduler of one attention replica (DP rank): its queues, and the blocks that its sequences hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from math import inf

from ..steps import PromptChunk
from .blocks import NO_MATCH, BlockPool, BlockTable, Match, PrefixPool
from .decoders import Decoders
from .log import StepLog
from .requests import Request
from .sequence import Sequence
from .settings import Settings
from .work import StepWork

#: Most steps of a run, which bounds the steps priced ahead.
MOST_STEPS = 4096


class StepPlan:
    """The next step of a scheduler.

    Attributes
    ----------
    chunks
        Tokens of prompts, in order.
    decodes
        Whether decoding sequences advance.
    stalled
        Decoding sequences that do not.
    again
        Whether further steps would be planned alike until one ends, blocks run out or requests arrive.
    """

    __slots__ = ("again", "chunks", "decodes", "stalled")

    def __init__(self) -> None:
        self.chunks: list[tuple[Sequence, int]] = []
        self.stalled: list[Sequence] = []
        self.decodes, self.again = False, True


class RankScheduler:
    """Queues and cache of one attention replica. A policy's own class plans the next step (:meth:`schedule`).

    Parameters
    ----------
    settings
        Settings of the engine.
    enable_prefix_caching
        Whether blocks keep their contents for reuse.
    in_turn
        Whether free blocks are reused in the order of release (:class:`~tspsim.serving.blocks.PrefixPool`).
    overlap
        Whether steps are planned while the one before runs: admission and release lag one step behind
        arrivals and ends.
    wastes
        Whether an ended sequence is computed once more.

    Attributes
    ----------
    waiting
        Sequences not admitted yet, in order.
    running
        Admitted sequences by place.
    prefilling
        Admitted sequences whose prompt is not complete.
    decoders
        Decoding sequences.
    pool
        Blocks of the cache.
    now_s
        Begin of the current step.
    log
        The engine's log, for preemptions.
    notes
        Whether a run of steps continues past the step after an arrival or an end. With asynchronous scheduling both
        take effect one step late, so these steps are planned alike, and nothing else reads the cache meanwhile.
    late
        Whether the engine reads the results of a step once the next one has been launched.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        enable_prefix_caching: bool = False,
        in_turn: bool = False,
        overlap: bool = False,
        wastes: bool = False,
    ) -> None:
        capacity = inf if settings.capacity_blocks is None else settings.capacity_blocks
        self.block = settings.block_tokens
        self.states = settings.states
        #: Blocks of a sequence's states.
        self.state_blocks = 0 if self.states is None else self.states.live
        self.prefixes = (
            PrefixPool(capacity, self.block, in_turn=in_turn, states=self.states) if enable_prefix_caching else None
        )
        self.pool = self.prefixes or BlockPool(capacity, self.block)
        self.decoders = Decoders(self.pool, settings.speculation)
        self.query_len, self.slack = self.decoders.query_len, self.decoders.slack
        self.overlap, self.wastes = overlap, wastes
        self.notes = overlap and not wastes
        self.late = False
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}
        self.prefilling: dict[int, Sequence] = {}
        self.now_s = 0.0
        self.log = StepLog()
        #: Number of a preempted waiting request → when it lost its cache.
        self._lost_s: dict[int, float] = {}
        self.mailbox: deque[Sequence] = deque()
        self.noted: deque[Sequence] = deque()
        self.lingering: list[Sequence] = []
        self._places = 0
        self._prompt_tokens_ahead = self._outputs_ahead = 0
        #: Works of earlier editions can no longer list their contexts.
        self._edition = 0

    # --- decisions of policies -------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """Plans the next step: admits, preempts and takes blocks for it."""
        raise NotImplementedError

    def wake_s(self) -> float:
        """When an idle scheduler looks again without an arrival; inf: never."""
        return inf

    def open(self, fresh: bool) -> None:
        """Takes in arrivals before a step is planned; ``fresh``: the engine was idle."""
        if self.overlap and not fresh:
            if self.noted:
                self.waiting.extend(self.noted)
                self.noted.clear()
            self.noted, self.mailbox = self.mailbox, self.noted
        else:
            self.see()

    def seen_after(self, steps: int) -> int | None:
        """The step of a run of decode steps after which an arrival during step ``steps`` may matter; None: not before
        the run ends, since others wait in front."""
        if self.overlap:
            return steps + self.notes
        return None if self.waiting else steps

    def note(self) -> None:
        """A step inside a run is over: arrivals are seen after the next."""
        self.noted, self.mailbox = self.mailbox, self.noted

    def steady(self) -> int:
        """Number of steps from now, the planned one included, that are planned alike: until one ends, or while blocks
        last."""
        if self.noted or self.mailbox:
            return 1
        if self.lingering and self.overlap and (self.waiting or not self.notes):
            return 1
        return self.steady_decodes()

    def steady_decodes(self) -> int:
        """The same without pending arrivals or releases."""
        decoders = self.decoders
        if not decoders.count:
            return MOST_STEPS
        if decoders.sampled:
            return 1
        steps = min(MOST_STEPS, decoders.steps_to_end())
        if decoders.limited:
            steps = decoders.steps_with_room(steps)
        return max(1, steps)

    def computed_more(self, sequence: Sequence) -> None:
        """A chunk of its prompt is in the cache."""

    # --- arrivals -------------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """A sequence arrives now."""
        if self.prefixes is not None and sequence.request.blocks:
            sequence.block_table = BlockTable(sequence.request, self.block)
        self.mailbox.append(sequence)
        self._prompt_tokens_ahead += sequence.target - sequence.given
        self._outputs_ahead += sequence.request.output_tokens

    def watch(self, notice: Callable[[Hashable, int], None]) -> None:
        """Calls ``notice`` on every eviction from the cache."""
        if self.prefixes is not None:
            self.prefixes.on_forget, self.notes = notice, False

    def flush(self) -> bool:
        """Takes in all arrivals and releases ended sequences while nothing runs; returns whether there were any."""
        any_change = bool(self.mailbox or self.noted or self.lingering)
        self.see()
        self.let_go()
        return any_change

    def see(self) -> None:
        """Moves all arrivals to the waiting queue."""
        self.waiting.extend(self.noted)
        self.waiting.extend(self.mailbox)
        self.noted.clear()
        self.mailbox.clear()

    # --- helpers for policies ----------------------------------------------------------------------------------

    def find(self, sequence: Sequence) -> Match:
        """Cached blocks of a sequence; at least one token is always computed."""
        if self.prefixes is None or sequence.block_table is None:
            return NO_MATCH
        return self.prefixes.find(sequence.block_table, (sequence.target - 1) // self.block)

    def remembered(self, request: Request) -> int:
        """Tokens of a prompt that are cached from other requests."""
        if self.prefixes is None or not request.blocks:
            return 0
        most = (request.prompt_tokens - 1) // self.block
        return self.prefixes.find(BlockTable(request, self.block), most).blocks * self.block

    def computed_by(self, sequence: Sequence, match: Match) -> int:
        """Tokens in the cache at admission."""
        own = match.blocks * self.block
        return max(own, sequence.given) if own >= sequence.behind else own

    def admit(self, sequence: Sequence, match: Match = NO_MATCH) -> None:
        """Admits a waiting sequence, which holds its cached blocks."""
        if self.waiting[0] is sequence:
            self.waiting.popleft()
        else:
            self.waiting.remove(sequence)
        self._places += 1
        sequence.place = self._places
        sequence.computed = self.computed_by(sequence, match)
        sequence.held = match.blocks
        if match.nodes:
            assert self.prefixes is not None and sequence.block_table is not None
            self.prefixes.share(sequence.block_table, match)
        if sequence.block_table is not None:
            sequence.block_table.looked_at = match.blocks
        sequence.states = self.state_blocks
        self.pool.take(sequence.states)
        self._prompt_tokens_ahead -= sequence.computed - sequence.given
        self.running[sequence.place] = self.prefilling[sequence.place] = sequence
        request = sequence.request
        if request.first_scheduled_s != request.first_scheduled_s:
            request.first_scheduled_s = self.now_s
            request.cached_tokens = min(sequence.computed, request.prompt_tokens)
        elif request.number in self._lost_s:
            self.log.add_preemption(request.number, self._lost_s.pop(request.number), self.now_s)

    def blocks_to(self, sequence: Sequence, tokens: int, match: Match = NO_MATCH) -> int:
        """Free blocks that a sequence in prefill needs to hold ``tokens`` tokens, beside its own and cached blocks in
        use; before admission also blocks of its states."""
        blocks = -(-(tokens + self.slack) // self.block) - sequence.held - match.blocks + match.idle
        return blocks + self.state_blocks - sequence.states

    def hold(self, sequence: Sequence, tokens: int) -> None:
        """Takes these blocks; cached ones are its own by now."""
        blocks = -(-(tokens + self.slack) // self.block) - sequence.held
        sequence.held += blocks
        self.pool.take(blocks)

    def remember(self, sequence: Sequence, tokens: int) -> None:
        """Makes its first tokens available to others."""
        if self.prefixes is not None and sequence.block_table is not None:
            self.prefixes.remember(sequence.block_table, tokens // self.block)
            self.prefixes.keep_states(sequence.block_table, tokens // self.block)

    def begins(self, plan: StepPlan) -> bool:
        """Whether the step reads prompts. A step with only the last prompt token of sequences with transferred caches
        does not: these decode now."""
        for sequence, tokens in plan.chunks:  # noqa: SIM110 - called in every step: a generator is slower
            if tokens > 1 or not sequence.given:
                return True
        return False

    def decode(self, plan: StepPlan, stalled: list[Sequence] | None = None) -> None:
        """All decoding sequences but ``stalled`` ones advance in the next step; takes blocks for it."""
        plan.stalled = stalled or []
        plan.decodes = self.decoders.begin(plan.stalled)

    def preempt(self, sequence: Sequence, *, at_head: bool = True) -> None:
        """Preempts a sequence: its blocks are freed and it waits again, to recompute its prompt and outputs unless they
        are still cached."""
        if sequence.decoding:
            self._outputs_ahead += sequence.end_at - self.decoders.counter
            self.decoders.drop(sequence)
        else:
            del self.prefilling[sequence.place]
            self._prompt_tokens_ahead -= sequence.target - sequence.computed
        if self.prefixes is not None:
            sequence.block_table = sequence.block_table or BlockTable(sequence.request, self.block)
            sequence.block_table.extend(self.left_behind(sequence) // self.block)
        self.release(sequence)
        sequence.target = sequence.request.prompt_tokens + sequence.emitted
        sequence.computed = sequence.given = 0
        sequence.request.preemptions += 1
        self._lost_s[sequence.request.number] = self.now_s
        self._prompt_tokens_ahead += sequence.target
        if at_head:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)

    def left_behind(self, sequence: Sequence) -> int:
        """Tokens of a preempted sequence that may stay cached."""
        return sequence.computed

    def release(self, sequence: Sequence) -> None:
        """A sequence leaves: its blocks are free, and cached if prefix caching is on."""
        del self.running[sequence.place]
        block_table, own = sequence.block_table, sequence.held
        if block_table is not None and self.prefixes is not None:
            self.prefixes.remember(block_table, sequence.computed // self.block, part=True)
            self.prefixes.keep_states(block_table, sequence.computed // self.block, answers=True)
            own -= block_table.shared
        self.pool.give_back(own + sequence.states)
        if block_table is not None and self.prefixes is not None:
            self.prefixes.release(block_table)
        sequence.held = sequence.states = 0

    def let_go(self) -> None:
        """Releases the sequences that ended in the step before."""
        if self.lingering:
            for sequence in self.lingering:
                self.release(sequence)
            self.lingering.clear()

    # --- a step ---------------------------------------------------------------------------------------------

    def work(self, plan: StepPlan) -> StepWork:
        """The work of a plan's step; its contexts can be listed until the scheduler moves on."""
        self._edition += 1
        decoders, extra = self.decoders, self.padded() if plan.decodes else []
        listed = partial(self._contexts, plan, extra, self._edition, decoders.counter)
        chunks: tuple[PromptChunk, ...] = ()
        if plan.chunks:
            chunks = tuple([PromptChunk(n, s.computed, s.computed + n == s.target) for s, n in plan.chunks])
            going_on = [index for index, (s, n) in enumerate(plan.chunks) if n == 1 == self.query_len and s.given]
            if going_on:
                # A sequence whose prompt's last token alone is missing has one query, like a decoding one.
                rest = tuple([chunk for index, chunk in enumerate(chunks) if index not in going_on])
                others = tuple([chunks[index].context_tokens for index in going_on])
                return StepWork(rest, listed() + others, self.query_len)
        if not plan.decodes:
            return StepWork(chunks, (), self.query_len)
        if plan.stalled or extra:
            return StepWork(chunks, listed(), self.query_len)
        return StepWork.counted(
            chunks,
            self.query_len,
            decoders.count,
            decoders.context_tokens,
            decoders.longest,
            listed,
            decoders.shortest,
        )

    def padded(self) -> list[Sequence]:
        """Ended sequences that are computed anyway beside the decoding ones."""
        return self.lingering if self.wastes else []

    def _contexts(self, plan: StepPlan, extra: list[Sequence], edition: int, counter: int) -> tuple[int, ...]:
        """Contexts of the sequences that decode in a plan's step, before any later step."""
        if edition != self._edition:
            raise RuntimeError("the step of these contexts is over; call Work.kept() earlier")
        own = self.decoders.sequences() if plan.decodes else []
        if plan.stalled:
            stalled = {sequence.place for sequence in plan.stalled}
            own = [sequence for sequence in own if sequence.place not in stalled]
        return tuple([sequence.offset + counter for sequence in (*own, *extra)])

    def continue_run(self, plan: StepPlan, steps: int) -> None:
        """Continues a run beyond its first step: ended sequences have left, and blocks of all steps are held."""
        if self.overlap and self.lingering:
            self.let_go()
        if plan.decodes:
            self.decoders.hold(steps)

    def complete(self, plan: StepPlan, steps: int) -> tuple[list[Sequence], list[Sequence]]:
        """Completes ``steps`` steps of a plan: returns sequences with their first token, and ended ones, in order of
        admission."""
        self._edition += 1
        if self.overlap and self.lingering:
            self.let_go()
        first: list[Sequence] = []
        ended = self.decoders.run(steps, plan.stalled) if plan.decodes else []
        for sequence, tokens in plan.chunks:
            sequence.computed += tokens
            self._prompt_tokens_ahead -= tokens
            self.computed_more(sequence)
            if sequence.computed == sequence.target:
                self._prompt_is_done(sequence, first, ended)
        if len(ended) > 1:
            ended.sort(key=_place)
        for sequence in ended:
            sequence.ended = True
            self.leave(sequence)
        return first, ended

    def leave(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        if self.overlap:
            self.lingering.append(sequence)
        else:
            self.release(sequence)

    def _prompt_is_done(self, sequence: Sequence, first: list[Sequence], ended: list[Sequence]) -> None:
        del self.prefilling[sequence.place]
        sequence.emitted += 1
        if sequence.emitted == 1:
            first.append(sequence)
        if sequence.emitted == sequence.request.output_tokens:
            sequence.offset = sequence.computed - self.decoders.counter
            self._outputs_ahead -= 1
            ended.append(sequence)
        else:
            self._outputs_ahead -= 1 + sequence.request.output_tokens - sequence.emitted
            self.decoders.start(sequence)

    # --- load ------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Requests that are present and not admitted."""
        return len(self.waiting) + len(self.mailbox) + len(self.noted)

    @property
    def present(self) -> int:
        """Requests that are present and have not ended."""
        return len(self.running) + self.queued - len(self.lingering)

    def tokens_ahead(self, steps: int = 0) -> int:
        """Tokens still to compute for present requests, prompts and answers, after ``steps`` steps of a run."""
        done = self.decoders.count * self.decoders.advance(steps)
        return self._prompt_tokens_ahead + self._outputs_ahead + self.decoders.tokens_left - done

    def used_tokens(self, steps: int = 0) -> int:
        """Tokens of the cache in use, in whole blocks, after ``steps`` steps of a run."""
        used = self.pool.used + self.decoders.blocks_after(steps)
        if steps > 1 and self.lingering and self.overlap:
            used -= sum([sequence.held for sequence in self.lingering])
        return used * self.block


def _place(sequence: Sequence) -> int:
    return sequence.place
