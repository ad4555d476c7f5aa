"""Costs of steps for many runs at once: steps with prompts are priced on a grid and read off between its points.

Thousands of published runs of one plan ask for hundreds of thousands of steps with prompts, which differ by a few tokens
here and there. Each is priced as the nearest ones of a grid are: so many equal pieces of prompts behind so much context,
so many sequences that decode at so much context. Between neighbouring lengths of pieces the answer is a straight line;
what the sequences that decode read more or less than on the grid is the difference of two steps that decode alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, floor, log

from tspsim.serving.costs import ProgramCosts
from tspsim.serving.tables import Floats
from tspsim.serving.work import Chunk, Work

#: Between neighbouring points: lengths of pieces, contexts behind which they stand, sequences, their contexts.
PIECE, BEHIND, SEQUENCES, CONTEXT = 1.08, 1.25, 1.06, 1.5


class EasedCosts:
    """A :class:`tspsim.serving.work.StepCost` over the exact one."""

    def __init__(self, exact: ProgramCosts) -> None:
        self.exact = exact
        self._known: dict[tuple[int, int, int, int, int], float] = {}

    def seconds(self, works: Sequence[Work]) -> float:
        return max(self._seconds(work) for work in works if work.tokens)

    def decode_ends_s(self, works: Sequence[Work], steps: int) -> Floats:
        return self.exact.decode_ends_s(works, steps)

    def _seconds(self, work: Work) -> float:
        if not work.chunks:
            return self._decoding(work.sequences, work.context_tokens / work.sequences)
        pieces = len(work.chunks)
        length = sum(chunk.query_tokens for chunk in work.chunks) / pieces
        behind = _near(sum(chunk.context_tokens for chunk in work.chunks) / pieces, BEHIND)
        ends = sum(chunk.ends for chunk in work.chunks)
        sequences = _near(work.sequences, SEQUENCES)
        context = work.context_tokens / work.sequences if sequences else 0.0
        near = _near(context, CONTEXT)
        place = log(length) / log(PIECE)
        left = floor(place)
        low, high = (max(1, round(exp(at * log(PIECE)))) for at in (left, left + 1))
        found = self._at(pieces, low, behind, ends, sequences, near)
        if high > low and length > low:
            share = (length - low) / (high - low)
            found += share * (self._at(pieces, high, behind, ends, sequences, near) - found)
        if sequences and near != context:
            found += self._decoding(sequences, context) - self._decoding(sequences, near)
        return found

    def _at(self, pieces: int, length: int, behind: int, ends: int, sequences: int, context: int) -> float:
        key = pieces, length, behind, min(ends, 1) * sequences + (1 - min(ends, 1)) * -sequences, context
        if key not in self._known:
            chunks = tuple(Chunk(length, behind, index < ends) for index in range(pieces))
            self._known[key] = self.exact.programs.seconds(Work(chunks, (context,) * sequences))
        return self._known[key]

    def _decoding(self, sequences: int, context: float) -> float:
        return float(self.exact.decode_ends_s([Work((), (max(1, round(context)),) * sequences)], 1)[0])


def _near(value: float, ratio: float) -> int:
    """The nearest of 0, 1 and whole numbers that stand a ratio from each other."""
    if value <= 1.0:
        return round(value)
    return round(exp(round(log(value) / log(ratio)) * log(ratio)))
