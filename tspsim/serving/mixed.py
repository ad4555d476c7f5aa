"""Costs of steps with prompts, from parts of their programs with different arguments.

In a chain of kernels and transfers beside a host that issues them,

    seconds = max over i of ( H_i + Σ_{j ≥ i} d_j ) + host time after the step

where d_j is the time of instruction j and H_i the time at which the host has issued instruction i: the device waits for
the host at the last decisive i, and for nothing after it. All sums over j are linear in d, so for every i the sum over
the whole program is a sum of *parts*: instructions that depend only on tokens (products, experts, norms, all-reduces),
on sampled tokens, on decoding sequences, or on prompts. Each part is tabulated by itself (:mod:`.grid`). Kernels that
read all prompts, or all rows, at once are priced for every step.

Whoever writes an instruction states the quantity that its size depends on (:class:`~tspsim.operators.BatchQuantity`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..base.memo import remembered
from ..model.attention.base import MOST_DECODED, attended
from ..operators import BatchQuantity, Role, Rows
from ..parallel import Job
from ..parallel.serving_engine import Captured
from ..parallel.step import passes_of
from ..program.layout import InstructionLayout, StageCall
from ..steps import PromptChunk
from .compositions import BATCH, SECOND, StepComposition
from .grid import TILE, Cells, KnotLine, TokenVectors
from .programs import StepPrograms
from .row_consumers import RowConsumer, consumer_of
from .tables import EPSILON, Floats
from .work import StepWork

#: Tokens of a typical step.
TYPICAL = 2048
#: Programs kept beside the current one.
LAST = 7
#: Prompts whose own kernels are kept: lengths recur, sets of contexts do not.
MOST_PROMPTS = 4096
#: Numbers of sequences and knots whose lines are kept.
MOST_BATCHES = 4096
#: Context of the sequences that decode beside the measured part.
STANDING = 64


class UnlikeError(Exception):
    """Programs of some sizes have other instructions than that of a typical step."""


class Mixed:
    """Steps of one plan with prompts, with or without decoding sequences.

    Parameters
    ----------
    programs
        Programs of the plan's engine.
    plain
        Programs of an engine without graphs: uncaptured steps do not depend on graphs.
    shapes
        Shapes of uncaptured steps, shared by all engines that differ only in their graphs.
    breakpoints
        Breakpoints of contexts, where tables of decoding sequences have a knot.
    serial
        Whether to add all instructions up, also where streams overlap.
    """

    def __init__(
        self,
        programs: StepPrograms,
        plain: StepPrograms,
        shapes: dict[StepComposition, Shape | None],
        breakpoints: tuple[int, ...],
        *,
        serial: bool = False,
    ) -> None:
        self.programs, self.plain, self.breakpoints, self.serial = programs, plain, breakpoints, serial
        self._plain_shapes = shapes
        self._shapes: dict[StepComposition, Shape | None] = {}
        #: The same by whether steps decode, sample, have cached tokens and run in captured pieces: keys are quick.
        self._shape_of: dict[tuple[bool, bool, bool, bool], Shape | None] = {}
        engine = programs.question.work.stack.engine
        self.sizes = engine.graphs.tokens(1, engine.slots) if engine.graphs.pieces and engine.graphs.pads else ()

    def seconds(self, work: StepWork, expert_tokens: int | None = None) -> float | None:
        """Seconds of one step; None where it cannot be assembled from parts. ``expert_tokens``: mean tokens of the
        replicas that share experts; None: the replica's own number."""
        cached = outputs = 0
        for tokens, before, ends in work.chunks:
            if tokens <= MOST_DECODED:
                return None
            cached += before
            outputs += ends
        outputs += work.query_len * work.sequences
        pieces = bool(self.sizes) and work.tokens <= self.sizes[-1]
        try:
            facts = work.sequences > 0, outputs > 0, cached > 0, pieces
            shape = self._shape_of.get(facts)
            if shape is None and facts not in self._shape_of:
                self._shape_of[facts] = None
                shape = self._shape_of[facts] = self._found(*facts)
            return None if shape is None else shape.seconds(work, outputs, cached, expert_tokens)
        except UnlikeError:
            return None

    def _found(self, decodes: bool, outputs: bool, cached: bool, pieces: bool) -> Shape | None:
        kind = StepComposition(decodes, outputs, cached, Captured.PIECES if pieces else Captured.NOTHING)
        shapes = self._shapes if pieces else self._plain_shapes
        if kind not in shapes:
            shapes[kind] = None
            shapes[kind] = shape_of(self, kind)
        return shapes[kind]


def shape_of(mixed: Mixed, kind: StepComposition) -> Shape | None:
    """The shape of a kind of steps; None where their programs are not a chain of one stage, or an instruction depends
    on more than one quantity."""
    pieces = kind.captured is Captured.PIECES
    programs, sizes = (mixed.programs, mixed.sizes) if pieces else (mixed.plain, ())
    tokens = sizes[-2] if sizes else TYPICAL
    if tokens - SECOND - BATCH * programs.query_len <= MOST_DECODED:
        return None
    jobs = programs.together(kind.typical(programs.query_len, tokens))
    if len(jobs) != 1 or jobs[0].capture is not kind.captured or jobs[0].micro_batches > 1:
        return None
    (job,) = jobs
    if drafts_apart(job):
        return None
    calls, layout = programs.laid_out(job)
    quantities = programs.quantities(job)
    if BatchQuantity.ROWS in quantities and drafts_read_other_rows(programs, job):
        return None
    parts: list[BatchQuantity] = []
    consumers: list[RowConsumer] = []
    for call, quantity in zip(calls, quantities, strict=True):
        part = kind.quantity(quantity)
        if part is BatchQuantity.TOKENS and getattr(call.what, "role", Role.OTHER).routed:
            part = BatchQuantity.EXPERTS
        if part is BatchQuantity.BENT_PROMPTS:
            part = BatchQuantity.PROMPTS
        elif part in (BatchQuantity.PROMPTS, BatchQuantity.ROWS):
            consumer = consumer_of(call, part, kind.decodes)
            if consumer is not None:
                part = BatchQuantity.ROWS
                consumers.append(consumer)
            elif part is BatchQuantity.ROWS:
                return None
        parts.append(part)
    if programs.taken_s(calls, kind.captured) is None or not (layout.chained or mixed.serial):
        return None
    return Shape(programs, sizes, mixed.breakpoints, layout, tuple(parts), consumers, kind)


def drafts_apart(job: Job) -> bool:
    """Whether quantities of a drafter's passes are not those of the model's. The first has fewer tokens a sequence that
    decodes, which padding to a captured size mostly makes up for; later ones have a token a sequence."""
    _, *passes = passes_of(job)
    captured = job.capture is Captured.PIECES
    return any(part.tokens not in (0, job.tokens) and (number or not captured) for number, part in enumerate(passes))


def drafts_read_other_rows(programs: StepPrograms, job: Job) -> bool:
    """Whether kernels of a drafter read all rows of a pass that are not those of the model's."""
    rows = attended(job.rows)
    passes = [part for part in programs.passes(job)[1:] if attended(part.rows) != rows]
    operators = (own for part in passes for entry in part.attention_operators.values() for own in entry.operators)
    return any(own.rows_field is not None and own.rows_field.reads is BatchQuantity.ROWS for own in operators)


class Shape:
    """Steps with the same instructions, of any sizes."""

    def __init__(
        self,
        programs: StepPrograms,
        sizes: tuple[int, ...],
        breakpoints: tuple[int, ...],
        layout: InstructionLayout,
        parts: tuple[BatchQuantity, ...],
        consumers: Sequence[RowConsumer],
        kind: StepComposition,
    ) -> None:
        self.programs, self.layout, self.kind, self.breakpoints, self._sizes = (
            programs,
            layout,
            kind,
            breakpoints,
            sizes,
        )
        index = {part: [i for i, own_part in enumerate(parts) if own_part is part] for part in BatchQuantity}
        self._where = index
        self._follows = {part: np.ascontiguousarray(layout.follows[:, index[part]]) for part in BatchQuantity}
        self._consumers = consumers
        self._of_prompts = [consumer.of_prompts for consumer in consumers]
        self._over = [consumer.over() for consumer in consumers]
        self._known_s = remembered(MOST_PROMPTS)(self._consumer_s)
        self._beside, self._before = programs.query_len if kind.decodes else 0, int(kind.cached)
        #: Tokens of the prompt chunk that accompanies the measured part.
        self._piece = (sizes[-1] - self._beside) if sizes else MOST_DECODED + 1
        self._last: dict[StepWork, list[StageCall]] = {}
        smallest = self._written(self._work(MOST_DECODED + 1 if not sizes else sizes[0] + MOST_DECODED))
        least = self._least = sum(float(self._sums(smallest, part)[0]) for part in BatchQuantity)
        first = self._beside + MOST_DECODED + 1

        def over_tokens(part: BatchQuantity) -> Cells:
            return Cells(lambda n: self._part(part, self._work(n - self._beside)), least, first=first, ends=sizes)

        self._tokens, self._experts = over_tokens(BatchQuantity.TOKENS), over_tokens(BatchQuantity.EXPERTS)
        self._of_all = TokenVectors(self._of_experts, least)
        self._outputs = Cells(lambda n: self._part(BatchQuantity.OUTPUTS, self._sampling(n)), least, coarse=64)
        self._read_tokens = Cells(
            lambda n: self._part(BatchQuantity.READ, self._work(n)), least, first=MOST_DECODED + 1
        )
        self._cached = Cells(lambda n: self._part(BatchQuantity.CACHED, self._work(self._piece, n)), least)
        self._lengths = Cells(lambda n: self._part(BatchQuantity.LENGTHS, self._long(n)), least)
        self._prompts: dict[int, Cells] = {}
        self._decoding: dict[int, KnotLine] = {}
        #: (Sequences, octave of their mean context) → the ends of their cell, and the line of the first.
        self._cells: dict[tuple[int, int], tuple[int, int, KnotLine]] = {}
        #: (Sequences, knot of their mean context) → the vector there, and its growth to the next.
        self._between: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        # Several prompts in a window cost the same as one prompt of all their tokens, if this holds.
        half = self._piece // 2 if sizes else TYPICAL // 2
        apart = self._part(BatchQuantity.PROMPTS, self._step((PromptChunk(half + 32, 0), PromptChunk(half - 32, 0))))
        together = self._part(BatchQuantity.PROMPTS, self._step((PromptChunk(2 * half, 0),)))
        self._joins = bool(abs(apart - together).max() <= EPSILON / 2 * least)
        self._shares_experts, self._reads, self._caches, self._spans, self._prompted = (
            bool(self._where[part])
            for part in (
                BatchQuantity.EXPERTS,
                BatchQuantity.READ,
                BatchQuantity.CACHED,
                BatchQuantity.LENGTHS,
                BatchQuantity.PROMPTS,
            )
        )
        by_rows = self._by_rows = self._follows[BatchQuantity.ROWS]
        #: Where prompts alone are asked for what takes whole rows: what each such kernel's seconds are in every place.
        self._singles: list[Floats] = []
        if consumers and all(self._of_prompts):
            self._singles = [np.ascontiguousarray(by_rows[:, index]) for index in range(len(consumers))]
        self._alone: dict[tuple[int, int], Cells] = {}

    # --- measured steps ------------------------------------------------------------------------------------

    def _work(self, tokens: int, cached: int = 0) -> StepWork:
        """A chunk of a prompt and, where any decodes, one sequence."""
        return self._step((PromptChunk(tokens, cached),))

    def _step(self, pieces: tuple[PromptChunk, ...]) -> StepWork:
        """Chunks of prompts and, where any decodes, one sequence. Chunks end their prompts where something must be
        sampled, and at least one has a cached token where the kind has."""
        if self.kind.cached and not any(piece.context_tokens for piece in pieces):
            pieces = (*pieces[:-1], pieces[-1]._replace(context_tokens=1))
        ends = self.kind.outputs and not self.kind.decodes
        contexts = (STANDING,) if self.kind.decodes else ()
        return StepWork(tuple(piece._replace(ends=ends) for piece in pieces), contexts, self.programs.query_len)

    def _long(self, length: int) -> StepWork:
        """A chunk of a prompt with ``length`` tokens in all, at least those of the chunk."""
        return self._work(min(length, self._piece), max(0, length - self._piece))

    def _sampling(self, outputs: int) -> StepWork:
        """A step with ``outputs`` sampled tokens, or as near as whole sequences come."""
        query_len = self.programs.query_len
        if not self.kind.decodes:
            return StepWork(tuple(PromptChunk(self._piece, self._before) for _ in range(outputs)), (), query_len)
        batch = max(1, outputs // query_len)
        tokens = max(MOST_DECODED + 1, self._piece - (batch - 1) * query_len)
        return StepWork(
            (PromptChunk(tokens, self._before, outputs > batch * query_len),), (STANDING,) * batch, query_len
        )

    def _written(self, work: StepWork) -> list[StageCall]:
        if work not in self._last:
            # Consecutive calls ask for parts of the same programs.
            (job,) = self.programs.together(work)
            self._last = {work: self._calls(job), **dict(islice(self._last.items(), LAST))}
        return self._last[work]

    def _calls(self, job: Job) -> list[StageCall]:
        """The kernel calls of a step of this shape."""
        calls, layout = self.programs.laid_out(job)
        if layout is not self.layout:
            raise UnlikeError
        return calls

    def _of_experts(self, tokens: int) -> Floats:
        """Seconds of the part that depends on expert tokens, with ``tokens`` per replica, in a small step."""
        work = self._work(self._piece)
        (job,) = self.programs.together(work, tokens / work.tokens)
        return self._sums(self._calls(job), BatchQuantity.EXPERTS)

    def _part(self, part: BatchQuantity, work: StepWork) -> Floats:
        return self._sums(self._written(work), part)

    def _sums(self, calls: list[StageCall], part: BatchQuantity) -> Floats:
        """For every position, the seconds of a part's instructions from there on."""
        taken_s = self.programs.taken_s([calls[i] for i in self._where[part]], self.kind.captured)
        assert taken_s is not None
        sums: Floats = self._follows[part] @ np.array(taken_s)
        return sums

    # --- a step -----------------------------------------------------------------------------------------------

    def seconds(
        self, work: StepWork, outputs: int, cached_tokens: int, expert_tokens: int | None = None
    ) -> float | None:
        """Seconds of a step of this shape with ``outputs`` sampled tokens and ``cached_tokens`` before its chunks; None
        where its sequences exceed the tables."""
        batch, context_tokens = work.sequences, work.context_tokens
        read = work.prompt_tokens
        tokens = read + work.query_len * batch
        if self._sizes:
            tokens = next(size for size in self._sizes if size >= tokens)
            if self._piece - (batch - 1) * self.programs.query_len <= MOST_DECODED + TILE:
                return None
        total = self.layout.issued_s + self._tokens(tokens)
        if self._shares_experts:
            total += self._experts(tokens) if expert_tokens is None else self._of_all(expert_tokens)
        if self.kind.outputs:
            total += self._outputs(outputs)
        if self.kind.decodes:
            total += self._decode(batch, context_tokens / batch)
        if self._reads:
            total += self._read_tokens(read)
        if self._caches:
            total += self._cached(cached_tokens)
        if self._spans:
            total += self._lengths(read + cached_tokens)
        if self._prompted:
            total += self._read(work.chunks)
        if self._singles and len(work.chunks) == 1:
            # The time of one prompt depends on its length and its cached tokens, which are tabulated as tokens are.
            low, high = around(work.chunks[0][1])
            share = (work.chunks[0][1] - low) / (high - low) if high > low else 0.0
            for index, column in enumerate(self._singles):
                taken_s = self._alone_of(index, low)(read)[0]
                if share:
                    taken_s += (self._alone_of(index, high)(read)[0] - taken_s) * share
                total += column * taken_s
        elif self._singles:
            prompts = tuple([(chunk[0], chunk[1], 1) for chunk in work.chunks])
            for index, column in enumerate(self._singles):
                total += column * self._known_s(index, self._consumers[index].rows_of(prompts))
        elif self._consumers:
            rows = rows_of(work, self.breakpoints)
            taken = []
            for index, prompts_alone in enumerate(self._of_prompts):
                own = self._consumers[index].rows_of(rows)
                taken.append(self._known_s(index, own) if prompts_alone else self._consumer_s(index, own))
            total += self._by_rows @ np.array(taken)
        makespan_s = self.layout.ends_s(total)
        return makespan_s + self.programs.host_s(len(work.chunks) + work.sequences, makespan_s)

    def _alone_of(self, index: int, cached: int) -> Cells:
        """Seconds of one prompt over its length, with ``cached`` tokens before it, in a kernel of whole rows."""
        cells = self._alone.get((index, cached))
        if cells is None:

            def value(tokens: int) -> Floats:
                return np.array([self._consumer_s(index, self._consumers[index].rows_of(((tokens, cached, 1),)))])

            cells = self._alone[index, cached] = Cells(value, self._least, first=MOST_DECODED + 1)
        return cells

    def _consumer_s(self, index: int, rows: tuple[Any, ...]) -> float:
        """Seconds of a kernel with rows of a step."""
        return self.programs.once_s(self.kind.captured)(self._over[index](rows))

    def _read(self, chunks: tuple[PromptChunk, ...]) -> Floats:
        """The part that depends on prompts without listing them: one chunk is interpolated between contexts, several
        come from their program."""
        if len(chunks) > 1 and not self._joins:
            return self._part(BatchQuantity.PROMPTS, self._step(chunks))
        tokens, cached = sum([chunk.query_tokens for chunk in chunks]), min([chunk.context_tokens for chunk in chunks])
        low, high = around(cached)
        start = self._behind(low)(tokens)
        if cached == low:
            return start
        return start + (self._behind(high)(tokens) - start) * ((cached - low) / (high - low))

    def _behind(self, cached: int) -> Cells:
        if cached not in self._prompts:

            def value(tokens: int) -> Floats:
                return self._part(BatchQuantity.PROMPTS, self._work(tokens, cached))

            self._prompts[cached] = Cells(value, self._least, first=MOST_DECODED + 1)
        return self._prompts[cached]

    def _decode(self, batch: int, mean: float) -> Floats:
        """The part that depends on decoding sequences, between the ends of a cell of batches."""
        octave = int(mean).bit_length()
        cell = self._cells.get((batch, octave))
        if cell is None:
            cell = self._cells[batch, octave] = self._cell_of(batch, 1 << octave >> 1)
        low, high, line = cell
        if batch == low:
            return line(mean)
        share = (batch - low) / (high - low)
        first, last, start, grown = line.around(mean)
        # Engines ask for one number of sequences again and again: the line between both is kept.
        between = self._between.get((batch, first))
        if between is None:
            other = self._decoding_of(high).around(mean)
            if other[0] != first or other[1] != last:
                own = line(mean)
                return own + (self._decoding_of(high)(mean) - own) * share
            if len(self._between) >= MOST_BATCHES:
                self._between.clear()
            between = start + (other[2] - start) * share, grown + (other[3] - grown) * share
            self._between[batch, first] = between
        return between[0] + between[1] * ((mean - first) / (last - first))

    def _cell_of(self, batch: int, context: int) -> tuple[int, int, KnotLine]:
        """The first and the last number of sequences of a batch's cell, and the line of the first: a tile of products,
        halved where another wave of attention begins inside it, as judged at one context."""
        wide = max(1, TILE // self.programs.query_len)
        low = (batch - 1) // wide * wide + 1
        high = low + wide - 1
        while high - low > 1:
            start, end = self._decoding_of(low).at(context), self._decoding_of(high).at(context)
            middle = (low + high) // 2
            straight = True
            for number in (middle, middle + 1):
                exact = self._decoding_of(number).at(context)
                line = start + (end - start) * ((number - low) / (high - low))
                straight = straight and abs(exact - line).max() <= EPSILON / 2 * max(float(exact[0]), self._least)
            if straight:
                break
            low, high = (low, middle) if batch <= middle else (middle + 1, high)
        return low, high, self._decoding_of(low)

    def _decoding_of(self, batch: int) -> KnotLine:
        if batch not in self._decoding:
            tokens = max(MOST_DECODED + 1, self._piece - (batch - 1) * self.programs.query_len)

            def value(context: int) -> Floats:
                work = StepWork(
                    (PromptChunk(tokens, self._before, False),), (max(1, context),) * batch, self.programs.query_len
                )
                return self._part(BatchQuantity.DECODING, work)

            self._decoding[batch] = KnotLine(value, self._least, self.breakpoints)
        return self._decoding[batch]


def around(cached: int) -> tuple[int, int]:
    """Tabulated contexts of prompts around a context: two per octave.

    >>> around(0), around(64), around(100), around(5000)
    ((0, 0), (64, 96), (96, 128), (4096, 6144))
    """
    if not cached:
        return 0, 0
    power = 1 << (cached.bit_length() - 1)
    middle = power + power // 2
    return (power, max(middle, power + 1)) if cached < middle else (middle, 2 * power)


def rows_of(work: StepWork, breakpoints: tuple[int, ...] = ()) -> Rows:
    """Rows of a pass. Decoding sequences are the longest one and the others at their mean; exact contexts are used
    where a breakpoint lies between them."""
    rows = [(chunk.query_tokens, chunk.context_tokens, 1) for chunk in work.chunks]
    longest, others = work.longest, work.sequences - 1
    if any(length < longest for length in breakpoints):
        shortest = min(work.contexts, default=0)
        if any(shortest < length < longest for length in breakpoints):
            rows += [(work.query_len, context, count) for context, count in Counter(work.contexts).items()]
            others = -1
    if others >= 0:
        rows.append((work.query_len, longest, 1))
    if others > 0:
        share, more = divmod(work.context_tokens - longest, others)
        rows += [(work.query_len, share + add, count) for add, count in ((1, more), (0, others - more)) if count]
    return tuple(rows)
