"""Steps of one kind whose parts are measured: their works, and what a part of their programs takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from ..model.attention.base import MOST_DECODED
from ..operators import BatchQuantity, Operator
from ..parallel import Job
from ..program.layout import InstructionLayout, StageCall
from ..steps import PromptChunk
from .compositions import StepComposition
from .programs import StepPrograms
from .row_variants import KernelsOfRows
from .sized import UnlikeError
from .tables import Floats
from .work import StepWork

#: Programs kept beside the current one.
LAST = 7
#: Context of the sequences that decode beside the measured part.
STANDING = 64


class MeasuredSteps:
    """Steps with the same instructions, each written for one part of its program.

    Parameters
    ----------
    programs
        What writes and prices them.
    kind, layout
        What they have, and where their kernels stand.
    parts
        What the size of each kernel depends on.
    sizes
        Numbers of tokens of captured steps; none: they are not captured.
    breakpoints
        Contexts at which kernels begin, or end, to read them.
    """

    def __init__(
        self,
        programs: StepPrograms,
        kind: StepComposition,
        layout: InstructionLayout,
        parts: Sequence[BatchQuantity],
        sizes: Sequence[int],
        breakpoints: Sequence[int] = (),
    ) -> None:
        self.programs, self.kind, self.layout = programs, kind, layout
        #: Part → positions of its kernels, and how often each runs from every place on.
        self.where = {part: [i for i, own_part in enumerate(parts) if own_part is part] for part in BatchQuantity}
        self.follows = {part: np.ascontiguousarray(layout.follows[:, where]) for part, where in self.where.items()}
        #: Tokens of a decoding sequence beside a chunk.
        self.beside, self._before = programs.query_len if kind.decodes else 0, int(kind.cached)
        #: Tokens of the prompt chunk that accompanies the measured part.
        self.piece = (sizes[-1] - self.beside) if sizes else MOST_DECODED + 1
        #: Prompts that a captured step without decodes holds; 0: of other steps.
        self.most_prompts = self.piece // (MOST_DECODED + 1) if sizes and not kind.decodes else 0
        self._last: dict[StepWork, list[StageCall]] = {}
        #: Whether such steps of all rows have the same kernels, and no padding.
        self._alike = not (sizes or breakpoints or programs.plan.hiding.halves)
        #: Part → what makes its kernels of rows.
        self._makers: dict[BatchQuantity, list[KernelsOfRows]] = {}

    # --- works ------------------------------------------------------------------------------------------------

    def work(self, tokens: int, cached: int = 0) -> StepWork:
        """A chunk of a prompt and, where any decodes, one sequence."""
        return self.step((PromptChunk(tokens, cached),))

    def step(self, pieces: tuple[PromptChunk, ...]) -> StepWork:
        """Chunks of prompts and, where any decodes, one sequence. Chunks end their prompts where something must be
        sampled, and at least one has a cached token where the kind has."""
        if self.kind.cached and not any(piece.context_tokens for piece in pieces):
            pieces = (*pieces[:-1], pieces[-1]._replace(context_tokens=1))
        ends = self.kind.outputs and not self.kind.decodes
        contexts = (STANDING,) if self.kind.decodes else ()
        return StepWork(tuple(piece._replace(ends=ends) for piece in pieces), contexts, self.programs.query_len)

    def long(self, length: int) -> StepWork:
        """A chunk of a prompt with ``length`` tokens in all, at least those of the chunk."""
        return self.work(min(length, self.piece), max(0, length - self.piece))

    def sampling(self, outputs: int) -> StepWork:
        """A step with ``outputs`` sampled tokens, or as near as whole sequences come."""
        query_len = self.programs.query_len
        if not self.kind.decodes:
            # A captured step holds all of them.
            piece = PromptChunk(self.piece // outputs if self.most_prompts else self.piece, self._before)
            return StepWork((piece,) * outputs, (), query_len)
        batch = max(1, outputs // query_len)
        tokens = max(MOST_DECODED + 1, self.piece - (batch - 1) * query_len)
        return StepWork(
            (PromptChunk(tokens, self._before, outputs > batch * query_len),), (STANDING,) * batch, query_len
        )

    def decoding(self, batch: int, context: int) -> StepWork:
        """A step with so many decoding sequences of one context."""
        query_len = self.programs.query_len
        tokens = max(MOST_DECODED + 1, self.piece - (batch - 1) * query_len)
        return StepWork((PromptChunk(tokens, self._before, False),), (max(1, context),) * batch, query_len)

    # --- programs ---------------------------------------------------------------------------------------------

    def written(self, work: StepWork) -> list[StageCall]:
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

    def of_experts(self, tokens: int) -> Floats:
        """Seconds of the part that depends on expert tokens, with ``tokens`` per replica, in a small step."""
        work = self.work(self.piece)
        (job,) = self.programs.together(work, tokens / work.tokens)
        return self.sums(self._calls(job), BatchQuantity.EXPERTS)

    def part(self, part: BatchQuantity, work: StepWork) -> Floats:
        """For every position, the seconds of a part's instructions from there on."""
        return self._summed(self.calls_of(part, work), part)

    def calls_of(self, part: BatchQuantity, work: StepWork) -> list[StageCall]:
        """A part's calls in a step."""
        positions = self.where[part]
        if work not in self._last:
            # Rows alone make most of these: no program is written for them.
            calls = self._made(part, work) if self._alike else None
            if calls is None:
                (job,) = self.programs.together(work)
                calls = self.programs.calls_of_rows(job, self.layout, positions)
            if calls is not None:
                return calls
        written = self.written(work)
        return [written[i] for i in positions]

    def _makers_of(self, part: BatchQuantity, work: StepWork) -> Sequence[KernelsOfRows]:
        """What makes a part's kernels of rows; nothing where not all are made so."""
        if part not in self._makers:
            (job,) = self.programs.together(work)
            if job.rows == rows_of(work):
                self._makers |= self.programs.makers_of_rows(job, self.layout, self.where)
            self._makers.setdefault(part, [])
        return self._makers[part]

    def _made(self, part: BatchQuantity, work: StepWork) -> list[StageCall] | None:
        """A part's kernels, of a step's rows alone; None where these have others."""
        positions, where = self.where[part], self.layout.where
        if not positions:
            return []
        if min(work.columns[0]) <= MOST_DECODED:
            return None
        rows, kernels = rows_of(work), dict[int, Operator]()
        for maker, classes, places in self._makers_of(part, work):
            operators = maker.make(maker.layer, rows)
            if [*map(type, operators)] != classes:
                return None
            kernels.update([(index, operators[place]) for index, place in places])
        if len(kernels) < len(positions):
            return None
        return [StageCall(kernels[index], where[position][1]) for index, position in enumerate(positions)]

    def sums(self, calls: list[StageCall], part: BatchQuantity) -> Floats:
        """The same in a program's calls."""
        return self._summed([calls[i] for i in self.where[part]], part)

    def _summed(self, calls: list[StageCall], part: BatchQuantity) -> Floats:
        taken_s = self.programs.taken_s(calls, self.kind.captured)
        assert taken_s is not None
        sums: Floats = self.follows[part] @ np.array(taken_s)
        return sums


def rows_of(work: StepWork) -> tuple[tuple[int, int, int], ...]:
    """Rows of the pass of a step whose decoding sequences all have one context."""
    rows = [(queries, before, 1) for queries, before in zip(*work.columns, strict=True)]
    if work.sequences:
        rows.append((work.query_len, work.contexts[0], work.sequences))
    return tuple(rows)


def reads_contexts(call: StageCall) -> bool:
    """Whether contexts of sequences that decode have a part in its size."""
    return not isinstance(call.what, Operator) or call.what.reads_contexts
