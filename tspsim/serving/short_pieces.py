"""Steps with pieces of prompts that decode kernels read: the short rest of a prompt beside sequences that decode.

Each number of queries has a decode kernel of its own in every layer, so that such steps have other instructions than
those of :mod:`.mixed`. What depends on tokens is tabulated as there. Kernels of attention are made of the step's rows
and priced one by one: a few, where a program has hundreds. An engine may also pad such pieces for prefill kernels, and
the quicker way counts (:meth:`tspsim.serving.programs.StepPrograms.together`): the padded one has tables.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..model.attention.base import MOST_DECODED
from ..operators import BatchQuantity, CachedContext, Operator, Rows, RowSums
from ..parallel.job import MadeOfRows
from ..parallel.serving_engine import Captured
from ..program.layout import InstructionLayout, StageCall
from ..steps import PromptChunk
from .grid import FEW, TokenVectors
from .programs import StepPrograms, by_experts
from .row_variants import KernelsOfRows
from .sized import SizedCells, UnlikeError
from .tables import Floats
from .work import StepWork

#: Tokens of the largest cell of what is no product; context of sequences that decode beside.
OTHERS, STANDING = 64, 64
#: Different lengths of pieces in one step; with more a program is written.
MOST_LENGTHS = 2


class ShortComposition(NamedTuple):
    """Steps whose programs have the same instructions: sequences that decode, and beside them pieces of prompts.

    Attributes
    ----------
    lengths
        Numbers of queries of which short pieces have decode kernels of their own.
    longer, cached
        Whether prefill kernels read other pieces, and whether any has tokens in the cache.
    captured
        What runs in graphs.
    """

    lengths: int
    longer: bool
    cached: bool
    captured: Captured

    def typical(self, tokens: int, query_len: int) -> StepWork:
        """One of these steps with so many tokens.

        Raises
        ------
        UnlikeError
            Such a step has more.
        """
        lengths = self.lengths_of(query_len)
        left = tokens - sum(lengths)
        if self.longer:
            if left - query_len <= MOST_DECODED:
                raise UnlikeError
            return self._step([*lengths, left - query_len], 1, query_len)
        # Single tokens are pieces where a sequence has several.
        return self._step([*lengths, *(1,) * (left % query_len)], left // query_len, query_len)

    def sampling(self, outputs: int, query_len: int) -> StepWork:
        """One of these steps with so many sampled tokens, and few others."""
        batch = max(1, outputs // query_len)
        ends = max(0, outputs - batch * query_len)
        lengths = [*self.lengths_of(query_len), *(MOST_DECODED + 1,) * self.longer]
        single = (1,) * max(0, ends - len(lengths))
        return self._step([*lengths, *single], batch, query_len, ends)

    def lengths_of(self, query_len: int) -> list[int]:
        """The shortest lengths of such pieces."""
        return [length for length in range(1, MOST_DECODED + 1) if length != query_len][: self.lengths]

    def _step(self, lengths: Sequence[int], batch: int, query_len: int, ends: int = 0) -> StepWork:
        if batch < 1:
            raise UnlikeError
        pieces = [PromptChunk(length, int(self.cached), i < ends) for i, length in enumerate(lengths)]
        return StepWork(pieces, (STANDING,) * batch, query_len)


class ShortPieces:
    """Steps of one plan with such pieces.

    Parameters
    ----------
    programs, plain
        Programs of the plan's engine, and of one without graphs.
    sizes
        Numbers of tokens of captured steps with prompts; none: none is captured.
    """

    def __init__(self, programs: StepPrograms, plain: StepPrograms, sizes: tuple[int, ...]) -> None:
        self._programs, self._plain, self._sizes = programs, plain, sizes
        self._shapes: dict[ShortComposition, ShortShape | None] = {}

    def seconds(self, work: StepWork, expert_tokens: int | None = None) -> float | None:
        """Seconds of a step; None where it has no tables."""
        queries, query_len = work.columns[0], work.query_len
        short = {length for length in queries if length <= MOST_DECODED and length != query_len}
        if not work.sequences or not 1 <= len(short) <= MOST_LENGTHS:
            return None
        captured = bool(self._sizes) and work.tokens <= self._sizes[-1]
        facts = len(short), max(queries) > MOST_DECODED, work.prompts_hold[1] > 0
        kind = ShortComposition(*facts, Captured.PIECES if captured else Captured.NOTHING)
        if kind not in self._shapes:
            self._shapes[kind] = None
            self._shapes[kind] = self._shape_of(kind)
        shape = self._shapes[kind]
        return None if shape is None else shape.seconds(work, expert_tokens)

    def _shape_of(self, kind: ShortComposition) -> ShortShape | None:
        """The shape of a composition; None where its programs are no chain of one stage, or have kernels beside those
        of tokens that rows of the model's own pass do not make."""
        pieces = kind.captured is Captured.PIECES
        programs, sizes = (self._programs, self._sizes) if pieces else (self._plain, ())
        work = kind.typical(sizes[-1] if sizes else OTHERS, programs.query_len)
        job = programs.mixed(work)
        if job.capture is not kind.captured or job.micro_batches > 1 or len(programs.passes(job)) > 1:
            return None
        calls, layout = programs.laid_out(job)
        if programs.taken_s(calls, kind.captured) is None or not layout.chained:
            return None
        parts = list(map(by_experts, calls, programs.quantities(job)))
        tabulated = BatchQuantity.TOKENS, BatchQuantity.EXPERTS, BatchQuantity.OUTPUTS
        others = [i for i, part in enumerate(parts) if part not in tabulated]
        kernels = programs.makers_of_rows(job, layout, {BatchQuantity.ROWS: others}).get(BatchQuantity.ROWS)
        if kernels is None:
            return None
        return ShortShape(programs, kind, layout, parts, sizes, others, kernels)


class ShortShape:
    """Such steps with the same instructions."""

    def __init__(
        self,
        programs: StepPrograms,
        kind: ShortComposition,
        layout: InstructionLayout,
        parts: Sequence[BatchQuantity],
        sizes: tuple[int, ...],
        others: list[int],
        kernels: list[KernelsOfRows],
    ) -> None:
        self._programs, self._kind, self._layout, self._sizes, self._kernels = programs, kind, layout, sizes, kernels
        query_len = programs.query_len
        tokens, experts, outputs = (
            [i for i, part in enumerate(parts) if part is own]
            for own in (BatchQuantity.TOKENS, BatchQuantity.EXPERTS, BatchQuantity.OUTPUTS)
        )
        first = sum(kind.lengths_of(query_len)) + query_len + (MOST_DECODED + 1) * kind.longer
        most = sizes[-1] if sizes else 0
        typical = self._calls_of(kind.typical(most or max(OTHERS, first), query_len))
        taken_s = programs.taken_s(typical, kind.captured)
        assert taken_s is not None
        least = float(layout.follows[list(layout.starts)].sum(axis=0) @ np.array(taken_s))

        def over(places: list[int], work_of: Callable[[int, int], StepWork], **numbers: int) -> SizedCells:
            def calls_of(n: int) -> list[StageCall]:
                calls = self._calls_of(work_of(n, query_len))
                return [calls[i] for i in places]

            follows = np.ascontiguousarray(layout.follows[:, places])
            return SizedCells(programs, kind.captured, follows, calls_of, least, coarse=OTHERS, **numbers)

        self._tokens = over(tokens, kind.typical, first=first, few=most)
        #: The same with experts that get the replica's own tokens.
        few = most or (FEW if experts else 0)
        self._tokens_and_experts = over([*tokens, *experts], kind.typical, first=first, few=few)
        self._outputs = over(outputs, kind.sampling)
        self._experts, self._experts_follow = experts, np.ascontiguousarray(layout.follows[:, experts])
        self._of_experts = TokenVectors(self._experts_s, least)
        self._others_follow = np.ascontiguousarray(layout.follows[:, others])
        #: Index of a kernel over caches, and its queries → its seconds by the sums of its rows.
        self._over_caches: dict[tuple[int, int], Callable[[RowSums], float] | None] = {}

    def _calls_of(self, work: StepWork, expert_share: float = 1.0) -> list[StageCall]:
        calls, layout = self._programs.laid_out(self._programs.mixed(work, expert_share))
        if layout is not self._layout:
            raise UnlikeError
        return calls

    def _experts_s(self, tokens: int) -> Floats:
        """Seconds of kernels of experts that get so many tokens a replica, from every place on."""
        work = self._kind.typical(self._sizes[-1] if self._sizes else OTHERS, self._programs.query_len)
        calls = self._calls_of(work, tokens / work.tokens)
        taken_s = self._programs.taken_s([calls[i] for i in self._experts], self._kind.captured)
        assert taken_s is not None
        sums: Floats = self._experts_follow @ np.array(taken_s)
        return sums

    def seconds(self, work: StepWork, expert_tokens: int | None) -> float | None:
        """Seconds of a step; None where its rows have other kernels."""
        taken_s = self._of_rows(work)
        if taken_s is None:
            return None
        tokens = work.tokens
        if self._sizes:
            tokens = self._sizes[bisect_left(self._sizes, tokens)]
        if expert_tokens is None or not self._experts:
            total = self._layout.issued_s + self._tokens_and_experts(tokens)
        else:
            total = self._layout.issued_s + self._tokens(tokens) + self._of_experts(expert_tokens)
        total = total + self._outputs(work.outputs) + self._others_follow @ taken_s
        makespan_s = self._layout.ends_s(total)
        return makespan_s + self._programs.host_s(work.sequences + len(work.columns[0]), makespan_s)

    def _of_rows(self, work: StepWork) -> Floats | None:
        """Seconds of kernels that rows make."""
        rows = tuple([(queries, before, 1) for queries, before in zip(*work.columns, strict=True)])
        decoding = work.query_len, work.context_tokens // work.sequences, work.sequences
        taken_s = np.empty(self._others_follow.shape[1])
        for maker, classes, places in self._kernels:
            # Who reads contexts one by one is not priced by these.
            operators: Sequence[Operator] = maker.make(maker.layer, (*rows, decoding))
            if [*map(type, operators)] != classes:
                return None
            for index, place in places:
                seconds = self._seconds_of(index, operators[place], maker, work)
                if seconds is None:
                    return None
                taken_s[index] = seconds
        return taken_s

    def _seconds_of(self, index: int, operator: Operator, maker: MadeOfRows, work: StepWork) -> float | None:
        """Seconds of one of them; None where only all rows give them."""
        programs, captured = self._programs, self._kind.captured
        if isinstance(operator, CachedContext):
            own = operator.queries
            if (index, own) not in self._over_caches:
                self._over_caches[index, own] = self._over_caches_of(operator, maker, own)
            over = self._over_caches[index, own]
            before = [before for queries, before in zip(*work.columns, strict=True) if queries == own]
            if own == work.query_len:
                before += work.contexts
            return None if over is None else over(RowSums((), (), own, tuple(before)))
        if operator.rows_field is not None and operator.rows_field.reads is BatchQuantity.ROWS:
            return programs.rows.over_all_rows(operator, captured)(work.all_sums)
        taken_s = programs.taken_s((StageCall(operator, 0),), captured)
        assert taken_s is not None
        return taken_s[0]

    def _over_caches_of(self, operator: Operator, maker: MadeOfRows, own: int) -> Callable[[RowSums], float] | None:
        """Seconds of a kernel over caches by the sums of its rows, of ``own`` queries each."""

        def of(rows: Rows) -> Operator:
            return next(one for one in maker.make(maker.layer, rows) if type(one) is type(operator))

        return self._programs.rows.over_rows_of(operator, maker.layer, of, own, self._kind.captured)
