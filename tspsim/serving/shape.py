"""Tables of steps with prompts that have the same instructions, and a step's time from them (:mod:`.mixed`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import add

import numpy as np

from ..hardware.over_rows import Seconds
from ..model.attention.base import MOST_DECODED
from ..operators import BatchQuantity, Operator, RowSums
from ..program.layout import InstructionLayout, StageCall
from ..steps import PromptChunk
from .compositions import StepComposition
from .decoding_cells import DecodingCells
from .grid import FEW, TILE, Cells, TokenVectors, around
from .leads import LeadingPlaces, Leads, OverNumbers
from .measured_steps import MeasuredSteps, reads_contexts
from .programs import StepPrograms
from .row_consumers import RowConsumer
from .sized import SizedCells
from .tables import EPSILON, Floats
from .work import StepWork

#: Tokens of a typical step.
TYPICAL = 2048
#: Tokens of the largest cell of what is no product; sampled tokens of the largest cell, and of the widest block of
#: written programs.
OTHERS, OUTPUTS, MOST_OUTPUTS = 64, 64, 512
#: Parts that depend on sampled tokens, on sequences that decode, on tokens of prompts, on tokens before them, and on
#: both.
BESIDE_TOKENS = (
    BatchQuantity.OUTPUTS, BatchQuantity.DECODING, BatchQuantity.READ, BatchQuantity.CACHED, BatchQuantity.LENGTHS,
)  # fmt: skip
#: Parts whose sizes depend on one number.
SIZED = (BatchQuantity.TOKENS, BatchQuantity.EXPERTS, BatchQuantity.OUTPUTS)


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
        self.programs, self.layout, self.kind, self._sizes = programs, layout, kind, sizes
        self.measured = measured = MeasuredSteps(programs, kind, layout, parts, sizes, breakpoints)
        where = measured.where
        smallest = measured.written(measured.work(MOST_DECODED + 1 if not sizes else sizes[0] + MOST_DECODED))
        # Which of its products are priced many at once is found now.
        programs.over_tokens({i: smallest[i].what for part in SIZED for i in where[part]}, kind.captured)
        least = self._least = sum(float(measured.sums(smallest, part)[0]) for part in BatchQuantity)
        first = measured.beside + MOST_DECODED + 1

        def over(work_of: Callable[[int], StepWork], *parts: BatchQuantity, **numbers: int) -> SizedCells:
            """Parts whose sizes depend on one number, by the work of a step with it."""
            positions = [i for part in parts for i in where[part]]

            def calls_of(n: int) -> list[StageCall]:
                calls = measured.written(work_of(n))
                return [calls[i] for i in positions]

            follows = np.ascontiguousarray(layout.follows[:, positions])
            return SizedCells(programs, kind.captured, follows, calls_of, least, **numbers)

        def holding(tokens: int) -> StepWork:
            return measured.work(tokens - measured.beside)

        own, experts = BatchQuantity.TOKENS, BatchQuantity.EXPERTS
        every = sizes[-1] if sizes else 0
        self._tokens = over(holding, own, first=first, few=every, coarse=OTHERS)
        #: The same with experts that get the replica's own tokens.
        few = every or (FEW if where[experts] else 0)
        self._tokens_and_experts = over(holding, own, experts, first=first, few=few, coarse=OTHERS)
        self._of_all = TokenVectors(measured.of_experts, least)
        widest = self._most_outputs()
        few_prompts = measured.most_prompts
        self._outputs = over(measured.sampling, BatchQuantity.OUTPUTS, few=few_prompts, coarse=OUTPUTS, wide=widest)
        self._read_tokens = Cells(
            lambda n: measured.part(BatchQuantity.READ, measured.work(n)), least, first=MOST_DECODED + 1
        )
        self._cached = Cells(lambda n: measured.part(BatchQuantity.CACHED, measured.work(measured.piece, n)), least)
        self._lengths = Cells(lambda n: measured.part(BatchQuantity.LENGTHS, measured.long(n)), least)
        self._prompts: dict[int, Cells] = {}
        wide = max(1, TILE // programs.query_len)
        contexts = bool(breakpoints) or any(reads_contexts(smallest[i]) for i in where[BatchQuantity.DECODING])
        self._decode = DecodingCells(self._decoding_at, least, wide, breakpoints, reads_contexts=contexts)
        # Several prompts in a window cost the same as one prompt of all their tokens, if this holds.
        half = measured.piece // 2 if sizes else TYPICAL // 2
        apart = measured.part(
            BatchQuantity.PROMPTS, measured.step((PromptChunk(half + 32, 0), PromptChunk(half - 32, 0)))
        )
        together = measured.part(BatchQuantity.PROMPTS, measured.step((PromptChunk(2 * half, 0),)))
        self._joins = bool(abs(apart - together).max() <= EPSILON / 2 * least)
        self._shares_experts, self._decodes, self._reads, self._caches, self._spans, self._prompted = (
            bool(where[part])
            for part in (
                BatchQuantity.EXPERTS,
                BatchQuantity.DECODING,
                BatchQuantity.READ,
                BatchQuantity.CACHED,
                BatchQuantity.LENGTHS,
                BatchQuantity.PROMPTS,
            )
        )
        #: What seconds of kernels that read prompts, or all rows, are in every place, each with what gives them.
        self._by_prompts: list[tuple[Floats, Seconds]] = []
        self._by_rows: list[tuple[Floats, Callable[[RowSums], float]]] = []
        alike: list[RowConsumer] = []
        columns: list[Floats] = []
        for column, consumer in zip(measured.follows[BatchQuantity.ROWS].T, consumers, strict=True):
            first_alike = next((i for i, other in enumerate(alike) if consumer.is_like(other)), None)
            if first_alike is None:
                alike.append(consumer)
                columns.append(np.ascontiguousarray(column))
            else:
                columns[first_alike] = columns[first_alike] + column
        for column, consumer in zip(columns, alike, strict=True):
            if consumer.of_prompts:
                seconds = consumer.seconds(lambda what: programs.rows.over_prompts(what, kind.captured))
                self._by_prompts.append((column, seconds))
            else:
                what, sums_s = consumer.call.what, consumer.sums_s
                assert isinstance(what, Operator)
                self._by_rows.append((column, sums_s or programs.rows.over_all_rows(what, kind.captured)))

        #: Whether kernels that read all rows read those of prompts; others read caches.
        self._sums_prompts = any(consumer.field is not None for consumer in alike)
        columns = [column for column, _ in (*self._by_prompts, *self._by_rows)]
        self._columns = np.column_stack(columns) if columns else layout.follows[:, :0]
        cells: tuple[OverNumbers, ...] = (
            self._outputs, self._decode, self._read_tokens, self._cached, self._lengths,
        )  # fmt: skip
        depending = [(over, measured.follows[part]) for over, part in zip(cells, BESIDE_TOKENS, strict=True)]
        self._leads = Leads(layout, depending, self._columns)
        #: Tile of tokens, or below zero tokens with a vector of their own → their lead; None where there is none.
        self._lead_of: dict[int, LeadingPlaces | None] = {}
        self._few = few

    def prepare(self) -> None:
        """Writes programs of all usual sizes."""
        if not self._sizes:
            self._tokens_and_experts.prepare()
        if not self.measured.most_prompts:
            self._outputs.prepare()

    def _most_outputs(self) -> int:
        """Sampled tokens of the widest block of written programs, which a captured step still holds."""
        wide = MOST_OUTPUTS
        while self._sizes and wide > OUTPUTS and wide + self.programs.query_len + MOST_DECODED >= self.measured.piece:
            wide //= 2
        return wide

    def _decoding_at(self, batch: int, context: int) -> Floats:
        return self.measured.part(BatchQuantity.DECODING, self.measured.decoding(batch, context))

    # --- its tables -------------------------------------------------------------------------------------------

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of tokens of captured steps."""
        return self._sizes

    @property
    def few(self) -> int:
        """Up to this number of tokens each has a vector of its own."""
        return self._few

    def of_tokens(self, tokens: int) -> Floats:
        """From every place on, the seconds of what depends on tokens alone."""
        return self._tokens_and_experts(tokens)

    def calls_of_tokens(self, tokens: int) -> list[StageCall]:
        """Its kernels and transfers."""
        return self._tokens_and_experts.calls(tokens)

    def calls_of_outputs(self, outputs: int) -> list[StageCall]:
        """Those that depend on sampled tokens."""
        return self._outputs.calls(outputs)

    # --- a step -----------------------------------------------------------------------------------------------

    def seconds(
        self, work: StepWork, tokens: int, outputs: int, cached_tokens: int, expert_tokens: int | None = None
    ) -> float | None:
        """Seconds of a step of this shape with ``tokens``, ``outputs`` sampled ones and ``cached_tokens`` before its
        chunks; None where its sequences exceed the tables."""
        batch, (queries, before) = work.sequences, work.columns
        lengths, read = tuple(map(add, queries, before)), tokens - work.query_len * batch
        if self._sizes:
            tokens = self._sizes[bisect_left(self._sizes, tokens)]
            if self.measured.piece - (batch - 1) * self.programs.query_len <= MOST_DECODED + TILE:
                return None
        taken = [seconds(queries, lengths) for _, seconds in self._by_prompts]
        if self._by_rows:
            by_rows = work.all_sums if self._sums_prompts else work.sums(work.query_len)
            taken += [seconds_of(by_rows) for _, seconds_of in self._by_rows]
        if expert_tokens is None:
            tile = -tokens if tokens <= self._few else (tokens - 1) // TILE
            lead = self._lead_of[tile] if tile in self._lead_of else self._found(tile, tokens)
            if lead is not None:
                decoding = self._decode.point(batch, work.context_tokens / batch) if self._decodes else None
                numbers = outputs, decoding, read, cached_tokens, read + cached_tokens
                makespan_s = lead.makespan_s(tokens, numbers, taken)
                return makespan_s + self.programs.host_s(len(queries) + batch, makespan_s)
        if expert_tokens is None or not self._shares_experts:
            total = self.layout.issued_s + self._tokens_and_experts(tokens)
        else:
            total = self.layout.issued_s + self._tokens(tokens) + self._of_all(expert_tokens)
        if self.kind.outputs:
            total += self._outputs(outputs)
        if self._decodes:
            total += self._decode(batch, work.context_tokens / batch)
        if self._reads:
            total += self._read_tokens(read)
        if self._caches:
            total += self._cached(cached_tokens)
        if self._spans:
            total += self._lengths(read + cached_tokens)
        if self._prompted:
            total += self._read(work.chunks)
        if taken:
            total += self._columns @ taken
        makespan_s = self.layout.ends_s(total)
        return makespan_s + self.programs.host_s(len(queries) + batch, makespan_s)

    def _found(self, tile: int, tokens: int) -> LeadingPlaces | None:
        """The lead of a tile of tokens, or of tokens with a vector of their own."""
        cells = self._tokens_and_experts
        if self._prompted:
            self._lead_of[tile] = None
        elif tile < 0:
            whole = cells(tokens)
            self._lead_of[tile] = self._leads.of(tokens, 1, whole, 0.0 * whole)
        else:
            for other in {tile, *cells.alike(tokens)}:
                line = cells.tile(max(other * TILE + 1, self._few + 1))
                self._lead_of[other] = None if line is None else self._leads.of(*line)
        return self._lead_of[tile]

    def _read(self, chunks: tuple[PromptChunk, ...]) -> Floats:
        """The part that depends on prompts without listing them: one chunk is interpolated between contexts, several
        come from their program."""
        if len(chunks) > 1 and not self._joins:
            return self.measured.part(BatchQuantity.PROMPTS, self.measured.step(chunks))
        tokens, cached = sum([chunk.query_tokens for chunk in chunks]), min([chunk.context_tokens for chunk in chunks])
        low, high = around(cached)
        start = self._behind(low)(tokens)
        if cached == low:
            return start
        return start + (self._behind(high)(tokens) - start) * ((cached - low) / (high - low))

    def _behind(self, cached: int) -> Cells:
        if cached not in self._prompts:

            def value(tokens: int) -> Floats:
                return self.measured.part(BatchQuantity.PROMPTS, self.measured.work(tokens, cached))

            self._prompts[cached] = Cells(value, self._least, first=MOST_DECODED + 1)
        return self._prompts[cached]
