"""Tables of steps with prompts that have the same instructions, and a step's time from them (:mod:`.mixed`)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import add, mul

import numpy as np

from ..hardware.over_rows import Seconds
from ..model.attention.base import MOST_DECODED
from ..operators import BatchQuantity, Operator, RowSums
from ..program.layout import InstructionLayout, StageCall
from ..steps import PromptChunk
from .compositions import StepComposition
from .decoding_cells import DecodingCells
from .grid import FEW, TILE, Cells, TokenVectors, around
from .measured_steps import MeasuredSteps, reads_contexts
from .programs import StepPrograms
from .row_consumers import RowConsumer
from .sized import SizedCells
from .tables import EPSILON, Floats
from .work import StepWork

#: Tokens of a typical step.
TYPICAL = 2048
#: Relative rounding of sums that are compared.
ROUNDING = 1e-9
#: Tokens of the largest cell of what is no product; sampled tokens of the largest cell, and of the widest block of
#: written programs.
OTHERS, OUTPUTS, MOST_OUTPUTS = 64, 64, 512
#: Places that may decide a step whose time is added up without arrays.
FEW_PLACES = 4
#: Of a tile of tokens: the first number, the width, and of these places seconds there and their growth.
Lead = tuple[int, int, list[tuple[float, float]]]
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
        self._outputs = over(measured.sampling, BatchQuantity.OUTPUTS, coarse=OUTPUTS, wide=widest)
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
        #: Tile of tokens → what :meth:`_lead` keeps of it; None where another place may decide.
        self._leads: dict[int, Lead | None] = {}
        others = [i for part in BatchQuantity if part not in (own, experts) for i in where[part]]
        #: How often kernels run from every place on whose time depends on more than tokens.
        self._of_others = layout.follows[:, others]
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
        self._runs = self._columns[0].tolist()

    def prepare(self) -> None:
        """Writes programs of all usual sizes."""
        if not self._sizes:
            self._tokens_and_experts.prepare()
        self._outputs.prepare()

    def _most_outputs(self) -> int:
        """Sampled tokens of the widest block of written programs, which a captured step still holds."""
        wide = MOST_OUTPUTS
        while self._sizes and wide > OUTPUTS and wide + self.programs.query_len + MOST_DECODED >= self.measured.piece:
            wide //= 2
        return wide

    def _decoding_at(self, batch: int, context: int) -> Floats:
        return self.measured.part(BatchQuantity.DECODING, self.measured.decoding(batch, context))

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
            tokens = self._sizes[bisect_left(self._sizes, tokens)]
            if self.measured.piece - (batch - 1) * self.programs.query_len <= MOST_DECODED + TILE:
                return None
        taken = [seconds(queries, lengths) for _, seconds in self._by_prompts]
        if self._by_rows:
            if self._sums_prompts:
                by_rows = RowSums(queries, before, work.query_len, work.contexts)
            else:
                by_rows = work.sums(work.query_len)
            taken += [seconds_of(by_rows) for _, seconds_of in self._by_rows]
        if expert_tokens is None and (lead := self._lead(tokens)):
            low, width, places = lead
            along = (tokens - low) / width
            makespan_s = max([start_s + grown_s * along for start_s, grown_s in places])
            if self.kind.outputs:
                makespan_s += self._outputs.first(outputs)
            if self._decodes:
                makespan_s += self._decode.first(batch, context_tokens / batch)
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
        if self._decodes:
            total += self._decode(batch, context_tokens / batch)
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

    def _lead(self, tokens: int) -> Lead | None:
        """Of a tile of tokens the first places alone, where no other ever decides: the kernels whose time depends on
        tokens alone take as long up to every other place as the host takes until it has issued them."""
        tile = (tokens - 1) // TILE
        if tile not in self._leads:
            self._leads[tile] = self._lead_of(tokens)
        return self._leads[tile]

    def _lead_of(self, tokens: int) -> Lead | None:
        if self._prompted or len(self.layout.starts) > 1:
            return None
        cell = self._tokens_and_experts.tile(tokens)
        if cell is None:
            return None
        low, width, start, grown = cell
        issued_s = self.layout.issued_s
        late = issued_s - issued_s[0]
        behind = [late > (ends[0] - ends) * (1.0 + ROUNDING) for ends in (start, start + grown)]
        places = [0, *np.flatnonzero(behind[0] | behind[1]).tolist()]
        if len(places) > FEW_PLACES or (self._of_others[places] != self._of_others[0]).any():
            return None
        return low, width, [(float(issued_s[i] + start[i]), float(grown[i])) for i in places]

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
