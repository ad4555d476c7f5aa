"""Seconds of attention over the caches of sequences that decode, of any contexts.

A kernel over unequal contexts is priced as over equal ones of their mean, and at least as over any number of the
longest (:func:`tspsim.hardware.prices.decode_attention`):

    t(c) = max over k of T(k, mean of the k longest),        T(k, s): k sequences of s tokens

T is tabulated, with :data:`PARTS` lines an octave of s. It never falls when k grows, but of one sum of tokens S,
T(k, S/k) may: where the blocks of k have just begun another wave of the compute units. With r times the seconds of all
sequences, and e by how many powers of a sum it grows, k longest with a share x of all tokens take longer than all where
r·x^e > 1: a list has the share from which each k is looked at, and such k alone that take longer than every larger one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from math import frexp

import numpy as np
from numpy.typing import NDArray

from ..hardware.over_caches import OverCaches
from ..operators import RowSums
from .tables import Floats

Ints = NDArray[np.int64]
#: Lines of a table an octave of contexts.
PARTS = 16
#: Up to this number of sequences all k are listed; of more, all up to FEW.
ALL, FEW = 24, 8
#: Numbers of sequences with one list of k, and shares by which a k takes longer than the next larger ones in it, and
#: than its neighbours.
ALIKE, STEP, TOP = 16, 0.015, 0.002
#: Share of a time that lies between the means at which lists are made.
MARGIN = 0.01
#: Ends of the lines of an octave.
_GRID = np.linspace(1.0, 2.0, PARTS + 1)


class CachedAttention:
    """Seconds of one kernel.

    Parameters
    ----------
    over
        Its seconds over equal contexts.
    shards
        Ranks that share a context.
    """

    def __init__(self, over: OverCaches, shards: int = 1) -> None:
        self._over, self.shards = over, shards
        #: The last sums, and their seconds: layers of several kinds may have one kernel.
        self._last: RowSums | None = None
        self._last_s = 0.0
        #: Sequences → octave of their context → seconds at the ends of its lines.
        self._lines: defaultdict[int, dict[int, list[float]]] = defaultdict(dict)
        #: (Sequences, octave of their mean context) → numbers of the longest, and the shares of all tokens from which
        #: they are looked at.
        self._numbers: dict[tuple[int, int], list[tuple[int, float]]] = {}

    def __call__(self, sums: RowSums) -> float:
        """Seconds over the caches of decoding sequences."""
        if sums is not self._last:
            self._last_s = self.over_longest(sums, sums.of_longest())
            self._last = sums
        return self._last_s

    def over_longest(self, sums: RowSums, cached: Sequence[int]) -> float:
        """The same by tokens in the caches of the longest, of the two longest, and so on, without those of the step."""
        batch, own, shards = sums.batch, sums.own, self.shards
        tokens = cached[-1] + own * batch
        mean = tokens / batch / shards
        seconds = self.equal(batch, mean)
        for number, share in self._numbers_of(batch, frexp(mean)[1]):
            of_longest = cached[number - 1] + own * number
            if of_longest > share * tokens:
                longest_s = self.equal(number, of_longest / number / shards)
                if longest_s > seconds:
                    seconds = longest_s
        return seconds

    def each(self, contexts: Sequence[int], own: int, padding: Sequence[int], steps: int) -> Floats:
        """Seconds of steps between which each of the ``contexts`` grows by a token, but none of the shorter
        ``padding``: shape (steps,), bit for bit those of a call."""
        sums = longest_first(contexts, own, padding).cumsum()
        growing, later = len(contexts), np.arange(steps)

        def tokens_of(numbers: Ints) -> Ints:
            grown: Ints = sums[numbers - 1][:, None] + later * np.minimum(numbers, growing)[:, None]
            return grown

        return self.along_longest(len(sums), tokens_of)

    def along_longest(self, batch: int, tokens_of: Callable[[Ints], Ints]) -> Floats:
        """Seconds of steps by tokens in the caches of numbers of the longest: shape (numbers, steps)."""
        whole = np.array([batch])
        tokens = tokens_of(whole)
        mean = tokens / batch / self.shards
        seconds: Floats = self._along(whole, mean)[0]
        octaves = np.frexp(mean[0])[1]
        for octave in np.unique(octaves).tolist():
            inside = octaves == octave
            listed = self._numbers_of(batch, octave)
            if listed:
                numbers, shares = np.array([number for number, _ in listed]), np.array([share for _, share in listed])
                of_longest = tokens_of(numbers)[:, inside]
                looked_at = of_longest > shares[:, None] * tokens[:, inside]
                some = looked_at.any(axis=1)
                if some.any():
                    means = of_longest[some] / numbers[some][:, None] / self.shards
                    longest_s = np.where(looked_at[some], self._along(numbers[some], means), 0.0)
                    seconds[inside] = np.maximum(seconds[inside], longest_s.max(axis=0))
        return seconds

    def equal(self, number: int, context: float) -> float:
        """Seconds over equal contexts."""
        share, octave = frexp(context)
        place = (2.0 * share - 1.0) * PARTS
        index = int(place)
        line = self._lines[number].get(octave) or self._line(number, octave)
        start = line[index]
        return start + (line[index + 1] - start) * (place - index)

    def _along(self, every: Ints, contexts: Floats) -> Floats:
        """The same of several numbers, each over many contexts: shape (numbers, contexts)."""
        shares, octaves = np.frexp(contexts)
        places = (2.0 * shares - 1.0) * PARTS
        index = places.astype(np.int64)
        used, numbers = np.unique(octaves).tolist(), every.tolist()
        lines = np.array(
            [[self._lines[number].get(octave) or self._line(number, octave) for octave in used] for number in numbers]
        )
        where = np.arange(len(numbers))[:, None], np.searchsorted(used, octaves)
        start = lines[*where, index]
        seconds: Floats = start + (lines[*where, index + 1] - start) * (places - index)
        return seconds

    def _line(self, number: int, octave: int) -> list[float]:
        contexts = 2.0 ** (octave - 1) * _GRID
        line: list[float] = self._over(np.full(len(contexts), float(number)), contexts).tolist()
        self._lines[number][octave] = line
        return line

    def _numbers_of(self, batch: int, octave: int) -> list[tuple[int, float]]:
        """Numbers of the longest contexts of a batch, and their least shares, by the octave of its mean context."""
        found = self._numbers.get((batch, octave))
        if found is None:
            if batch % ALIKE:
                every = self._numbers_of(batch + -batch % ALIKE, octave)
                found = [(number, share) for number, share in every if number < batch]
            else:
                found = self._slower(batch, octave)
            self._numbers[batch, octave] = found
        return found

    def _slower(self, last: int, octave: int) -> list[tuple[int, float]]:
        """Numbers that take longer than larger ones up to ``last``, at three mean contexts of an octave."""
        numbers, first = np.arange(1.0, last + 1.0), last - ALIKE
        means = 2.0 ** (octave - 1) * np.array((1.0, 1.5, 2.0))
        tokens = means[:, None] * last
        taken_s = self._over(np.tile(numbers, len(means)), (tokens / numbers).ravel()).reshape(len(means), -1)
        listed = {*range(1, last if last <= ALL else FEW + 1)}
        for of_mean in taken_s.tolist() if last > ALL else ():
            # Smaller batches of this list have not all of the numbers from `first` on: these hide no others.
            for i in range(first, last - 1):
                if of_mean[i - 1] <= of_mean[i] > min(of_mean[i + 1 :]) * (1.0 + TOP):
                    listed.add(i + 1)
            slowest = kept = of_mean[first]
            for i in range(first - 1, FEW, -1):
                if of_mean[i] > slowest:
                    slowest = of_mean[i]
                    if slowest > kept * (1.0 + (TOP if of_mean[i - 1] <= slowest else STEP)):
                        kept = slowest
                        listed.add(i + 1)
        longer = (taken_s / taken_s[:, first:].min(axis=1)[:, None]).max(axis=0) * (1.0 + MARGIN)
        powers = np.maximum(np.log2(taken_s[-1] / taken_s[0]), 1e-3)
        shares = np.minimum(1.0, longer ** (-1.0 / powers)).tolist()
        return [(number, shares[number - 1]) for number in sorted(listed)]


class WindowedAttention(CachedAttention):
    """The same of a kernel that reads only the latest tokens of a context.

    Parameters
    ----------
    whole
        The kernel that reads all.
    most
        Tokens that it reads at most.
    """

    def __init__(self, whole: CachedAttention, most: int) -> None:
        self._whole, self._most, self.shards = whole, most, whole.shards

    def __call__(self, sums: RowSums) -> float:
        ordered, own, most = sums.ordered, sums.own, self._most
        if ordered[-1] + own <= most:
            return self._whole(sums)
        if ordered[0] + own >= most:
            return self._whole.equal(sums.batch, most / self.shards)
        return self._whole.over_longest(sums, sums.of_longest(most))

    def each(self, contexts: Sequence[int], own: int, padding: Sequence[int], steps: int) -> Floats:
        tokens = longest_first(contexts, own, padding)
        growing = np.arange(len(tokens)) < len(contexts)
        capped = np.minimum(tokens[:, None] + np.arange(steps) * growing[:, None], self._most).cumsum(axis=0)
        return self._whole.along_longest(len(tokens), lambda numbers: capped[numbers - 1])


def longest_first(contexts: Sequence[int], own: int, padding: Sequence[int]) -> Ints:
    """Tokens of each context and of shorter padding, ``own`` ones of the step included."""
    return np.array(sorted(contexts, reverse=True) + list(padding), dtype=np.int64) + own
