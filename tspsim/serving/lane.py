"""One attention replica of an engine: who waits, who runs, and the blocks that they hold."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from math import inf

from .blocks import NO_MATCH, BlockPool, Match, PrefixPool, Trail
from .decoders import Decoders
from .log import StepLog
from .requests import Request
from .sequence import Sequence
from .settings import Settings
from .work import PromptChunk, StepWork

#: Of a run, so that what is priced ahead stays small.
MOST_STEPS = 4096


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
        Whether further steps would be planned alike until one ends, blocks run out or requests are seen.
    """

    __slots__ = ("again", "chunks", "decodes", "stalled")

    def __init__(self) -> None:
        self.chunks: list[tuple[Sequence, int]] = []
        self.stalled: list[Sequence] = []
        self.decodes, self.again = False, True


class Lane:
    """Queues and cache of one attention replica; a policy's own lane says what the next step does (:meth:`schedule`).

    Parameters
    ----------
    settings
        Of the engine.
    remembers
        Blocks remember what they hold.
    in_turn
        They are taken in the order in which they were freed (:class:`~tspsim.serving.blocks.PrefixPool`).
    overlap
        Steps are planned while the one before runs: what arrives during a step is seen one step later, and what ended
        in it leaves one step later.
    wastes
        And is computed once more.

    Attributes
    ----------
    waiting
        Sequences that have been seen and not admitted, in order.
    running
        Those admitted, by place.
    prefilling
        Those of them whose prompt is not computed.
    decoders
        Those that decode.
    pool
        Blocks of the cache.
    now_s
        When the step under way began.
    log
        Where preemptions are told; its engine's.
    notes
        A run goes on through the step behind an arrival, at whose end it is seen, and through the one behind an end, at
        whose end its blocks are free: both are planned like those after them, and nobody looks at the cache meanwhile.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        remembers: bool = False,
        in_turn: bool = False,
        overlap: bool = False,
        wastes: bool = False,
    ) -> None:
        capacity = inf if settings.capacity_blocks is None else settings.capacity_blocks
        self.block = settings.block_tokens
        self.states = settings.states
        #: Blocks of a sequence's states.
        self.state_blocks = 0 if self.states is None else self.states.live
        self.prefixes = PrefixPool(capacity, self.block, in_turn=in_turn, states=self.states) if remembers else None
        self.pool = self.prefixes or BlockPool(capacity, self.block)
        self.decoders = Decoders(self.pool, settings.speculation)
        self.queries, self.slack = self.decoders.queries, self.decoders.slack
        self.overlap, self.wastes = overlap, wastes
        self.notes = overlap and not wastes
        self.waiting: deque[Sequence] = deque()
        self.running: dict[int, Sequence] = {}
        self.prefilling: dict[int, Sequence] = {}
        self.now_s = 0.0
        self.log = StepLog()
        #: When requests that were preempted and wait again lost their caches.
        self._lost_s: dict[int, float] = {}
        self.mailbox: deque[Sequence] = deque()
        self.noted: deque[Sequence] = deque()
        self.lingering: list[Sequence] = []
        self._places = 0
        self._prompt_tokens_ahead = self._outputs_ahead = 0
        #: Works of earlier editions list no contexts any more.
        self._edition = 0

    # --- what policies decide -------------------------------------------------------------------------------

    def schedule(self) -> StepPlan:
        """What the next step does; admits, preempts and takes blocks for it."""
        raise NotImplementedError

    def wake_s(self) -> float:
        """When a lane with nothing to run looks again though nothing arrives; inf: never."""
        return inf

    def open(self, fresh: bool) -> None:
        """See what has arrived, before a step is planned; ``fresh``: the engine was idle."""
        if self.overlap and not fresh:
            if self.noted:
                self.waiting.extend(self.noted)
                self.noted.clear()
            self.noted, self.mailbox = self.mailbox, self.noted
        else:
            self.see()

    def seen_after(self, steps: int) -> int | None:
        """Of a run of decode steps, after which of them what arrives during step ``steps`` may matter; None: not before
        the run is over, as others wait in front of it until then."""
        if self.overlap:
            return steps + self.notes
        return None if self.waiting else steps

    def note(self) -> None:
        """A step of a run that goes on is over: what has arrived is seen after the next."""
        self.noted, self.mailbox = self.mailbox, self.noted

    def steady(self) -> int:
        """Steps from now, the planned one included, that are planned alike: until one ends, or while there are
        blocks."""
        if self.noted or self.mailbox:
            return 1
        if self.lingering and self.overlap and (self.waiting or not self.notes):
            return 1
        return self.steady_decodes()

    def steady_decodes(self) -> int:
        """The same for a lane of which nothing is to be seen or to leave."""
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
        """A piece of its prompt is in the cache."""

    # --- arrivals -------------------------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """It arrives now."""
        if self.prefixes is not None and sequence.request.blocks:
            sequence.trail = Trail(sequence.request, self.block)
        self.mailbox.append(sequence)
        self._prompt_tokens_ahead += sequence.target - sequence.given
        self._outputs_ahead += sequence.request.output_tokens

    def watch(self, notice: Callable[[Hashable, int], None]) -> None:
        """Tell ``notice`` of all that the cache forgets."""
        if self.prefixes is not None:
            self.prefixes.on_forget, self.notes = notice, False

    def flush(self) -> bool:
        """See all that has arrived, and let go what has ended: nothing runs. Whether there was anything."""
        found = bool(self.mailbox or self.noted or self.lingering)
        self.see()
        self.let_go()
        return found

    def see(self) -> None:
        """All that has arrived waits."""
        self.waiting.extend(self.noted)
        self.waiting.extend(self.mailbox)
        self.noted.clear()
        self.mailbox.clear()

    # --- what policies use ----------------------------------------------------------------------------------

    def find(self, sequence: Sequence) -> Match:
        """What the cache remembers of it; at least one token is computed anew."""
        if self.prefixes is None or sequence.trail is None:
            return NO_MATCH
        return self.prefixes.find(sequence.trail, (sequence.target - 1) // self.block)

    def remembered(self, request: Request) -> int:
        """Tokens of a prompt that the cache has from others."""
        if self.prefixes is None or not request.blocks:
            return 0
        most = (request.prompt_tokens - 1) // self.block
        return self.prefixes.find(Trail(request, self.block), most).blocks * self.block

    def computed_by(self, sequence: Sequence, match: Match) -> int:
        """Tokens in the cache when it is admitted."""
        own = match.blocks * self.block
        return max(own, sequence.given) if own >= sequence.behind else own

    def admit(self, sequence: Sequence, match: Match = NO_MATCH) -> None:
        """It waits no more, and holds what was found."""
        if self.waiting[0] is sequence:
            self.waiting.popleft()
        else:
            self.waiting.remove(sequence)
        self._places += 1
        sequence.place = self._places
        sequence.computed = self.computed_by(sequence, match)
        sequence.held = match.blocks
        if match.nodes:
            assert self.prefixes is not None and sequence.trail is not None
            self.prefixes.share(sequence.trail, match)
        if sequence.trail is not None:
            sequence.trail.looked_at = match.blocks
        sequence.states = self.state_blocks
        self.pool.take(sequence.states)
        self._prompt_tokens_ahead -= sequence.computed - sequence.given
        self.running[sequence.place] = self.prefilling[sequence.place] = sequence
        request = sequence.request
        if request.first_scheduled_s != request.first_scheduled_s:
            request.first_scheduled_s = self.now_s
            request.cached_tokens = min(sequence.computed, request.prompt_tokens)
        elif request.number in self._lost_s:
            self.log.add_put_back(request.number, self._lost_s.pop(request.number), self.now_s)

    def blocks_to(self, sequence: Sequence, tokens: int, match: Match = NO_MATCH) -> int:
        """Free blocks that a sequence that does not decode needs to hold so many tokens, beside its own and those that
        are found for it in use; one that waits needs those of its states too."""
        blocks = -(-(tokens + self.slack) // self.block) - sequence.held - match.blocks + match.idle
        return blocks + self.state_blocks - sequence.states

    def hold(self, sequence: Sequence, tokens: int) -> None:
        """Take those, found ones being its own."""
        blocks = -(-(tokens + self.slack) // self.block) - sequence.held
        sequence.held += blocks
        self.pool.take(blocks)

    def remember(self, sequence: Sequence, tokens: int) -> None:
        """Its first tokens can be found by others."""
        if self.prefixes is not None and sequence.trail is not None:
            self.prefixes.remember(sequence.trail, tokens // self.block)
            self.prefixes.keep_states(sequence.trail, tokens // self.block)

    def begins(self, plan: StepPlan) -> bool:
        """Whether the step reads prompts, and not only the last token of some whose cache came from elsewhere: these
        decode from then on, and do so now."""
        for sequence, tokens in plan.chunks:  # noqa: SIM110 - asked in every step: a generator takes longer
            if tokens > 1 or not sequence.given:
                return True
        return False

    def decode(self, plan: StepPlan, stalled: list[Sequence] | None = None) -> None:
        """All that decode do so in the next step, except ``stalled`` ones; blocks are taken for it."""
        plan.stalled = stalled or []
        plan.decodes = self.decoders.begin(plan.stalled)

    def preempt(self, sequence: Sequence, *, at_head: bool = True) -> None:
        """Its blocks are freed and it waits again, to be computed anew with the outputs so far, but for what a cache
        that remembers has of them still."""
        if sequence.decoding:
            self._outputs_ahead += sequence.end_at - self.decoders.counter
            self.decoders.drop(sequence)
        else:
            del self.prefilling[sequence.place]
            self._prompt_tokens_ahead -= sequence.target - sequence.computed
        if self.prefixes is not None:
            sequence.trail = sequence.trail or Trail(sequence.request, self.block)
            sequence.trail.go_on(self.left_behind(sequence) // self.block)
        self.release(sequence)
        sequence.target = sequence.request.prompt_tokens + sequence.made
        sequence.computed = sequence.given = 0
        sequence.request.preemptions += 1
        self._lost_s[sequence.request.number] = self.now_s
        self._prompt_tokens_ahead += sequence.target
        if at_head:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)

    def left_behind(self, sequence: Sequence) -> int:
        """Tokens of one that is preempted that the cache can remember."""
        return sequence.computed

    def release(self, sequence: Sequence) -> None:
        """It leaves: its blocks are free, and remembered where blocks remember."""
        del self.running[sequence.place]
        trail, own = sequence.trail, sequence.held
        if trail is not None and self.prefixes is not None:
            self.prefixes.remember(trail, sequence.computed // self.block, part=True)
            self.prefixes.keep_states(trail, sequence.computed // self.block, answers=True)
            own -= trail.shared
        self.pool.give_back(own + sequence.states)
        if trail is not None and self.prefixes is not None:
            self.prefixes.release(trail)
        sequence.held = sequence.states = 0

    def let_go(self) -> None:
        """What ended in the step before leaves."""
        if self.lingering:
            for sequence in self.lingering:
                self.release(sequence)
            self.lingering.clear()

    # --- a step ---------------------------------------------------------------------------------------------

    def work(self, plan: StepPlan) -> StepWork:
        """The work of a plan's step; its contexts can be listed until the lane moves on."""
        self._edition += 1
        decoders, extra = self.decoders, self.padded() if plan.decodes else []
        listed = partial(self._contexts, plan, extra, self._edition, decoders.counter)
        chunks: tuple[PromptChunk, ...] = ()
        if plan.chunks:
            chunks = tuple([PromptChunk(n, s.computed, s.computed + n == s.target) for s, n in plan.chunks])
            going_on = [index for index, (s, n) in enumerate(plan.chunks) if n == 1 == self.queries and s.given]
            if going_on:
                # One query behind a cache that came from elsewhere is what a sequence that decodes has.
                rest = tuple([chunk for index, chunk in enumerate(chunks) if index not in going_on])
                others = tuple([chunks[index].context_tokens for index in going_on])
                return StepWork(rest, listed() + others, self.queries)
        if not plan.decodes:
            return StepWork(chunks, (), self.queries)
        if plan.stalled or extra:
            return StepWork(chunks, listed(), self.queries)
        return StepWork.counted(chunks, self.queries, decoders.count, decoders.context_tokens, decoders.longest, listed)

    def padded(self) -> list[Sequence]:
        """Sequences that have ended and are computed all the same, beside those that decode."""
        return self.lingering if self.wastes else []

    def _contexts(self, plan: StepPlan, extra: list[Sequence], edition: int, counter: int) -> tuple[int, ...]:
        """Of the sequences that decode in a plan's step, which no other has followed yet."""
        if edition != self._edition:
            raise RuntimeError("contexts of a step that is over; Work.kept() lists them in time")
        own = self.decoders.sequences() if plan.decodes else []
        if plan.stalled:
            stalled = {sequence.place for sequence in plan.stalled}
            own = [each for each in own if each.place not in stalled]
        return tuple([each.offset + counter for each in (*own, *extra)])

    def go_on(self, plan: StepPlan, steps: int) -> None:
        """A run has more than one step: what ended before it has left, and blocks of all of them are held."""
        if self.overlap and self.lingering:
            self.let_go()
        if plan.decodes:
            self.decoders.hold(steps)

    def complete(self, plan: StepPlan, steps: int) -> tuple[list[Sequence], list[Sequence]]:
        """``steps`` of a plan are done: sequences that put out their first token, and those that ended, in order of
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
        """It has ended."""
        if self.overlap:
            self.lingering.append(sequence)
        else:
            self.release(sequence)

    def _prompt_is_done(self, sequence: Sequence, first: list[Sequence], ended: list[Sequence]) -> None:
        del self.prefilling[sequence.place]
        sequence.made += 1
        if sequence.made == 1:
            first.append(sequence)
        if sequence.made == sequence.request.output_tokens:
            sequence.offset = sequence.computed - self.decoders.counter
            self._outputs_ahead -= 1
            ended.append(sequence)
        else:
            self._outputs_ahead -= 1 + sequence.request.output_tokens - sequence.made
            self.decoders.start(sequence)

    # --- what others ask ------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        """Requests that are here and not admitted."""
        return len(self.waiting) + len(self.mailbox) + len(self.noted)

    @property
    def present(self) -> int:
        """Requests that are here and have not ended."""
        return len(self.running) + self.queued - len(self.lingering)

    def tokens_ahead(self, steps: int = 0) -> int:
        """Tokens to be computed for requests that are here: of prompts, and of answers; ``steps`` of a run are done."""
        done = self.decoders.count * self.decoders.advance(steps)
        return self._prompt_tokens_ahead + self._outputs_ahead + self.decoders.tokens_left - done

    def used_tokens(self, steps: int = 0) -> int:
        """Tokens of the cache in use, in whole blocks; ``steps`` of a run are done."""
        used = self.pool.used + self.decoders.blocks_after(steps)
        if steps > 1 and self.lingering and self.overlap:
            used -= sum([sequence.held for sequence in self.lingering])
        return used * self.block


def _place(sequence: Sequence) -> int:
    return sequence.place
