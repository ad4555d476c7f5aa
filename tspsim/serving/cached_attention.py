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

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from math import frexp

import numpy as np
from numpy.typing import NDArray

from ..hardware.over_caches import OverCaches
from ..operators import GrowingSums, RowSums
from .tables import Floats

Ints = NDArray[np.int64]
#: Lines of a table an octave of contexts.
PARTS = 16
#: Up to this number of sequences all k are listed; of more, all up to FEW.
ALL, FEW = 32, 8
#: From this number on every second one is looked at.
EVERY = 64
#: Numbers of sequences with one list of k, and shares by which a k takes longer than the next larger ones in it, and
#: than its neighbours.
ALIKE, STEP, TOP = 16, 0.008, 0.002
#: By what share of the time of all sequences those of a list take longer at least.
LEAST = 0.004
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
        #: The same with the lines of all sequences.
        self._tables: dict[tuple[int, int], tuple[list[float], list[tuple[int, float]]]] = {}

    def __call__(self, sums: RowSums) -> float:
        """Seconds over the caches of decoding sequences."""
        if sums is not self._last:
            self._last_s = self.over_longest(sums, sums.decoded)
            self._last = sums
        return self._last_s

    def over_longest(self, sums: RowSums, decoded: int, most: int = 0) -> float:
        """The same of tokens in all caches, of which each has at most ``most`` with those of the step; 0: all."""
        batch, own, shards = sums.batch, sums.own, self.shards
        tokens = decoded + own * batch
        mean = tokens / batch / shards
        share, octave = frexp(mean)
        line, listed = self._tables.get((batch, octave)) or self._table(batch, octave)
        place = (2.0 * share - 1.0) * PARTS
        index = int(place)
        start = line[index]
        seconds = start + (line[index + 1] - start) * (place - index)
        if listed:
            cached = sums.of_longest(most)
            for number, share in listed:
                of_longest = cached[number - 1] + own * number
                if of_longest > share * tokens:
                    longest_s = self.equal(number, of_longest / number / shards)
                    if longest_s > seconds:
                        seconds = longest_s
        return seconds

    def _table(self, batch: int, octave: int) -> tuple[list[float], list[tuple[int, float]]]:
        line = self._lines[batch].get(octave) or self._line(batch, octave)
        self._tables[batch, octave] = line, self._numbers_of(batch, octave)
        return self._tables[batch, octave]

    def each(self, sums: GrowingSums) -> Floats:
        """Seconds of the steps of a run: shape (steps,), bit for bit those of a call."""
        ordered, growing, own = sums.first.ordered, sums.growing, sums.own

        def tokens_of(number: int) -> Ints:
            grown: Ints = sum(ordered[-number:]) + own * number + min(number, growing) * sums.later
            return grown

        return self.along_longest(sums.batch, ordered[-1] + own + len(sums.later), tokens_of)

    def along_longest(self, batch: int, longest: int, tokens_of: Callable[[int], Ints]) -> Floats:
        """Seconds of steps by tokens of the longest context at most, and those in the caches of a number of the longest
        in every step."""
        whole = tokens_of(batch)
        shares, octaves = np.frexp(whole / batch / self.shards)
        seconds = self._along(batch, shares, octaves)
        least = float(seconds[0])
        for octave in range(int(octaves[0]), int(octaves[-1]) + 1):
            listed = self._numbers_of(batch, octave)
            # Fewer take no longer even if all of their contexts are the longest.
            fewest = bisect_right(listed, least, key=lambda entry: self.equal(entry[0], longest / self.shards))
            for number, share in listed[fewest:]:
                tokens = tokens_of(number)
                looked_at = (tokens > share * whole) & (octaves == octave)
                if looked_at.any():
                    longest_s = self._along(number, *np.frexp(tokens / number / self.shards))
                    seconds = np.maximum(seconds, np.where(looked_at, longest_s, 0.0))
        return seconds

    def equal(self, number: int, context: float) -> float:
        """Seconds over equal contexts."""
        share, octave = frexp(context)
        place = (2.0 * share - 1.0) * PARTS
        index = int(place)
        line = self._lines[number].get(octave) or self._line(number, octave)
        start = line[index]
        return start + (line[index + 1] - start) * (place - index)

    def _along(self, number: int, shares: Floats, octaves: NDArray[np.int32]) -> Floats:
        """The same of ascending contexts, by their mantissas and exponents."""
        places = (2.0 * shares - 1.0) * PARTS
        index = places.astype(np.int64)
        seconds = np.empty(len(places))
        for octave in range(int(octaves[0]), int(octaves[-1]) + 1):
            inside = slice(None) if octaves[0] == octaves[-1] else octaves == octave
            line, at = np.array(self._lines[number].get(octave) or self._line(number, octave)), index[inside]
            start = line[at]
            seconds[inside] = start + (line[at + 1] - start) * (places[inside] - at)
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
        """Numbers that take longer than larger ones up to ``last``, at means of an octave, and of half as many tokens:
        so many may the longest have."""
        numbers = [*range(1, min(last, EVERY) + 1), *range(EVERY + 1, last + 1, 2)]
        first = bisect_right(numbers, last - ALIKE)
        means = 2.0 ** (octave - 1) * np.array((0.5, 1.0, 2.0))
        counts = np.array(numbers, dtype=float)
        taken_s = self._over(np.tile(counts, len(means)), (means[:, None] * last / counts).ravel())
        taken_s = taken_s.reshape(len(means), -1)
        listed = {*range(len(numbers) - 1 if last <= ALL else FEW)}
        for of_mean in taken_s.tolist() if last > ALL else ():
            # Smaller batches of this list have not all of the numbers from `first` on: these hide no others.
            for i in range(first, len(numbers) - 1):
                if of_mean[i - 1] <= of_mean[i] > min(of_mean[i + 1 :]) * (1.0 + TOP):
                    listed.add(i)
            slowest = kept = of_mean[first]
            for i in range(first - 1, FEW - 1, -1):
                if of_mean[i] > slowest:
                    slowest = of_mean[i]
                    if slowest > kept * (1.0 + (TOP if of_mean[i - 1] <= slowest else STEP)):
                        kept = slowest
                        listed.add(i)
        longer = (taken_s / taken_s[:, first:].min(axis=1)[:, None]).max(axis=0)
        powers = np.maximum(np.log2(taken_s[2] / taken_s[1]), 1e-3)
        shares = (longer ** (-1.0 / powers)).tolist()
        return [(numbers[i], shares[i]) for i in sorted(listed) if longer[i] > 1.0 + LEAST]


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
        return self._whole.over_longest(sums, sums.of_longest(most)[-1], most)

    def each(self, sums: GrowingSums) -> Floats:
        ordered, own, most = sums.first.ordered, sums.own, self._most
        if ordered[-1] + own + int(sums.later[-1]) <= most:
            return self._whole.each(sums)
        if ordered[0] + own >= most:
            return np.full(len(sums.later), self._whole.equal(sums.batch, most / self.shards))
        capped = np.minimum(sums.contexts[::-1] + own, most).cumsum(axis=0)
        return self._whole.along_longest(sums.batch, most, lambda number: capped[number - 1])
