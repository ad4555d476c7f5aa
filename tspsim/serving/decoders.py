"""Decoding sequences of a replica, advanced together without a loop over them.

All advance by the same number of tokens per step. Their coordinates do not change meanwhile: ``counter`` counts tokens,
and a sequence stores the difference of its context from it (``offset``) and the counter's value at the sequence's end
(``end_at``). Sums, the longest context, the next end and the blocks of further steps follow:

    Σ contexts = Σ offsets + B · counter
    the token at counter c is the first of a block for the sequences with (offset + c) mod block = 0
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from heapq import heapify, heappop, heappush
from math import inf

from .blocks import BlockPool
from .sequence import Sequence
from .speculation import AcceptanceModel


class Decoders:
    """The decoding sequences of one attention replica."""

    def __init__(self, pool: BlockPool, speculation: AcceptanceModel | None) -> None:
        self.pool, self.block = pool, pool.block_tokens
        self.limited = pool.capacity != inf
        self.speculation = speculation
        self.sampled = speculation is not None and speculation.sampled
        #: Positions per sequence that a step computes: one, and its drafts.
        self.query_len = 1 if speculation is None else speculation.query_len
        #: Tokens that its blocks hold beyond its context: room for drafts.
        self.slack = self.query_len - 1
        #: Number of sequences, and output tokens of each since the beginning of time.
        self.count = self.counter = 0
        self._sequences: dict[int, Sequence] = {}
        self._offsets = self._ends_sum = 0
        self._ends: list[tuple[int, int, Sequence]] = []
        self._tall: list[tuple[int, int, Sequence]] = []
        self._short: list[tuple[int, int, Sequence]] = []
        #: Number of sequences by (offset + slack) mod block; and the counter up to which their blocks are held.
        self._phases = [0] * self.block
        self._level = 0
        #: Steps since no sequence decoded, whose fraction of tokens is carried.
        self._carried = 0

    # --- membership ---------------------------------------------------------------------------------------

    def start(self, sequence: Sequence) -> None:
        """The sequence decodes from the next step on."""
        if not self.count:
            self._carried = 0
        sequence.decoding = True
        sequence.offset = sequence.computed - self.counter
        sequence.end_at = self.counter + sequence.request.output_tokens - sequence.emitted
        self.count += 1
        self._sequences[sequence.place] = sequence
        self._enter(sequence)

    def drop(self, sequence: Sequence) -> None:
        """The sequence stops decoding; its computed tokens, outputs and blocks are written back."""
        sequence.decoding = False
        del self._sequences[sequence.place]
        self.count -= 1
        self._leave(sequence)
        sequence.emitted = sequence.request.output_tokens - max(0, sequence.end_at - self.counter)
        sequence.computed = sequence.offset + self.counter
        sequence.held = self._held(sequence)

    def _enter(self, sequence: Sequence) -> None:
        self._offsets += sequence.offset
        self._ends_sum += sequence.end_at
        self._phases[(sequence.offset + self.slack) % self.block] += 1
        heappush(self._ends, (sequence.end_at, sequence.place, sequence))
        heappush(self._tall, (-sequence.offset, sequence.place, sequence))
        if len(self._tall) > 4 * self.count + 64:
            self._tall = [(-member.offset, member.place, member) for member in self._sequences.values()]
            heapify(self._tall)
        heappush(self._short, (sequence.offset, sequence.place, sequence))
        if len(self._short) > 4 * self.count + 64:
            self._short = [(member.offset, member.place, member) for member in self._sequences.values()]
            heapify(self._short)

    def _leave(self, sequence: Sequence) -> None:
        self._offsets -= sequence.offset
        self._ends_sum -= sequence.end_at
        self._phases[(sequence.offset + self.slack) % self.block] -= 1

    def _shift(self, sequence: Sequence, tokens: int) -> int:
        """Moves a sequence ``tokens`` beyond the counter; returns the blocks that it saves."""
        before = self._held(sequence)
        self._leave(sequence)
        sequence.offset += tokens
        sequence.end_at -= tokens
        self._enter(sequence)
        return before - self._held(sequence)

    def _held(self, sequence: Sequence) -> int:
        return -(-(sequence.offset + self.slack + self._level) // self.block)

    def sequences(self) -> list[Sequence]:
        """The sequences in the order in which they began to decode."""
        return list(self._sequences.values())

    # --- their contexts -------------------------------------------------------------------------------------

    @property
    def context_tokens(self) -> int:
        """Context tokens of all together."""
        return self._offsets + self.count * self.counter

    @property
    def tokens_left(self) -> int:
        """Outputs still to come."""
        return self._ends_sum - self.count * self.counter

    def context(self, sequence: Sequence) -> int:
        """Context of a sequence that decodes, or did."""
        return sequence.offset + self.counter

    @property
    def longest(self) -> int:
        """The longest context; 0 without sequences."""
        if not self.count:
            return 0
        tall = self._tall
        while True:
            offset, place, sequence = tall[0]
            if sequence.decoding and sequence.offset == -offset and sequence.place == place:
                return self.counter - offset
            heappop(tall)

    @property
    def shortest(self) -> int:
        """The shortest context; 0 without sequences."""
        if not self.count:
            return 0
        short = self._short
        while True:
            offset, place, sequence = short[0]
            if sequence.decoding and sequence.offset == offset and sequence.place == place:
                return self.counter + offset
            heappop(short)

    # --- steps ----------------------------------------------------------------------------------------

    def advance(self, steps: int) -> int:
        """Output tokens of each in the next ``steps`` steps; with sampled drafts, the most possible."""
        if self.speculation is None:
            return steps
        if self.sampled:
            return self.query_len * steps
        return self.speculation.tokens(self._carried + steps) - self.speculation.tokens(self._carried)

    def advances(self, steps: int) -> range | list[int]:
        """Tokens by which contexts have grown before each of the next ``steps`` steps."""
        if self.speculation is None:
            return range(steps)
        return [self.advance(step) for step in range(steps)]

    def steps_to_end(self) -> int:
        """Steps until the next sequence ends; there is at least one."""
        ends = self._ends
        while True:
            end_at, place, sequence = ends[0]
            if sequence.decoding and sequence.end_at == end_at and sequence.place == place:
                break
            heappop(ends)
        tokens = end_at - self.counter
        if self.speculation is None:
            return tokens
        if self.sampled:
            return 1
        return self.speculation.steps_for(self.speculation.tokens(self._carried) + tokens) - self._carried

    def steps_with_room(self, most: int) -> int:
        """How many of ``most`` steps can run until a block is missing, the step whose blocks are held included."""
        if self.count * (self.advance(most) // self.block + 1) <= self.pool.free:
            return most
        return min(most, self._steps_with_room())

    def _steps_with_room(self) -> int:
        tokens = self._level - self.counter + self._room()
        if self.speculation is None:
            return tokens
        return self.speculation.steps_within(self.speculation.tokens(self._carried) + tokens) - self._carried

    def run(self, steps: int, stalled: list[Sequence]) -> list[Sequence]:
        """Completes ``steps`` decode steps for all but stalled sequences; returns the ended ones."""
        self.hold(steps)
        self.counter = self._level
        self._carried += steps
        if self.sampled:
            self._draw(stalled)
        ended = []
        ends, counter = self._ends, self.counter
        while ends and ends[0][0] <= counter:
            end_at, place, sequence = heappop(ends)
            if sequence.decoding and sequence.end_at == end_at and sequence.place == place:
                self.drop(sequence)
                ended.append(sequence)
        return ended

    def _draw(self, stalled: list[Sequence]) -> None:
        """Replaces the assumed full acceptance by the drawn one."""
        assert self.speculation is not None
        still = {sequence.place for sequence in stalled}
        for sequence in self.sequences():
            if sequence.place not in still:
                if sequence.draws is None:
                    sequence.draws = self.speculation.draws(sequence.request)
                self.pool.give_back(self._shift(sequence, next(sequence.draws) - self.query_len))

    # --- blocks ---------------------------------------------------------------------------------------

    def blocks(self) -> int:
        """Blocks that one more step of all takes."""
        if self.speculation is None:
            return self._phases[-self._level % self.block] if self._level == self.counter else 0
        return self._growth(self.counter + self.advance(1))

    def blocks_of(self, sequence: Sequence) -> int:
        """Blocks that one more step of one sequence takes."""
        tokens = sequence.offset + self.slack + self.counter
        return -(-(tokens + self.advance(1)) // self.block) - -(-tokens // self.block)

    def begin(self, stalled: SequenceOf[Sequence] = ()) -> bool:
        """Hold the blocks of the next step, in which ``stalled`` sequences do not advance; returns whether any
        advances."""
        if self.count == len(stalled):
            return False
        for sequence in stalled:
            self.pool.used -= self._shift(sequence, -self.advance(1))
        self.hold(1)
        return True

    def blocks_after(self, steps: int) -> int:
        """Blocks that ``steps`` steps take beyond the held ones."""
        to = self.counter + (steps if self.speculation is None else self.advance(steps))
        return self._growth(to) if steps and to > self._level else 0

    def hold(self, steps: int) -> None:
        """Hold the blocks of the next ``steps`` steps."""
        to, level = self.counter + (steps if self.speculation is None else self.advance(steps)), self._level
        if to != level:
            blocks = self._phases[-level % self.block] if to == level + 1 else self._growth(to)
            if blocks:
                self.pool.take(blocks)
            self._level = to

    def _growth(self, to: int) -> int:
        """Blocks that all take from the level to a value of the counter."""
        level = self._level
        if to <= level or not self.count:
            return 0
        cycles, rest = divmod(to - level, self.block)
        blocks = cycles * self.count
        if rest == 1:
            blocks += self._phases[-level % self.block]
        elif rest:
            # Phase −c mod block begins a block at counter c = level, …, level + rest − 1: neighbouring phases,
            # cyclically.
            last, phases = -(level + rest - 1) % self.block, self._phases
            blocks += sum(phases[last : last + rest]) + sum(phases[: max(0, last + rest - self.block)])
        return blocks

    def _room(self) -> int:
        """Tokens by which the counter can advance from the level until a block is missing."""
        cycles, left = divmod(int(self.pool.free), self.count)
        tokens = cycles * self.block
        phases, block, level = self._phases, self.block, self._level + tokens
        for _ in range(block):
            left -= phases[-level % block]
            if left < 0:
                break
            level += 1
            tokens += 1
        return tokens
