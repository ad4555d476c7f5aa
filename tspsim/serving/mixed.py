"""What steps with prompts cost, from the parts of their programs that depend on different things.

In a chain of kernels and transfers beside a host that issues them,

    seconds = max over i of ( H_i + Σ_{j ≥ i} d_j ) + what follows

where d_j is what instruction j takes and H_i when the host has issued instruction i: the device waits for the host at
the last i that decides, and for nothing behind it. All sums over j are linear in d, so that for every i the sum over
the whole program is a sum of *parts*: what depends on tokens alone (products, experts, norms, all-reduces), on the
tokens that are sampled, on the sequences that decode, or on the prompts. Each is tabulated by itself (:mod:`.grid`).
Kernels that take all prompts, or all rows, at once are priced for every step.

Which part an instruction belongs to is found out, not known: the program is written for a few compositions of a step
that differ in one thing, and what changes with it depends on it.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import NamedTuple

import numpy as np

from ..model.attention.base import MOST_DECODED, prefilled
from ..parallel import Job
from ..parallel.serving_engine import Captured
from .flat import Flat, Thing
from .grid import TILE, Cells, Line
from .programs import StepPrograms
from .tables import Floats
from .work import Chunk, Work

#: Tokens in the cache of sequences that stand beside what is looked at.
STANDING = 64
#: Of compositions that are compared: tokens of the first piece of a prompt and before it, of the second piece;
#: sequences that decode, and their contexts.
PIECE, BEHIND, SECOND, BATCH, CONTEXT = 512, 64, 160, 40, 4096


class Part(Enum):
    """What an instruction's time depends on."""

    NOTHING = "nothing"
    TOKENS = "tokens that pass"
    OUTPUTS = "tokens that are sampled"
    DECODING = "sequences that decode"
    LENGTHS = "tokens that prompts have, together"
    PROMPTS = "prompts"
    CARRIED = "rows that it carries itself"


class Change(Enum):
    """In what a composition differs from the first."""

    PROMPT_CONTEXT = "further tokens before a piece of a prompt"
    DECODE_CONTEXT = "further tokens in the caches of those that decode"
    FEWER = "fewer sequences decode"
    SAME_TOKENS = "the same of one, and its tokens are a prompt's"
    MORE_TOKENS = "further tokens of a prompt"
    SAME_LENGTH = "the same, and as many less before them"
    MORE_OUTPUTS = "a prompt ends"


#: A part's instructions change where all of the first do, and nowhere but in those and the second.
PARTS: dict[Part, tuple[set[Change], set[Change]]] = {
    Part.NOTHING: (set(), set()),
    Part.TOKENS: ({Change.MORE_TOKENS, Change.SAME_LENGTH}, {Change.FEWER}),
    Part.OUTPUTS: ({Change.MORE_OUTPUTS}, {Change.FEWER, Change.SAME_TOKENS}),
    Part.DECODING: ({Change.FEWER, Change.SAME_TOKENS}, {Change.DECODE_CONTEXT}),
    Part.LENGTHS: ({Change.PROMPT_CONTEXT, Change.MORE_TOKENS}, {Change.SAME_TOKENS}),
    Part.PROMPTS: ({Change.MORE_TOKENS}, {Change.PROMPT_CONTEXT, Change.SAME_TOKENS, Change.SAME_LENGTH}),
}


def part_by(changed: set[Change]) -> Part | None:
    """The part whose instructions change so; None where there is none."""
    for part, (surely, perhaps) in PARTS.items():
        if surely <= changed <= surely | perhaps:
            return part
    return None


class Kind(NamedTuple):
    """Steps whose programs have the same instructions."""

    decodes: bool
    outputs: bool
    captured: Captured


class Mixed:
    """Steps of one plan with prompts, and sequences that decode or not."""

    def __init__(self, programs: StepPrograms, bends: tuple[int, ...]) -> None:
        self.programs, self.bends = programs, bends
        self._shapes: dict[Kind, Shape | None] = {}
        engine = programs.question.work.stack.engine
        self.sizes = engine.graphs.tokens(1, engine.slots) if engine.graphs.pieces and engine.graphs.pads else ()

    def seconds(self, work: Work) -> float | None:
        """Of one step; None where it cannot be put together from parts."""
        if any(chunk.query_tokens <= MOST_DECODED for chunk in work.chunks):
            return None
        pieces = bool(self.sizes) and work.tokens <= self.sizes[-1]
        kind = Kind(work.sequences > 0, work.outputs > 0, Captured.PIECES if pieces else Captured.NOTHING)
        if kind not in self._shapes:
            self._shapes[kind] = shape_of(self, kind)
        shape = self._shapes[kind]
        return None if shape is None else shape.seconds(work)


def compositions(kind: Kind, queries: int, more: int, tokens: int) -> dict[Change | None, Work]:
    """The first, of ``tokens`` tokens, and those that differ from it in one thing, by ``more`` tokens of prompts where
    it is that."""

    def work(*, add: int = 0, before: int = 0, fewer: int = 0, context: int = CONTEXT, end: int = 0) -> Work:
        batch = BATCH - fewer if kind.decodes else 0
        first = tokens - SECOND - (BATCH * queries if kind.decodes else 0) + add
        # Without any that decodes one piece ends at least.
        ends = 0 if not kind.outputs else end + (not kind.decodes)
        pieces = [Chunk(first, BEHIND + before, ends > 0), Chunk(SECOND, 0, ends > 1)]
        return Work(pieces, (context,) * batch, queries)

    found: dict[Change | None, Work] = {
        None: work(),
        Change.PROMPT_CONTEXT: work(before=more),
        Change.MORE_TOKENS: work(add=more),
        Change.SAME_LENGTH: work(add=more, before=-more),
    }
    if kind.outputs:
        found[Change.MORE_OUTPUTS] = work(end=1)
    if kind.decodes:
        found[Change.DECODE_CONTEXT] = work(context=2 * CONTEXT)
        found[Change.SAME_TOKENS] = work(add=queries, fewer=1)
        found[Change.FEWER] = work(fewer=-(-more // queries))
    return found


def shape_of(mixed: Mixed, kind: Kind) -> Shape | None:
    """What steps of a kind are made of; None where their programs are no chain of one stage, or their parts cannot be
    told from each other."""
    programs = mixed.programs
    sizes = mixed.sizes if kind.captured is Captured.PIECES else ()
    tokens, more = (sizes[-2], sizes[-1] - sizes[-2]) if sizes else (max(mixed.sizes, default=0) + PIECE + SECOND, 1)
    written: dict[Change | None, tuple[Job, Flat]] = {}
    for change, work in compositions(kind, programs.queries, more, tokens).items():
        jobs = programs.of(work)
        if len(jobs) != 1 or jobs[0].plan.pp > 1 or jobs[0].capture is not kind.captured:
            return None
        if not written and programs.walked(jobs[0]) is None:
            return None
        written[change] = jobs[0], programs.flat(jobs[0])
    first = written[None][1]
    if any(flat.follows.shape != first.follows.shape for _, flat in written.values()):
        return None
    parts = []
    for number, thing in enumerate(first.things):
        part = part_by({change for change, (_, flat) in written.items() if change and flat.things[number] != thing})
        if part in (None, Part.PROMPTS) and all(carries(job, flat.things[number]) for job, flat in written.values()):
            part = Part.CARRIED
        if part is None:
            return None
        parts.append(part)
    return Shape(mixed, first, tuple(parts), kind)


def segments_of(rows: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Prompts among some rows as a prefill kernel takes them."""
    return tuple((queries, queries + context) for queries, context, count in prefilled(rows) for _ in range(count))


def carries(job: Job, thing: Thing) -> bool:
    """Whether an operator's rows are those of its pass, or its segments the pass's prompts."""
    if hasattr(thing, "segments"):
        return bool(thing.segments == segments_of(job.rows))
    return getattr(thing, "rows", None) == job.rows


class Shape:
    """Steps that are alike but for sizes."""

    def __init__(self, mixed: Mixed, flat: Flat, parts: tuple[Part, ...], kind: Kind) -> None:
        self.programs, self.flat, self.kind, self.bends = mixed.programs, flat, kind, mixed.bends
        self._sizes = mixed.sizes if kind.captured is Captured.PIECES else ()
        self._index = {part: [i for i, each in enumerate(parts) if each is part] for part in Part}
        self._carried = [flat.things[i] for i in self._index[Part.CARRIED]]
        queries = self.programs.queries
        self._beside = queries if kind.decodes else 0
        #: Tokens of a prompt's piece that stands beside what is looked at.
        self._piece = (self._sizes[-1] if self._sizes else max(mixed.sizes, default=MOST_DECODED) + 1) - self._beside
        self._constant = self._sums(flat, Part.NOTHING)
        smallest = self._written(self._work(self._piece if not self._sizes else self._sizes[0] + MOST_DECODED))
        least = self._least = sum(float(self._sums(smallest, part)[0]) for part in Part)
        self._tokens = Cells(
            lambda n: self._part(Part.TOKENS, self._work(n - self._beside)),
            least,
            first=self._beside + (MOST_DECODED + 1 if self._sizes else self._piece),
            ends=self._sizes,
        )
        self._outputs = Cells(lambda n: self._part(Part.OUTPUTS, self._sampling(n)), least, coarse=64)
        self._lengths = Cells(lambda n: self._part(Part.LENGTHS, self._long(n)), least)
        self._prompts: dict[int, Cells] = {}
        self._decoding: dict[int, Line] = {}

    # --- what is looked at ------------------------------------------------------------------------------------

    def _work(self, tokens: int, cached: int = 0) -> Work:
        """A piece of a prompt and, where any decodes, one sequence."""
        return self._step((Chunk(tokens, cached),))

    def _step(self, pieces: tuple[Chunk, ...]) -> Work:
        """Pieces of prompts and, where any decodes, one sequence; the pieces end where something has to be sampled."""
        ends = self.kind.outputs and not self.kind.decodes
        contexts = (STANDING,) if self.kind.decodes else ()
        return Work(tuple(piece._replace(ends=ends) for piece in pieces), contexts, self.programs.queries)

    def _long(self, length: int) -> Work:
        """A piece of a prompt that has so many tokens then, at least as many as the piece."""
        return self._work(min(length, self._piece), max(0, length - self._piece))

    def _sampling(self, outputs: int) -> Work:
        """A step with so many tokens sampled, or as near as sequences come with all their queries."""
        each = self.programs.queries
        if not self.kind.decodes:
            return Work(tuple(Chunk(self._piece, 0) for _ in range(outputs)), (), each)
        batch = max(1, outputs // each)
        tokens = max(MOST_DECODED + 1, self._piece - (batch - 1) * each)
        return Work((Chunk(tokens, 0, outputs > batch * each),), (STANDING,) * batch, each)

    def _written(self, work: Work) -> Flat:
        (job,) = self.programs.of(work)
        return self.programs.flat(job)

    def _part(self, part: Part, work: Work) -> Floats:
        return self._sums(self._written(work), part) if self._index[part] else self._constant * 0.0

    def _sums(self, flat: Flat, part: Part) -> Floats:
        """For every place, the seconds of a part's instructions from there on."""
        index = self._index[part]
        taken = np.array([self.programs.thing_s(flat.things[i], self.kind.captured) for i in index])
        sums: Floats = self.flat.follows[:, index] @ taken
        return sums

    # --- a step -----------------------------------------------------------------------------------------------

    def seconds(self, work: Work) -> float | None:
        """Of a step of this shape; None where what it is padded with does not fit into a table."""
        batch, context_tokens, tokens = work.sequences, work.context_tokens, work.tokens
        if self._sizes:
            # Padding is sequences of one token.
            more = next(size for size in self._sizes if size >= tokens) - tokens
            if more and not batch:
                return None
            tokens, batch, context_tokens = tokens + more, batch + more, context_tokens + more
            if self._piece - (batch - 1) * self.programs.queries <= MOST_DECODED + TILE:
                return None
        total = self.flat.issued_s + self._constant + self._tokens(tokens)
        if self.kind.outputs:
            total = total + self._outputs(work.outputs)
        if self.kind.decodes:
            total = total + self._decode(batch, context_tokens / batch)
        if self._index[Part.LENGTHS]:
            total = total + self._lengths(sum([queries + context for queries, context, _ in work.chunks]))
        if self._index[Part.PROMPTS]:
            for chunk in work.chunks:
                total = total + self._read(chunk.query_tokens, chunk.context_tokens)
        if self._carried:
            rows = rows_of(work, batch - work.sequences)
            taken = [self.programs.thing_s(over(each, rows), self.kind.captured, kept=False) for each in self._carried]
            total = total + self.flat.follows[:, self._index[Part.CARRIED]] @ np.array(taken)
        makespan_s = float(total.max())
        return makespan_s + self.programs.host_s(len(work.chunks) + work.sequences, makespan_s)

    def _read(self, tokens: int, cached: int) -> Floats:
        """What depends on prompts and takes no list of them, between contexts straight. Of several pieces each counts
        as a call of its own, which starts once too often."""
        low, high = around(cached)
        start = self._behind(low)(tokens)
        if cached == low:
            return start
        return start + (self._behind(high)(tokens) - start) * ((cached - low) / (high - low))

    def _behind(self, cached: int) -> Cells:
        if cached not in self._prompts:

            def value(tokens: int) -> Floats:
                return self._part(Part.PROMPTS, self._work(tokens, cached))

            self._prompts[cached] = Cells(value, self._least, first=MOST_DECODED + 1)
        return self._prompts[cached]

    def _decode(self, batch: int, mean: float) -> Floats:
        """What depends on sequences that decode, between the ends of a cell of batches."""
        wide = max(1, TILE // self.programs.queries)
        low = (batch - 1) // wide * wide + 1
        high = low + wide - 1
        start = self._decoding_of(low)(mean)
        if batch == low:
            return start
        return start + (self._decoding_of(high)(mean) - start) * ((batch - low) / (high - low))

    def _decoding_of(self, batch: int) -> Line:
        if batch not in self._decoding:
            tokens = max(MOST_DECODED + 1, self._piece - (batch - 1) * self.programs.queries)

            def value(context: int) -> Floats:
                work = Work((Chunk(tokens, 0, False),), (max(1, context),) * batch, self.programs.queries)
                return self._part(Part.DECODING, work)

            self._decoding[batch] = Line(value, self._least, self.bends)
        return self._decoding[batch]


def around(cached: int) -> tuple[int, int]:
    """Contexts of prompts that tables are for: two an octave.

    >>> around(0), around(64), around(100), around(5000)
    ((0, 0), (64, 96), (96, 128), (4096, 6144))
    """
    if not cached:
        return 0, 0
    power = 1 << (cached.bit_length() - 1)
    middle = power + power // 2
    return (power, max(middle, power + 1)) if cached < middle else (middle, 2 * power)


def rows_of(work: Work, padding: int) -> tuple[tuple[int, int, int], ...]:
    """Rows of a pass: of the sequences that decode the longest, and the others as equal as they come."""
    rows = [(chunk.query_tokens, chunk.context_tokens, 1) for chunk in work.chunks]
    if work.sequences:
        longest, others = work.longest, work.sequences - 1
        rows.append((work.queries, longest, 1))
        if others:
            each, more = divmod(work.context_tokens - longest, others)
            rows += [(work.queries, each + add, count) for add, count in ((1, more), (0, others - more)) if count]
    return (*rows, (1, 1, padding)) if padding else tuple(rows)


def over(thing: Thing, rows: tuple[tuple[int, int, int], ...]) -> Thing:
    """An operator that carries its rows over others."""
    carried = {"segments": segments_of(rows)} if hasattr(thing, "segments") else {"rows": rows}
    other: Thing = replace(thing, **carried)  # type: ignore[type-var]
    return other
