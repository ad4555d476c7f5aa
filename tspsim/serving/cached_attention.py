"""Seconds of attention over the caches of sequences that decode, of any contexts.

A kernel over unequal contexts is priced as over equal ones of their mean, and at least as over any number of the
longest (:func:`tspsim.hardware.prices.decode_attention`):

    t(c) = max over k of T(k, mean of the k longest),        T(k, s): k sequences of s tokens

T is tabulated, with :data:`PARTS` lines an octave of s. More than all sequences together only such k take whose blocks
have just begun another wave of the compute units: of one sum of tokens, those that take longer than every larger k.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp

import numpy as np

from ..hardware.over_caches import OverCaches
from ..operators import RowSums
from .tables import Floats

#: Lines of a table an octave of contexts.
PARTS = 16
#: Numbers of sequences with the same candidates.
ALIKE = 16
#: By how much longer k sequences must take than every larger number to be looked at.
LONGER = 2e-4
_GRID = np.linspace(1.0, 2.0, PARTS + 1)


class CachedAttention:
    """Seconds of one kernel.

    Parameters
    ----------
    over
        Its seconds over equal contexts.
    most
        Tokens of a context that it reads at most; 0: all.
    shards
        Ranks that share a context.
    """

    def __init__(self, over: OverCaches, most: int = 0, shards: int = 1) -> None:
        self._over, self._most, self._shards = over, most, shards
        #: (Sequences, octave of their context) → seconds at both ends of every line.
        self._lines: dict[tuple[int, int], list[float]] = {}
        #: (Sequences up to a multiple of ALIKE, octave of their mean context) → candidates, ascending.
        self._candidates: dict[tuple[int, int], tuple[int, ...]] = {}

    def __call__(self, sums: RowSums) -> float:
        """Seconds over the caches of decoding sequences."""
        batch, most, shards = sums.batch, self._most, self._shards
        tokens = sums.cached_by_longest(batch, most) if most else sums.decoded + sums.own * batch
        mean = tokens / batch / shards
        seconds = self.equal(batch, mean)
        for count in self.candidates(batch, mean):
            seconds = max(seconds, self.equal(count, sums.cached_by_longest(count, most) / count / shards))
        return seconds

    def unequal_s(self, sums: RowSums) -> float:
        """Seconds that contexts take beyond as many equal ones."""
        mean = sums.decoded / sums.batch + sums.own
        return self(sums) - self.equal(sums.batch, (min(mean, self._most) if self._most else mean) / self._shards)

    def each(self, contexts: Sequence[int], own: int, padding: Sequence[int], steps: int) -> Floats:
        """Seconds of steps between which each of the ``contexts``, longest first, grows by a token, but none of the
        shorter ``padding``: shape (steps,), bit for bit those of a call."""
        later, padded = np.arange(steps), len(contexts) + len(padding)
        most, shards = self._most, self._shards
        sums = RowSums((), (), own, (*contexts, *padding))

        def means(count: int) -> Floats:
            grown = min(count, len(contexts))
            if most:
                ends = np.array(contexts[:grown])[:, None] + (own + later)
                tokens = np.minimum(ends, most).sum(axis=0)
                tokens = tokens + sum([min(most, own + context) for context in padding[: count - grown]])
            else:
                tokens = sums.cached_by_longest(count) + grown * later
            return tokens / count / shards

        mean = means(padded)
        seconds = self._along(padded, mean)
        octaves = np.frexp(mean)[1]
        for octave in np.unique(octaves).tolist():
            inside = octaves == octave
            for count in self.candidates(padded, mean[inside][0]):
                seconds[inside] = np.maximum(seconds[inside], self._along(count, means(count)[inside]))
        return seconds

    def equal(self, batch: int, context: float) -> float:
        """Seconds over equal contexts."""
        share, octave = frexp(context)
        place = (2.0 * share - 1.0) * PARTS
        index = int(place)
        line = self._lines.get((batch, octave)) or self._line(batch, octave)
        start = line[index]
        return start + (line[index + 1] - start) * (place - index)

    def _along(self, batch: int, contexts: Floats) -> Floats:
        """:meth:`equal` of each."""
        shares, octaves = np.frexp(contexts)
        places = (2.0 * shares - 1.0) * PARTS
        index = places.astype(np.int64)
        seconds = np.empty(len(contexts))
        for octave in np.unique(octaves).tolist():
            inside = octaves == octave
            line, at = np.array(self._lines.get((batch, octave)) or self._line(batch, octave)), index[inside]
            start = line[at]
            seconds[inside] = start + (line[at + 1] - start) * (places[inside] - at)
        return seconds

    def _line(self, batch: int, octave: int) -> list[float]:
        contexts = 2.0 ** (octave - 1) * _GRID
        line: list[float] = self._over(np.full(len(contexts), float(batch)), contexts).tolist()
        self._lines[batch, octave] = line
        return line

    def candidates(self, batch: int, mean: float) -> Sequence[int]:
        """Numbers of the longest contexts that may take longer than all, by the mean of all."""
        octave, last = frexp(mean)[1], -(-batch // ALIKE) * ALIKE
        found = self._candidates.get((last, octave))
        if found is None:
            found = self._candidates[last, octave] = self._longer(last, octave)
        return found if batch == last or not found or found[-1] < batch else [k for k in found if k < batch]

    def _longer(self, last: int, octave: int) -> tuple[int, ...]:
        """Candidates of numbers up to ``last``, at three means of an octave."""
        counts, first = np.arange(1.0, last + 1.0), last - ALIKE
        means = 2.0 ** (octave - 1) * np.array((1.0, 1.5, 2.0))
        taken_s = self._over(np.tile(counts, 3), np.concatenate([mean * last / counts for mean in means]))
        found = set[int]()
        for of_mean in taken_s.reshape(3, -1):
            # Numbers from `first` on, which batches of this table may be less than, hide none that are smaller, and one
            # of them is looked at where any larger one takes less.
            before, behind = np.split(of_mean, [first + 1])
            beyond = np.append(np.maximum.accumulate(before[::-1])[-2::-1], np.minimum.accumulate(behind[::-1])[::-1])
            tops = np.append(True, of_mean[1:-1] > of_mean[:-2])
            found.update((np.flatnonzero((of_mean[:-1] > beyond * (1.0 + LONGER)) & tops) + 1).tolist())
        return tuple(sorted(found))
