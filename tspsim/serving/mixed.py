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

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice, product
from operator import add, mul

import numpy as np

from ..hardware.over_rows import Seconds
from ..model.attention.base import MOST_DECODED, attended
from ..operators import BatchQuantity, Operator, Role, RowSums
from ..parallel import Job
from ..parallel.serving_engine import Captured
from ..parallel.step import passes_of
from ..program.layout import InstructionLayout, StageCall
from ..steps import PromptChunk
from .compositions import BATCH, SECOND, StepComposition
from .grid import FEW, TILE, Cells, KnotLine, TokenVectors
from .programs import StepPrograms
from .row_consumers import RowConsumer, bent_consumer_of, consumer_of
from .sized import SizedCells, UnlikeError
from .tables import EPSILON, Floats
from .work import StepWork

#: Tokens of a typical step.
TYPICAL = 2048
#: Programs kept beside the current one.
LAST = 7
#: Relative rounding of sums that are compared.
ROUNDING = 1e-9
#: Sampled tokens of the largest cell, and of the widest block of written programs.
OUTPUTS, MOST_OUTPUTS = 64, 512
#: Parts whose sizes depend on one number.
SIZED = (BatchQuantity.TOKENS, BatchQuantity.EXPERTS, BatchQuantity.OUTPUTS)
#: Context of the sequences that decode beside the measured part.
STANDING = 64


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
        #: Tokens of the largest step that runs in captured pieces.
        self._most = self.sizes[-1] if self.sizes else 0

    def seconds(self, work: StepWork, expert_tokens: int | None = None) -> float | None:
        """Seconds of one step; None where it cannot be assembled from parts. ``expert_tokens``: mean tokens of the
        replicas that share experts; None: the replica's own number."""
        queries, before = work.columns
        if min(queries) <= MOST_DECODED:
            return None
        cached, own = sum(before), work.query_len * work.sequences
        tokens, outputs = sum(queries) + own, work.ends + own
        try:
            facts = own > 0, outputs > 0, cached > 0, tokens <= self._most
            shape = self._shape_of[facts] if facts in self._shape_of else self._found(*facts)
            return None if shape is None else shape.seconds(work, tokens, outputs, cached, expert_tokens)
        except UnlikeError:
            return None

    def prepare(self) -> None:
        """Finds the shapes of all kinds of steps whose prompts end, before the first is asked for."""
        for decodes, cached, pieces in product((False, True), (False, True), {False, self._most > 0}):
            with suppress(UnlikeError):
                shape = self._found(decodes, True, cached, pieces)
                if shape is not None:
                    shape.prepare()

    def _found(self, decodes: bool, outputs: bool, cached: bool, pieces: bool) -> Shape | None:
        facts = decodes, outputs, cached, pieces
        self._shape_of[facts] = None
        kind = StepComposition(decodes, outputs, cached, Captured.PIECES if pieces else Captured.NOTHING)
        shapes = self._shapes if pieces else self._plain_shapes
        if kind not in shapes:
            shapes[kind] = None
            shapes[kind] = shape_of(self, kind)
        self._shape_of[facts] = shapes[kind]
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
    (calls, layout), passes = programs.written_out(job)
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
            consumer = bent_consumer_of(call, passes)
            part = BatchQuantity.PROMPTS if consumer is None else BatchQuantity.ROWS
            if consumer is not None:
                consumers.append(consumer)
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
        self._beside, self._before = programs.query_len if kind.decodes else 0, int(kind.cached)
        #: Tokens of the prompt chunk that accompanies the measured part.
        self._piece = (sizes[-1] - self._beside) if sizes else MOST_DECODED + 1
        self._last: dict[StepWork, list[StageCall]] = {}
        smallest = self._written(self._work(MOST_DECODED + 1 if not sizes else sizes[0] + MOST_DECODED))
        # Which of its products are priced many at once is found now.
        programs.over_tokens({i: smallest[i].what for part in SIZED for i in index[part]}, kind.captured)
        least = self._least = sum(float(self._sums(smallest, part)[0]) for part in BatchQuantity)
        first = self._beside + MOST_DECODED + 1

        def over(work_of: Callable[[int], StepWork], *parts: BatchQuantity, **numbers: int) -> SizedCells:
            """Parts whose sizes depend on one number, by the work of a step with it."""
            where = [i for part in parts for i in index[part]]

            def calls_of(n: int) -> list[StageCall]:
                calls = self._written(work_of(n))
                return [calls[i] for i in where]

            follows = np.ascontiguousarray(layout.follows[:, where])
            return SizedCells(programs, kind.captured, follows, calls_of, least, **numbers)

        def holding(tokens: int) -> StepWork:
            return self._work(tokens - self._beside)

        every = sizes[-1] if sizes else 0
        self._tokens = over(holding, BatchQuantity.TOKENS, first=first, few=every)
        #: The same with experts that get the replica's own tokens.
        self._tokens_and_experts = over(
            holding,
            BatchQuantity.TOKENS,
            BatchQuantity.EXPERTS,
            first=first,
            few=every or (FEW if index[BatchQuantity.EXPERTS] else 0),
        )
        self._of_all = TokenVectors(self._of_experts, least)
        self._outputs = over(self._sampling, BatchQuantity.OUTPUTS, coarse=OUTPUTS, wide=self._most_outputs())
        self._read_tokens = Cells(
            lambda n: self._part(BatchQuantity.READ, self._work(n)), least, first=MOST_DECODED + 1
        )
        self._cached = Cells(lambda n: self._part(BatchQuantity.CACHED, self._work(self._piece, n)), least)
        self._lengths = Cells(lambda n: self._part(BatchQuantity.LENGTHS, self._long(n)), least)
        self._prompts: dict[int, Cells] = {}
        self._decoding: dict[int, KnotLine] = {}
        #: (Sequences, octave of their mean context) → the ends of their cell, and the line of the first.
        self._cells: dict[tuple[int, int], tuple[int, int, KnotLine]] = {}
        #: (First and last number of sequences, context) → whether times between them lie on a line.
        self._lines: dict[tuple[int, int, int], bool] = {}
        #: (First number of sequences of a cell, knot of a mean context) → the vector there, its growth to the next
        #: knot, to the last number, and that of one along the other.
        self._between: dict[tuple[int, int], Floats] = {}
        #: The same of the first place.
        self._corners: dict[tuple[int, int], tuple[float, ...]] = {}
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
        #: What seconds of kernels that read prompts, or all rows, are in every place, each with what gives them.
        self._by_prompts: list[tuple[Floats, Seconds]] = []
        self._by_rows: list[tuple[Floats, Callable[[RowSums], float]]] = []
        #: Tile of tokens → what :meth:`_lead` keeps of it; None where another place may decide.
        self._leads: dict[int, tuple[int, int, float, float] | None] = {}
        alike: list[RowConsumer] = []
        columns: list[Floats] = []
        for column, consumer in zip(self._follows[BatchQuantity.ROWS].T, consumers, strict=True):
            first_alike = next((i for i, other in enumerate(alike) if consumer.is_like(other)), None)
            if first_alike is None:
                alike.append(consumer)
                columns.append(np.ascontiguousarray(column))
            else:
                columns[first_alike] = columns[first_alike] + column
        for column, consumer in zip(columns, alike, strict=True):
            if consumer.of_prompts:
                seconds = consumer.seconds(lambda what: programs.over_prompts(what, kind.captured))
                self._by_prompts.append((column, seconds))
            else:
                assert isinstance(consumer.call.what, Operator)
                self._by_rows.append((column, programs.over_all_rows(consumer.call.what, kind.captured)))

        self._columns = [column for column, _ in (*self._by_prompts, *self._by_rows)]
        self._runs = [float(column[0]) for column in self._columns]

    def prepare(self) -> None:
        """Writes programs of all usual sizes."""
        if not self._sizes:
            self._tokens_and_experts.prepare()
        self._outputs.prepare()

    def _most_outputs(self) -> int:
        """Sampled tokens of the widest block of written programs, which a captured step still holds."""
        wide = MOST_OUTPUTS
        while self._sizes and wide > OUTPUTS and wide + self.programs.query_len + MOST_DECODED >= self._piece:
            wide //= 2
        return wide

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
        """For every position, the seconds of a part's instructions from there on."""
        positions = self._where[part]
        if work not in self._last:
            # Rows alone make most of these: no program is written for them.
            (job,) = self.programs.together(work)
            calls = self.programs.calls_of_rows(job, self.layout, positions)
            if calls is not None:
                return self._summed(calls, part)
        return self._sums(self._written(work), part)

    def _sums(self, calls: list[StageCall], part: BatchQuantity) -> Floats:
        """The same in a program's calls."""
        return self._summed([calls[i] for i in self._where[part]], part)

    def _summed(self, calls: list[StageCall], part: BatchQuantity) -> Floats:
        taken_s = self.programs.taken_s(calls, self.kind.captured)
        assert taken_s is not None
        sums: Floats = self._follows[part] @ np.array(taken_s)
        return sums

    # --- a step -----------------------------------------------------------------------------------------------

    def seconds(
        self, work: StepWork, tokens: int, outputs: int, cached_tokens: int, expert_tokens: int | None = None
    ) -> float | None:
        """Seconds of a step of this shape with ``tokens``, ``outputs`` sampled ones and ``cached_tokens`` before its
        chunks; None where its sequences exceed the tables."""
        batch, context_tokens = work.sequences, work.context_tokens
        queries, before = work.columns
        lengths, read = tuple(map(add, queries, before)), tokens - work.query_len * batch
        if self._sizes:
            tokens = next(size for size in self._sizes if size >= tokens)
            if self._piece - (batch - 1) * self.programs.query_len <= MOST_DECODED + TILE:
                return None
        by_rows = RowSums(queries, before, work.query_len, work.contexts) if self._by_rows else None
        taken = [seconds(queries, lengths) for _, seconds in self._by_prompts]
        if by_rows is not None:
            taken += [seconds_of(by_rows) for _, seconds_of in self._by_rows]
        if expert_tokens is None and (lead := self._leads.get((tokens - 1) // TILE)):
            low, width, start_s, grown_s = lead
            makespan_s = start_s + grown_s * ((tokens - low) / width)
            if self.kind.outputs:
                makespan_s += self._outputs.first(outputs)
            if self.kind.decodes:
                makespan_s += self._decode_first(batch, context_tokens / batch)
            if self._reads:
                makespan_s += self._read_tokens.first(read)
            if self._caches:
                makespan_s += self._cached.first(cached_tokens)
            if self._spans:
                makespan_s += self._lengths.first(read + cached_tokens)
            makespan_s += float(sum(map(mul, self._runs, taken)))
            return makespan_s + self.programs.host_s(len(queries) + batch, makespan_s)
        if expert_tokens is None or not self._shares_experts:
            total = self.layout.issued_s + self._tokens_and_experts(tokens)
        else:
            total = self.layout.issued_s + self._tokens(tokens) + self._of_all(expert_tokens)
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
        for column, taken_s in zip(self._columns, taken, strict=True):
            total += column * taken_s
        if expert_tokens is None:
            self._lead(tokens)
        makespan_s = self.layout.ends_s(total)
        return makespan_s + self.programs.host_s(len(queries) + batch, makespan_s)

    def _lead(self, tokens: int) -> None:
        """Keep of a tile of tokens its first place alone, where no other ever decides: the kernels whose time depends
        on tokens alone take as long up to every place as the host takes until it has issued them."""
        tile = (tokens - 1) // TILE
        if tile in self._leads or self._prompted or len(self.layout.starts) > 1:
            return
        cell = self._tokens_and_experts.tile(tokens)
        if cell is None:
            return
        low, width, start, grown = cell
        late = self.layout.issued_s - self.layout.issued_s[0]
        leads = all((late <= (ends[0] - ends) * (1.0 + ROUNDING)).all() for ends in (start, start + grown))
        first = low, width, float(self.layout.issued_s[0] + start[0]), float(grown[0])
        self._leads[tile] = first if leads else None

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
        corners = self._between.get((low, first))
        if corners is None:
            other = self._decoding_of(high).around(mean)
            if other[0] != first or other[1] != last:
                own = line(mean)
                return own + (self._decoding_of(high)(mean) - own) * share
            corners = self._between[low, first] = np.stack((start, grown, other[2] - start, other[3] - grown))
        along = (mean - first) / (last - first)
        inside: Floats = np.array((1.0, along, share, along * share)) @ corners
        return inside

    def _decode_first(self, batch: int, mean: float) -> float:
        """The first element of :meth:`_decode`, without an array."""
        cell = self._cells.get((batch, int(mean).bit_length()))
        if cell is not None and cell[0] < batch:
            low, high, line = cell
            first, last, _, _ = line.around(mean)
            corners = self._corners.get((low, first))
            if corners is not None:
                along, share = (mean - first) / (last - first), (batch - low) / (high - low)
                return corners[0] + along * corners[1] + share * (corners[2] + along * corners[3])
            whole = self._between.get((low, first))
            if whole is not None:
                self._corners[low, first] = tuple(whole[:, 0].tolist())
        return float(self._decode(batch, mean)[0])

    def _cell_of(self, batch: int, context: int) -> tuple[int, int, KnotLine]:
        """The first and the last number of sequences of a batch's cell, and the line of the first: a tile of products,
        halved where another wave of attention begins inside it, as judged at one context."""
        wide = max(1, TILE // self.programs.query_len)
        low = (batch - 1) // wide * wide + 1
        high = low + wide - 1
        while high - low > 1 and not self._straight(low, high, context):
            middle = (low + high) // 2
            low, high = (low, middle) if batch <= middle else (middle + 1, high)
        return low, high, self._decoding_of(low)

    def _straight(self, low: int, high: int, context: int) -> bool:
        """Whether numbers of sequences between two take times on the line between these."""
        key = low, high, context
        if key not in self._lines:
            start, end = self._decoding_of(low).at(context), self._decoding_of(high).at(context)
            middle = (low + high) // 2
            straight = True
            for number in (middle, middle + 1):
                exact = self._decoding_of(number).at(context)
                line = start + (end - start) * ((number - low) / (high - low))
                straight = straight and abs(exact - line).max() <= EPSILON / 2 * max(float(exact[0]), self._least)
            self._lines[key] = bool(straight)
        return self._lines[key]

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
