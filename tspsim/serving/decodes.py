"""What steps of decoding cost, by how many sequences decode and how long their contexts are.

At B sequences with contexts of the mean s a step takes

    f(B, s) = (1 − x)·f(B₀, s) + x·f(B₁, s),      x = (B − B₀) / (B₁ − B₀)

where B₀ … B₁ is a *cell*: batches that run as the same captured graph, padded to B₁, or where nothing is captured so
few that no tile of a product ends between them. Each f(B₀, ·) is a :class:`~tspsim.serving.tables.KnotCurve`.

Kernels take sequences of unequal contexts as as many of their mean, for bytes decide, and at least as long as for the
longest of them alone: where one has most of the tokens, a step takes no less than f(1, longest). Two things are
otherwise. Where some contexts have reached a window,
or what an indexer chooses, and others have not, f is the mean over sequences. And an indexer waits for the longest:
with γ what a token more of it alone takes, γ · (longest − s) is added.

Where attention replicas that share experts have other numbers of sequences, experts get as many tokens as all have in
the mean, and what those take more or less than their own is added.

A pipeline's stages each work on a part of the batch; cells are those of parts, or of halves that a batch is cut into.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.memo import once
from ..parallel.serving_engine import Captured
from .grid import TILE, Quarters, TokenVectors
from .programs import TYPICAL_CONTEXT, StepPrograms
from .tables import Floats, KnotCurve
from .work import StepWork

#: Sequences up to which every batch that is not captured has a curve of its own: every expert more is felt.
FEW = 64
#: By how much the longest of some contexts is longer where what waits for it is looked at.
LONGER = 0.25
#: A batch whose tokens are so many times those of its longest sequence takes longer than that alone anyway.
MOST = 1.25


class Decodes:
    """Steps of decoding of one plan.

    Parameters
    ----------
    programs
        Of the plan's engine.
    known
        Curves found already, of all engines that differ in their graphs alone.
    """

    def __init__(self, programs: StepPrograms, known: dict[Hashable, KnotCurve]) -> None:
        self.programs, self._curves = programs, known
        engine = programs.question.work.stack.engine
        self.queries, self._stages = programs.queries, programs.plan.pp
        self._halves = programs.plan.hiding.halves
        sizes = engine.graphs.tokens(self.queries, engine.slots)
        self._sizes = [size // self.queries for size in sizes] if engine.graphs.pads else []
        self._alone = set() if engine.graphs.pads else {size // self.queries for size in sizes}
        self.bends = bends(programs, self.queries)
        #: Of a batch: the curves at the ends of its cell (of one, where they are the same), and how far it is from the
        #: first to the second.
        self._ends: dict[int, tuple[KnotCurve, KnotCurve | None, float]] = {}
        #: Over tokens of experts, what those take in passes of which so much is captured.
        self._experts: dict[Captured, TokenVectors] = {}
        #: Of a batch: that, its own tokens, and what is hidden of it.
        self._of_all: dict[int, tuple[TokenVectors, int, Quarters | None]] = {}

    def cell(self, batch: int) -> tuple[int, int, bool]:
        """The smallest and the largest batch (of one stage's part) that a batch stands between, and whether all of them
        are padded to the largest."""
        index = bisect_left(self._sizes, batch)
        if index < len(self._sizes):
            return (self._sizes[index - 1] + 1 if index else 1), self._sizes[index], True
        if batch <= FEW or batch in self._alone:
            return batch, batch, False
        wide = max(1, TILE // 2 // self.queries)
        low = (batch - 1) // wide * wide + 1
        return max(low, self._sizes[-1] + 1 if self._sizes else 1), low + wide - 1, False

    def padded(self, batch: int) -> int:
        """Sequences that a batch runs as."""
        if self._stages > 1 or self._halves:
            return batch
        _, high, padded = self.cell(batch)
        return high if padded else batch

    def step_s(self, work: StepWork, expert_tokens: int | None = None) -> float:
        """Seconds of the next step, bit for bit the first of :meth:`steps_s`."""
        if expert_tokens is not None:
            return self.step_s(work) + self._shared(work.sequences, expert_tokens)
        if self._stages > 1 or self._halves:
            return float(self.steps_s(work, 1)[0])
        batch, tokens = work.sequences, work.context_tokens
        uneven = batch > 1 and work.longest * batch > tokens
        if self.bends and (self.bends[0] <= work.longest or (uneven and self._waits)):
            return float(self.steps_s(work, 1)[0])
        found = self._once(batch, tokens / batch)
        if batch == 1 or MOST * work.longest < tokens:
            return found
        return max(found, self._once(1, float(work.longest)))

    def steps_s(self, work: StepWork, steps: int, expert_tokens: int | None = None) -> Floats:
        """Seconds of each of the next steps, where every context grows by one a step: shape (steps,).
        ``expert_tokens``: those of a replica, in the mean of all that share experts with it; None: as many as its own.
        """
        found = self._own_steps_s(work, steps)
        return found if expert_tokens is None else found + self._shared(work.sequences, expert_tokens)

    def _own_steps_s(self, work: StepWork, steps: int) -> Floats:
        batch, tokens = work.sequences, work.context_tokens
        later = np.arange(steps, dtype=np.float64)
        # Whole tokens over sequences, as a step by itself has them, and not its first mean and what has been added.
        mean = (tokens + batch * later) / batch
        if self._stages > 1:
            return self._in_parts(batch, mean)
        if self._halves:
            return self._in_halves(batch, mean)
        found = self._along(batch, mean)
        if not self.bends:
            return self._not_below_the_longest(found, work, later)
        low, high, padded = self.cell(batch)
        to = high if padded else 0
        longest, chosen_of = work.longest + later, mean
        last = work.longest + steps
        if self.bends[0] < last:
            shortest = min(work.contexts)
            apart = np.zeros(steps, dtype=bool)
            for bend in self.bends:
                apart |= (shortest + later < bend) & (bend < longest)
            if apart.any():
                lengths, counts = np.unique(np.array(work.contexts), return_counts=True)
                at, weights = lengths[:, None] + later[apart], counts / batch
                found[apart] = self._between(low, high, batch, at, weights, to)
                for bend in self.bends[1::2]:
                    # Whatever starts where one of them is long enough starts for all.
                    below = weighed(weights, (at < bend) & (longest[apart] >= bend))
                    found[apart] += below * self._jump(high, to, bend)
                chosen_of = mean.copy()
                reached = max((bend for bend in self.bends if bend < last), default=0)
                chosen_of[apart] = weighed(weights, np.maximum(at, reached))
        if self._waits and batch > 1 and work.longest * batch > tokens:
            found = found + self._longer(high, to)(mean) * np.maximum(0.0, longest - chosen_of)
        return self._not_below_the_longest(found, work, later)

    def _not_below_the_longest(self, found: Floats, work: StepWork, later: Floats) -> Floats:
        """A step takes no less than for its longest sequence alone, which is looked at where that has most tokens."""
        if work.sequences == 1 or MOST * work.longest < work.context_tokens:
            return found
        longest = work.longest + later
        # That of contexts that grow alike has less and less of all tokens: it is looked at in the first steps.
        apart = MOST * longest < work.context_tokens + work.sequences * later
        looked_at = int(apart.argmax()) if apart.any() else len(longest)
        alone = self._along(1, longest[:looked_at])
        return np.concatenate([np.maximum(found[:looked_at], alone), found[looked_at:]])

    def _along(self, batch: int, at: Floats) -> Floats:
        """Straight between the ends of a batch's cell, at contexts of one length, which grow: shape (steps,)."""
        start, end, share = self._ends_of(batch)
        found = start.along(at)
        return found if end is None else (1.0 - share) * found + share * end.along(at)

    def _once(self, batch: int, at: float) -> float:
        """The same at one length."""
        start, end, share = self._ends_of(batch)
        found = start.at(at)
        return found if end is None else (1.0 - share) * found + share * end.at(at)

    def _ends_of(self, batch: int) -> tuple[KnotCurve, KnotCurve | None, float]:
        found = self._ends.get(batch)
        if found is None:
            low, high, padded = self.cell(batch)
            to = high if padded else 0
            end = self._curve(high, to) if high > low else None
            share = (batch - low) / (high - low) if high > low else 0.0
            found = self._ends[batch] = self._curve(low, to), end, share
        return found

    def _between(self, low: int, high: int, batch: int, at: Floats, weights: Floats, padded: int = 0) -> Floats:
        """Straight between the ends of a cell, at contexts (lengths, steps) that have weights."""
        found = weighed(weights, self._curve(low, padded)(at))
        if high > low:
            share = (batch - low) / (high - low)
            found = (1.0 - share) * found + share * weighed(weights, self._curve(high, padded)(at))
        return found

    def _in_parts(self, batch: int, at: Floats) -> Floats:
        """With a pipeline, whose stages work on the part that has most."""
        if batch < self._stages:
            return self._between(batch, batch, batch, at[None, :], np.ones(1), -1)
        part = -(-batch // self._stages)
        low, high, padded = self.cell(part)
        ends = low * self._stages, high * self._stages
        return self._between(*ends, part * self._stages, at[None, :], np.ones(1), high if padded else 0)

    def _in_halves(self, batch: int, at: Floats) -> Floats:
        """Where a batch is cut into two, each of which runs as a graph of its own."""
        low, high, padded = self.cell(-(-batch // 2))
        # Of the smallest batch of a cell the smaller half belongs to another.
        ends = (batch, batch) if batch < 2 * low else (2 * low, 2 * high)
        return self._between(*ends, batch, at[None, :], np.ones(1), high if padded else 0)

    def _shared(self, batch: int, tokens: int) -> float:
        """Seconds by which a step differs where its experts get so many tokens a replica, and not its own."""
        if self._stages > 1 or self._halves:
            return self._shared_at(batch, tokens)
        low, high, _ = self.cell(batch)
        start = self._shared_at(low, tokens)
        if high == low:
            return start
        return start + (self._shared_at(high, tokens) - start) * ((batch - low) / (high - low))

    def _shared_at(self, batch: int, tokens: int) -> float:
        if batch not in self._of_all:
            job = self.programs.decoding((self._typical,) * batch)
            own, experts_s = self.padded(batch) * self.queries, self._experts_in(job.capture)
            found = None
            if self.programs.chain(job) is None:
                # Of what streams hide experts are not all: the rest is what the engine finds.
                found = Quarters(self._hidden_in(batch, own, experts_s), own)
            self._of_all[batch] = experts_s, own, found
        experts_s, own, hidden_s = self._of_all[batch]
        plain = float(experts_s(tokens)[0]) - float(experts_s(own)[0])
        return plain + hidden_s(tokens) if hidden_s is not None else plain

    def _experts_in(self, captured: Captured) -> TokenVectors:
        if captured not in self._experts:
            self._experts[captured] = TokenVectors(lambda n: np.array([self.programs.experts_s(n, captured)]))
        return self._experts[captured]

    def _hidden_in(self, batch: int, own: int, experts_s: TokenVectors) -> Callable[[int], float]:
        contexts = (self._typical,) * batch
        beside_s = self._seconds(contexts) - float(experts_s(own)[0])
        return lambda tokens: self._seconds(contexts, tokens / own) - float(experts_s(tokens)[0]) - beside_s

    @once
    def _typical(self) -> int:
        return min(TYPICAL_CONTEXT, (self.programs.question.model.max_context or TYPICAL_CONTEXT) // 2)

    def _curve(self, batch: int, padded: int) -> KnotCurve:
        """Over equal contexts of a batch; ``padded``: to what."""
        key = "equal", batch, padded
        if key not in self._curves:
            self._curves[key] = KnotCurve(lambda context: self._seconds((context,) * batch), self.bends)
        return self._curves[key]

    @once
    def _waits(self) -> bool:
        """Whether a step waits for the longest of its contexts: one of two takes longer than both at their mean."""
        far = 4 * max(self.bends)
        return self._seconds((far + far // 4, far - far // 4)) > self._seconds((far, far)) * (1.0 + 1e-9)

    def _jump(self, batch: int, padded: int, bend: int) -> float:
        """Seconds by which the first token beyond a length takes more than any other."""
        curve = self._curve(batch, padded)
        before, first, beyond = (float(curve(bend + more)) for more in (-1, 0, 1))
        return max(0.0, (first - before) - (beyond - first))

    def _longer(self, batch: int, padded: int) -> KnotCurve:
        """Seconds of a token more of the longest context, where all others are so much shorter that the mean stays."""
        key = "longest", batch, padded
        if key not in self._curves:

            def value(context: int) -> float:
                more = int(LONGER * context)
                others = evened((batch * context - context - more), batch - 1)
                if not more or not others or others[-1] < 1:
                    return 0.0
                return max(0.0, self._seconds((context + more, *others)) - self._seconds((context,) * batch)) / more

            self._curves[key] = KnotCurve(value, self.bends, epsilon=0.2)
        return self._curves[key]

    def _seconds(self, contexts: tuple[int, ...], expert_share: float = 1.0) -> float:
        return self.programs.seconds([self.programs.decoding(contexts, expert_share)])


def weighed(weights: Floats, values: NDArray[Any]) -> Floats:
    """Sums over the first axis, added up one after the other: of a step the same whatever steps are asked for beside
    it, which products of matrices are to rounding alone."""
    found: Floats = np.add.accumulate(weights[:, None] * values)[-1]
    return found


def evened(tokens: int, sequences: int) -> tuple[int, ...]:
    """As many contexts of so many tokens together, as equal as whole numbers are.

    >>> evened(11, 3)
    (4, 4, 3)
    """
    if not sequences:
        return ()
    each, more = divmod(tokens, sequences)
    return (each + 1,) * more + (each,) * (sequences - more)


def bends(programs: StepPrograms, queries: int) -> tuple[int, ...]:
    """Tokens before a step from which on some layer of the model reads no more of a context, and the last before."""
    model = programs.question.model
    kinds = dict.fromkeys(model.blocks)
    every = {length for block in kinds for length in model.attention_of(block).bends(model, block)}
    around = (length - queries + more for length in every for more in (0, 1))
    return tuple(sorted({each for each in around if each > 0}))
