"""What steps of decoding cost, by how many sequences decode and how long their contexts are.

At B sequences with contexts of the mean s a step takes

    f(B, s) = (1 − x)·f(B₀, s) + x·f(B₁, s),      x = (B − B₀) / (B₁ − B₀)

where B₀ … B₁ is a *cell*: batches that run as the same captured graph, or where nothing is captured so many that no
tile of a product ends between them. Each f(B₀, ·) is a :class:`~tspsim.serving.tables.Curve`. Kernels take sequences of
unequal contexts as as many of their mean, for bytes decide; where some of them have reached a window, or what an
indexer chooses, and others have not, the mean is over their values instead.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from .programs import StepPrograms
from .tables import Curve, Floats
from .work import Work

#: Rows of the smallest tile of a product.
TILE = 16
#: Sequences up to which every batch that is not captured has a curve of its own: every expert more is felt.
FEW = 32


class Decodes:
    """Steps of decoding of one plan."""

    def __init__(self, programs: StepPrograms) -> None:
        self.programs = programs
        engine = programs.question.work.stack.engine
        self.queries = programs.queries
        sizes = engine.graphs.tokens(self.queries, engine.slots)
        self._sizes = [size // self.queries for size in sizes] if engine.graphs.pads else []
        self.bends = bends(programs, self.queries)
        self._curves: dict[int, Curve] = {}

    def cell(self, batch: int) -> tuple[int, int]:
        """The smallest and the largest batch that a batch stands between."""
        index = bisect_left(self._sizes, batch)
        if index < len(self._sizes):
            return (self._sizes[index - 1] + 1 if index else 1), self._sizes[index]
        if batch <= FEW:
            return batch, batch
        wide = max(1, TILE // self.queries)
        low = (batch - 1) // wide * wide + 1
        return max(low, self._sizes[-1] + 1 if self._sizes else 1), low + wide - 1

    def steps_s(self, work: Work, steps: int) -> Floats:
        """Seconds of each of the next steps, where every context grows by one a step: shape (steps,)."""
        batch = work.sequences
        low, high = self.cell(batch)
        later = np.arange(steps, dtype=np.float64)
        at, weights = (work.context_tokens / batch + later)[None, :], np.ones(1)
        last = work.longest + steps
        if self.bends and self.bends[0] < last:
            shortest = min(work.contexts)
            if shortest < work.longest and any(shortest < bend < last for bend in self.bends):
                lengths, counts = np.unique(np.array(work.contexts), return_counts=True)
                at, weights = lengths[:, None] + later, counts / batch
        found: Floats = weights @ self._curve(low)(at)
        if high > low:
            share = (batch - low) / (high - low)
            found = (1.0 - share) * found + share * (weights @ self._curve(high)(at))
        return found

    def _curve(self, batch: int) -> Curve:
        if batch not in self._curves:

            def value(context: int) -> float:
                return self.programs.price(self.programs.decoding((context,) * batch)).seconds

            self._curves[batch] = Curve(value, self.bends)
        return self._curves[batch]


def bends(programs: StepPrograms, queries: int) -> tuple[int, ...]:
    """Tokens before a step from which on some layer of the model reads no more of a context, and the last before."""
    model = programs.question.model
    kinds = dict.fromkeys(model.blocks)
    every = {length for block in kinds for length in model.attention_of(block).bends(model, block)}
    around = (length - queries + more for length in every for more in (0, 1))
    return tuple(sorted({each for each in around if each > 0}))
