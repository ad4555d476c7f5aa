"""Steps of one kind whose parts are measured: their works, and what a part of their programs takes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from ..model.attention.base import MOST_DECODED
from ..operators import BatchQuantity
from ..parallel import Job
from ..program.layout import InstructionLayout, StageCall
from ..steps import PromptChunk
from .compositions import StepComposition
from .programs import StepPrograms
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
    """

    def __init__(
        self,
        programs: StepPrograms,
        kind: StepComposition,
        layout: InstructionLayout,
        parts: Sequence[BatchQuantity],
        sizes: Sequence[int],
    ) -> None:
        self.programs, self.kind, self.layout = programs, kind, layout
        #: Part → positions of its kernels, and how often each runs from every place on.
        self.where = {part: [i for i, own_part in enumerate(parts) if own_part is part] for part in BatchQuantity}
        self.follows = {part: np.ascontiguousarray(layout.follows[:, where]) for part, where in self.where.items()}
        #: Tokens of a decoding sequence beside a chunk.
        self.beside, self._before = programs.query_len if kind.decodes else 0, int(kind.cached)
        #: Tokens of the prompt chunk that accompanies the measured part.
        self.piece = (sizes[-1] - self.beside) if sizes else MOST_DECODED + 1
        self._last: dict[StepWork, list[StageCall]] = {}

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
            return StepWork(tuple(PromptChunk(self.piece, self._before) for _ in range(outputs)), (), query_len)
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
        return self._summed(self.calls_at(self.where[part], work), part)

    def calls_at(self, positions: Sequence[int], work: StepWork) -> list[StageCall]:
        """Some calls of a step."""
        if work not in self._last:
            # Rows alone make most of these: no program is written for them.
            (job,) = self.programs.together(work)
            calls = self.programs.calls_of_rows(job, self.layout, positions)
            if calls is not None:
                return calls
        written = self.written(work)
        return [written[i] for i in positions]

    def sums(self, calls: list[StageCall], part: BatchQuantity) -> Floats:
        """The same in a program's calls."""
        return self._summed([calls[i] for i in self.where[part]], part)

    def _summed(self, calls: list[StageCall], part: BatchQuantity) -> Floats:
        taken_s = self.programs.taken_s(calls, self.kind.captured)
        assert taken_s is not None
        sums: Floats = self.follows[part] @ np.array(taken_s)
        return sums
