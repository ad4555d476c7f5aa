"""Costs of decode steps by batch size and context lengths.

Steps whose programs are chains of kernels are priced for their own contexts (:mod:`.decode_chains`). Others, with
pipeline stages, divided contexts or streams that overlap, come from curves over contexts. With B
sequences of mean context s a step takes

    f(B, s) = (1 − x)·f(B₀, s) + x·f(B₁, s),      x = (B − B₀) / (B₁ − B₀)

where B₀ … B₁ is a *cell*: batches that run as the same captured graph, padded to B₁, or without capture so
near that no tile of a product ends between them. Each f(B₀, ·) is a :class:`~tspsim.serving.tables.KnotCurve`.

Kernels take as long for unequal contexts as for their mean, because bytes decide, and at least as long as for the
longest alone: where one sequence has most of the tokens, a step takes at least f(1, longest). There are two
exceptions. Where some contexts have reached a window,
or an indexer's top-k, and others have not, f is the mean over sequences. And an indexer waits for the longest:
with γ the seconds of one more token of it alone, γ · (longest − s) is added.

Where attention replicas that share experts have unequal batches, experts get the mean number of tokens, and the
difference in their time is added.

A pipeline's stages each process a part of the batch; cells are then of parts, or of the halves of a split batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.memo import once
from ..parallel.serving_engine import Captured
from .decode_chains import DecodeCell, DecodeChains, Standing
from .grid import TILE, Quarters, TokenVectors
from .programs import TYPICAL_BATCH, TYPICAL_CONTEXT, StepPrograms
from .tables import Floats, KnotCurve
from .work import StepWork

#: Up to this number of sequences every uncaptured batch has a curve of its own: each further active expert matters.
FEW = 64
#: Relative growth of the longest context at which waits for it are measured.
LONGER = 0.25
#: A batch with this many times the tokens of its longest sequence takes longer than that sequence alone anyway.
MOST = 1.25


class Decodes:
    """Decode steps of one plan.

    Parameters
    ----------
    programs
        Programs of the plan's engine.
    curves
        Curves shared by all engines that differ only in their graphs.
    """

    def __init__(self, programs: StepPrograms, curves: dict[Hashable, KnotCurve]) -> None:
        self.programs, self._curves = programs, curves
        engine = programs.question.work.stack.engine
        self.query_len, self._stages = programs.query_len, programs.plan.pp
        self._halves = programs.plan.hiding.halves
        sizes = engine.graphs.tokens(self.query_len, engine.slots)
        self._sizes = [size // self.query_len for size in sizes] if engine.graphs.pads else []
        self._alone = set() if engine.graphs.pads else {size // self.query_len for size in sizes}
        self.breakpoints = breakpoints(programs, self.query_len)
        #: Batch → the curves at the ends of its cell (one where they are equal), and its position between them.
        self._ends: dict[int, tuple[KnotCurve, KnotCurve | None, float]] = {}
        #: Of a batch's cell: seconds of the first token beyond a breakpoint, and of each token of the longest context.
        self._jumps: dict[tuple[int, int], float] = {}
        self._longer_ones: dict[int, KnotCurve] = {}
        #: Capture → seconds of experts over their tokens.
        self._experts: dict[Captured, TokenVectors] = {}
        #: Batch → expert seconds, its own tokens, and hidden seconds.
        self._of_all: dict[int, tuple[TokenVectors, int, Quarters | None]] = {}
        self._chains = DecodeChains(programs)
        #: Batch → its cell of programs that are chains; None where steps come from curves.
        self._chained: dict[int, DecodeCell | None] = {}

    def prepare(self) -> None:
        """Writes typical steps, in graphs and not; finds whether steps wait for their longest context."""
        chained = [self._chain_of(batch) for batch in (TYPICAL_BATCH, self._sizes[-1] + 1 if self._sizes else FEW + 1)]
        if None not in chained:
            return
        self._seconds((self._typical,) * TYPICAL_BATCH)
        if self.breakpoints and self._stages == 1 and not self._halves:
            _ = self._waits

    def cell(self, batch: int) -> tuple[int, int, bool]:
        """The smallest and the largest batch (of one stage's part) of a batch's cell, and whether all are padded to the
        largest."""
        index = bisect_left(self._sizes, batch)
        if index < len(self._sizes):
            return (self._sizes[index - 1] + 1 if index else 1), self._sizes[index], True
        if batch <= FEW or batch in self._alone:
            return batch, batch, False
        wide = max(1, TILE // 2 // self.query_len)
        low = (batch - 1) // wide * wide + 1
        return max(low, self._sizes[-1] + 1 if self._sizes else 1), low + wide - 1, False

    def _chain_of(self, batch: int) -> DecodeCell | None:
        """The cell of a batch, where programs of both of its ends are chains."""
        if batch not in self._chained:
            divided = self._stages > 1 or self._halves
            self._chained[batch] = None if divided else self._chains.cell(*self.cell(batch))
        return self._chained[batch]

    def standing(self, batch: int) -> Standing | None:
        """Steps of a number of sequences, but for kernels that read contexts; None where steps come from curves."""
        chained = self._chain_of(batch)
        return None if chained is None else chained.standing(batch)

    def padded(self, batch: int) -> int:
        """The padded size of a batch."""
        if self._stages > 1 or self._halves:
            return batch
        _, high, padded = self.cell(batch)
        return high if padded else batch

    def step_s(self, work: StepWork, expert_tokens: int | None = None) -> float:
        """Seconds of the next step, bit for bit the first of :meth:`steps_s`."""
        seconds = self._own_step_s(work)
        return seconds if expert_tokens is None else seconds + self._shared(work.sequences, expert_tokens)

    def _own_step_s(self, work: StepWork) -> float:
        batch, tokens = work.sequences, work.context_tokens
        chained = self._chain_of(batch)
        if chained is not None:
            return chained.step_s(work)
        if self._stages > 1:
            tokens, sequences = self._longest_part(work)
            return self._once_in_parts(batch, tokens / sequences)
        mean = tokens / batch
        if self._halves:
            return float(self._own_steps_s(work, 1)[0])
        longest = work.longest
        chosen_of, apart = mean, False
        if self.breakpoints and self.breakpoints[0] < longest:
            shortest = min(work.contexts)
            apart = any(shortest < length < longest for length in self.breakpoints)
        if apart:
            seconds, chosen_of = self._once_apart(work)
        else:
            seconds = self._once(batch, mean)
        if self.breakpoints and batch > 1 and longest * batch > tokens and self._waits:
            seconds += self._longer_of(batch).at(chosen_of) * max(0.0, longest - chosen_of)
        if batch == 1 or MOST * longest < tokens:
            return seconds
        return max(seconds, self._once(1, float(longest)))

    def _once_apart(self, work: StepWork) -> tuple[float, float]:
        """Seconds of contexts on both sides of a breakpoint before any wait, and the mean of what they choose from."""
        batch, longest = work.sequences, work.longest
        lengths, counts = np.unique(np.array(work.contexts, dtype=np.float64), return_counts=True)
        weights = counts / batch
        start, end, share = self._ends_of(batch)
        seconds = added(weights * start.along(lengths))
        if end is not None:
            seconds = (1.0 - share) * seconds + share * added(weights * end.along(lengths))
        for length in self.breakpoints[1::2]:
            # A kernel that starts at a breakpoint starts for all as soon as one sequence is long enough.
            if lengths[0] < length <= longest:
                seconds += added(weights[: lengths.searchsorted(length)]) * self._jump_of(batch, length)
        reached = max(length for length in self.breakpoints if length <= longest)
        return seconds, added(weights * np.maximum(lengths, reached))

    def _longest_part(self, work: StepWork) -> tuple[int, int]:
        """Tokens and sequences of the part of a batch that has the longest contexts: stages take them in turn."""
        part = sorted(work.contexts, reverse=True)[:: min(self._stages, work.sequences)]
        return sum(part), len(part)

    def _once_in_parts(self, batch: int, at: float) -> float:
        """:meth:`_in_parts` at one length."""
        if batch < self._stages:
            return self._curve(batch, -1).at(at)
        part = -(-batch // self._stages)
        start, end, share = self._ends_of(part)
        seconds = start.at(at)
        return seconds if end is None else (1.0 - share) * seconds + share * end.at(at)

    def _jump_of(self, batch: int, length: int) -> float:
        """:meth:`_jump` of a batch's cell."""
        key = batch, length
        if key not in self._jumps:
            _, high, padded = self.cell(batch)
            self._jumps[key] = self._jump(high, high if padded else 0, length)
        return self._jumps[key]

    def _longer_of(self, batch: int) -> KnotCurve:
        """:meth:`_longer` of a batch's cell."""
        if batch not in self._longer_ones:
            _, high, padded = self.cell(batch)
            self._longer_ones[batch] = self._longer(high, high if padded else 0)
        return self._longer_ones[batch]

    def steps_s(self, work: StepWork, steps: int, expert_tokens: int | None = None) -> Floats:
        """Seconds of each of the next steps, with contexts growing by one per step: shape (steps,). ``expert_tokens``:
        mean tokens of the replicas that share experts; None: the replica's own number."""
        seconds = self._own_steps_s(work, steps)
        return seconds if expert_tokens is None else seconds + self._shared(work.sequences, expert_tokens)

    def _own_steps_s(self, work: StepWork, steps: int) -> Floats:
        batch, tokens = work.sequences, work.context_tokens
        chained = self._chain_of(batch)
        if chained is not None:
            return chained.steps_s(work, steps)
        later = np.arange(steps, dtype=np.float64)
        # Whole tokens over sequences, as in a single step, so that rounding is the same.
        if self._stages > 1:
            tokens, sequences = self._longest_part(work)
            return self._in_parts(batch, (tokens + sequences * later) / sequences)
        mean = (tokens + batch * later) / batch
        if self._halves:
            return self._in_halves(batch, mean)
        seconds = self._along(batch, mean)
        if not self.breakpoints:
            return self._not_below_the_longest(seconds, work, later)
        low, high, padded = self.cell(batch)
        to = high if padded else 0
        longest, chosen_of = work.longest + later, mean
        last = work.longest + steps
        if self.breakpoints[0] < last:
            shortest = min(work.contexts)
            apart = np.zeros(steps, dtype=bool)
            for length in self.breakpoints:
                apart |= (shortest + later < length) & (length < longest)
            if apart.any():
                lengths, counts = np.unique(np.array(work.contexts), return_counts=True)
                at, weights = lengths[:, None] + later[apart], counts / batch
                seconds[apart] = self._between(low, high, batch, at, weights, to)
                for length in self.breakpoints[1::2]:
                    # A kernel that starts at a breakpoint starts for all as soon as one sequence is long enough.
                    below = weighed(weights, (at < length) & (longest[apart] >= length))
                    seconds[apart] += below * self._jump(high, to, length)
                chosen_of = mean.copy()
                reached = max((length for length in self.breakpoints if length < last), default=0)
                chosen_of[apart] = weighed(weights, np.maximum(at, reached))
        if self._waits and batch > 1 and work.longest * batch > tokens:
            seconds = seconds + self._longer(high, to)(chosen_of) * np.maximum(0.0, longest - chosen_of)
        return self._not_below_the_longest(seconds, work, later)

    def _not_below_the_longest(self, seconds: Floats, work: StepWork, later: Floats) -> Floats:
        """Raises a step's seconds to those of its longest sequence alone, checked where that has most tokens."""
        if work.sequences == 1 or MOST * work.longest < work.context_tokens:
            return seconds
        longest = work.longest + later
        # The longest sequence's share of all tokens falls as contexts grow: only the first steps need the check.
        apart = MOST * longest < work.context_tokens + work.sequences * later
        looked_at = int(apart.argmax()) if apart.any() else len(longest)
        alone = self._along(1, longest[:looked_at])
        return np.concatenate([np.maximum(seconds[:looked_at], alone), seconds[looked_at:]])

    def _along(self, batch: int, at: Floats) -> Floats:
        """Interpolation between the ends of a batch's cell, at growing contexts of one length: shape (steps,)."""
        start, end, share = self._ends_of(batch)
        seconds = start.along(at)
        return seconds if end is None else (1.0 - share) * seconds + share * end.along(at)

    def _once(self, batch: int, at: float) -> float:
        """The same at one length."""
        start, end, share = self._ends_of(batch)
        seconds = start.at(at)
        return seconds if end is None else (1.0 - share) * seconds + share * end.at(at)

    def _ends_of(self, batch: int) -> tuple[KnotCurve, KnotCurve | None, float]:
        ends = self._ends.get(batch)
        if ends is None:
            low, high, padded = self.cell(batch)
            to = high if padded else 0
            stages = self._stages
            end = self._curve(high * stages, to) if high > low else None
            share = (batch - low) / (high - low) if high > low else 0.0
            ends = self._ends[batch] = self._curve(low * stages, to), end, share
        return ends

    def _between(self, low: int, high: int, batch: int, at: Floats, weights: Floats, padded: int = 0) -> Floats:
        """Interpolation between the ends of a cell, at weighted contexts (lengths, steps)."""
        seconds = weighed(weights, self._curve(low, padded)(at))
        if high > low:
            share = (batch - low) / (high - low)
            seconds = (1.0 - share) * seconds + share * weighed(weights, self._curve(high, padded)(at))
        return seconds

    def _in_parts(self, batch: int, at: Floats) -> Floats:
        """With a pipeline, whose stages process the largest part."""
        if batch < self._stages:
            return self._between(batch, batch, batch, at[None, :], np.ones(1), -1)
        part = -(-batch // self._stages)
        low, high, padded = self.cell(part)
        ends = low * self._stages, high * self._stages
        return self._between(*ends, part * self._stages, at[None, :], np.ones(1), high if padded else 0)

    def _in_halves(self, batch: int, at: Floats) -> Floats:
        """Where a batch is split into two, each run as its own graph."""
        low, high, padded = self.cell(-(-batch // 2))
        # The smaller half of a cell's smallest batch belongs to another cell.
        ends = (batch, batch) if batch < 2 * low else (2 * low, 2 * high)
        return self._between(*ends, batch, at[None, :], np.ones(1), high if padded else 0)

    def _shared(self, batch: int, tokens: int) -> float:
        """Difference in seconds where experts get ``tokens`` per replica instead of their own number."""
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
            own, experts_s = self.padded(batch) * self.query_len, self._experts_in(job.capture)
            hidden_s_of = None
            if self.programs.chain(job) is None:
                # Streams hide part of the experts' time: the engine simulates the rest.
                hidden_s_of = Quarters(self._hidden_in(batch, own, experts_s), own)
            self._of_all[batch] = experts_s, own, hidden_s_of
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
        """The curve over equal contexts of a batch; ``padded``: its padded size."""
        key = "equal", batch, padded
        if key not in self._curves:
            self._curves[key] = KnotCurve(lambda context: self._seconds((context,) * batch), self.breakpoints)
        return self._curves[key]

    @once
    def _waits(self) -> bool:
        """Whether a step waits for its longest context: two unequal contexts take longer than two at their mean."""
        far = 4 * max(self.breakpoints)
        return self._seconds((far + far // 4, far - far // 4)) > self._seconds((far, far)) * (1.0 + 1e-9)

    def _jump(self, batch: int, padded: int, length: int) -> float:
        """Extra seconds of the first token beyond a breakpoint, relative to later ones."""
        curve = self._curve(batch, padded)
        before, first, beyond = (float(curve(length + more)) for more in (-1, 0, 1))
        return max(0.0, (first - before) - (beyond - first))

    def _longer(self, batch: int, padded: int) -> KnotCurve:
        """Seconds per further token of the longest context, with the mean constant."""
        key = "longest", batch, padded
        if key not in self._curves:
            equal = self._curve(batch, padded)

            def value(context: int) -> float:
                # Up to the next breakpoint: what starts there is no wait for longer contexts. Nor do the others, which
                # are shorter for it, come below the last.
                beyond = min((length for length in self.breakpoints[1::2] if length > context), default=2 * context)
                more = min(int(LONGER * context), beyond - 1 - context)
                if batch == 1 or more < 1:
                    return 0.0
                reached = max((length for length in self.breakpoints[1::2] if length <= context), default=1)
                mean = max(context, min(reached - (-more // (batch - 1)), beyond - 1 - more))
                others = evened(batch * mean - mean - more, batch - 1)
                if others[-1] < 1:
                    return 0.0
                return max(0.0, self._seconds((mean + more, *others)) - equal.value(mean)) / more

            self._curves[key] = KnotCurve(value, self.breakpoints, epsilon=0.2)
        return self._curves[key]

    def _seconds(self, contexts: tuple[int, ...], expert_share: float = 1.0) -> float:
        return self.programs.seconds([self.programs.decoding(contexts, expert_share)])


def weighed(weights: Floats, values: NDArray[Any]) -> Floats:
    """Sums over the first axis, added in order, so that a step's value does not depend on the other steps (a matrix
    product would round differently)."""
    sums: Floats = np.add.accumulate(weights[:, None] * values)[-1]
    return sums


def added(values: Floats) -> float:
    """Their sum, added in order as in :func:`weighed`."""
    return float(np.add.accumulate(values)[-1])


def evened(tokens: int, sequences: int) -> tuple[int, ...]:
    """``sequences`` contexts of ``tokens`` tokens together, as equal as possible.

    >>> evened(11, 3)
    (4, 4, 3)
    """
    if not sequences:
        return ()
    share, more = divmod(tokens, sequences)
    return (share + 1,) * more + (share,) * (sequences - more)


def breakpoints(programs: StepPrograms, query_len: int) -> tuple[int, ...]:
    """Breakpoints: tokens before a step at which some layer of the model stops reading more context, and the number
    before."""
    model = programs.question.model
    kinds = dict.fromkeys(model.blocks)
    every = {length for block in kinds for length in model.attention_of(block).breakpoints(model, block)}
    around = (length - query_len + more for length in every for more in (0, 1))
    return tuple(sorted({tokens for tokens in around if tokens > 0}))
