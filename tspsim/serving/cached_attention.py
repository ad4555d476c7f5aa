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
from collections.abc import Sequence
from math import frexp
from operator import attrgetter
from typing import NamedTuple

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
ALIKE, STEP, TOP = 16, 0.02, 0.004
#: By what share of the time of all sequences those of a list take longer at least.
LEAST = 0.004
#: Relative rounding of sums that are compared.
ROUNDING = 1e-9
#: Ends of the lines of an octave.
_GRID = np.linspace(1.0, 2.0, PARTS + 1)


class LongestContexts(NamedTuple):
    """Numbers of the longest contexts of a batch that may take longer than all of them.

    Attributes
    ----------
    listed
        The numbers, and the shares of all tokens from which they are looked at.
    evenest
        None is looked at where every context has at least so many times the mean: k longest of n have at most all
        tokens but n − k times those of the shortest.
    """

    listed: list[tuple[int, float]]
    evenest: float


class ContextTable(NamedTuple):
    """Seconds of a number of sequences at an octave of their mean context.

    Attributes
    ----------
    line, scale
        Over equal contexts, at the ends of lines, and how many of these lines a token has.
    numbers, longest
        Numbers of the longest contexts that are looked at; each with the share of all tokens from which, and its line.
    evenest
        As in :class:`LongestContexts`.
    """

    line: list[float]
    scale: float
    numbers: list[int]
    longest: list[tuple[int, float, list[float]]]
    evenest: float


class Straight(NamedTuple):
    """Seconds of a number of contexts along the steps of a run, on one line of their table.

    Attributes
    ----------
    number, tokens, growing
        Contexts, their tokens in the first step, and how many grow.
    start_s, slope_s, at, scale
        The line: its start, what it grows by, and where it begins in lines, of which one token has ``scale``.
    first_s, last_s
        Of the first step and of the last.
    """

    number: int
    tokens: int
    growing: int
    start_s: float
    slope_s: float
    at: int
    scale: float
    first_s: float
    last_s: float


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
        #: (Sequences, octave of their mean context) → numbers of the longest.
        self._numbers: dict[tuple[int, int], LongestContexts] = {}
        #: (Sequences, octave, sequences that are no padding) → share of all tokens: no fewer than these are looked at
        #: where each of them has at least so much.
        self._evenest: dict[tuple[int, int, int], float] = {}
        self._tables: dict[tuple[int, int], ContextTable] = {}

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
        octave = frexp(mean)[1]
        line, scale, numbers, longest, evenest = self._tables.get((batch, octave)) or self._table(batch, octave)
        place = mean * scale - PARTS
        index = int(place)
        start = line[index]
        seconds = start + (line[index + 1] - start) * (place - index)
        if not longest or (sums.shortest + own) * batch >= evenest * tokens:
            return seconds
        if not most and sums.real < batch and sums.unpadded + own >= self._evenest_of(sums, octave) * tokens:
            longest = [one for one in longest if one[0] >= sums.real]
            cached = [sums.of_real(number) for number, _, _ in longest]
        else:
            cached = sums.of_the_longest(numbers, most)
        for (number, share, line), of_longest in zip(longest, cached, strict=True):
            of_longest += own * number
            if of_longest > share * tokens:
                place = of_longest / number / shards * scale - PARTS
                index = int(place)
                if index < PARTS:
                    start = line[index]
                    longest_s = start + (line[index + 1] - start) * (place - index)
                else:
                    context = of_longest / number / shards
                    if frexp(context)[1] not in self._lines[number]:
                        means = [(of_n / n + own) / shards for (n, _, _), of_n in zip(longest, cached, strict=True)]
                        self._lines_of([(one[0], frexp(mean)[1]) for one, mean in zip(longest, means, strict=True)])
                    longest_s = self.equal(number, context)
                if longest_s > seconds:
                    seconds = longest_s
        return seconds

    def _evenest_of(self, sums: RowSums, octave: int) -> float:
        """The share of all tokens that each sequence but padding has at least where no part of these matters."""
        key = sums.batch, octave, sums.real
        evenest = self._evenest.get(key)
        if evenest is None:
            listed = [one for one in self._numbers_of(sums.batch, octave).listed if one[0] < sums.real]
            parts = [(1.0 - share) / (sums.real - number) for number, share in listed]
            evenest = self._evenest[key] = max(parts, default=0.0) * (1.0 + ROUNDING)
        return evenest

    def _looked_at(self, sums: RowSums, tokens: int, octave: int, growing: int) -> list[tuple[int, float, int]]:
        """Numbers of the longest contexts to look at in a run, the share from which, and the tokens in their caches.
        Where those of sequences that are no padding are so even that no part of them matters, and only these grow,
        nothing is sorted: contexts that grow alike become more even."""
        listed, real = self._numbers_of(sums.batch, octave).listed, sums.real
        if growing == real and sums.unpadded + sums.own >= self._evenest_of(sums, octave) * tokens:
            return [(number, share, sums.of_real(number)) for number, share in listed if number >= real]
        cached = sums.of_longest()
        return [(number, share, cached[number - 1]) for number, share in listed]

    def _table(self, batch: int, octave: int) -> ContextTable:
        """Makes those of all numbers of sequences that have one list: steps of such numbers come next."""
        together = alike(batch)
        numbers = {*together, *[number for number, _ in self._numbers_of(together[-1], octave).listed]}
        lines = self._lines_of([(number, octave) for number in sorted(numbers)])
        for batch_alike in together:
            listed, evenest = self._numbers_of(batch_alike, octave)
            longest = [(number, share, lines[number][octave]) for number, share in listed]
            own, looked_at = lines[batch_alike][octave], [number for number, _ in listed]
            self._tables[batch_alike, octave] = ContextTable(own, scale_of(octave), looked_at, longest, evenest)
        return self._tables[batch, octave]

    def each(self, sums: GrowingSums) -> Floats:
        """Seconds of the steps of a run: shape (steps,), bit for bit those of a call."""
        first, own, growing, last, shards = sums.first, sums.own, sums.growing, sums.steps - 1, self.shards
        batch = sums.batch
        tokens = first.decoded + own * batch
        to = tokens + growing * last
        mean = tokens / batch / shards
        octave = frexp(mean)[1]
        line, scale, _, longest, evenest = self._tables.get((batch, octave)) or self._table(batch, octave)
        end = to / batch / shards * scale - PARTS
        # Contexts that grow alike become more even.
        even = not longest or (growing == batch and (first.shortest + own) * batch >= evenest * tokens)
        if even and end < PARTS:
            places = (tokens + growing * sums.later) / batch
            if shards > 1:
                places /= shards
            places *= scale
            places -= PARTS
            index = int(mean * scale - PARTS)
            seconds: Floats
            if end < index + 1:
                seconds = line[index] + (line[index + 1] - line[index]) * (places - index)
            else:
                ends, at = np.array(line), places.astype(np.int64)
                seconds = ends.take(at)
                seconds = seconds + (ends.take(at + 1) - seconds) * (places - at)
            return seconds
        whole = self._straight(batch, tokens, growing, last)
        octaves = range(octave, frexp(to / batch / shards)[1] + 1)
        lines, straight = [whole], whole is not None
        looked_at: list[tuple[int, int, float, int, int]] = []
        for octave in octaves:
            for number, share, cached in self._looked_at(first, tokens, octave, growing):
                begins, grown = cached + own * number, min(number, growing)
                at_first, at_last = begins > share * tokens, begins + grown * last > share * to
                if at_first or at_last:
                    looked_at.append((octave, number, share, begins, grown))
                    if straight:
                        lines.append(self._straight(number, begins, grown, last))
                        straight = lines[-1] is not None and at_first and at_last
        if straight:
            return self._highest([line for line in lines if line is not None], sums)
        # Those that take no longer in the last step than all in the first never do.
        least = self.equal(batch, mean)
        looked_at = [one for one in looked_at if self.equal(one[1], (one[3] + one[4] * last) / one[1] / shards) > least]
        columns = np.array([(batch, tokens, growing), *[(one[1], *one[3:]) for one in looked_at]])
        numbers, begins, grown = columns.T[:, :, None]
        return self._slowest(numbers, begins + grown * sums.later, [one[:3] for one in looked_at])

    def _straight(self, number: int, tokens: int, growing: int, steps: int) -> Straight | None:
        """So many contexts with ``tokens``, in the first and in a later step; None where a line ends between them."""
        mean = tokens / number / self.shards
        octave = frexp(mean)[1]
        scale = scale_of(octave)
        place = mean * scale - PARTS
        index = int(place)
        beyond = (tokens + growing * steps) / number / self.shards * scale - (PARTS + index)
        if beyond >= 1.0:
            return None
        line = self._lines[number].get(octave) or self._line(number, octave)
        start = line[index]
        slope = line[index + 1] - start
        first_s, last_s = start + slope * (place - index), start + slope * beyond
        return Straight(number, tokens, growing, start, slope, PARTS + index, scale, first_s, last_s)

    def _highest(self, lines: list[Straight], sums: GrowingSums) -> Floats:
        """The longest seconds in every step: of the longest line in the first, and of those above it in the last."""
        slowest = max(lines, key=attrgetter("first_s"))
        seconds = self._of(slowest, sums)
        for line in lines:
            if line.last_s > slowest.last_s:
                seconds = np.maximum(seconds, self._of(line, sums))
        return seconds

    def _of(self, straight: Straight, sums: GrowingSums) -> Floats:
        """Its seconds in every step."""
        number, tokens, growing, start_s, slope_s, at, scale, _, _ = straight
        lengths = (tokens + growing * sums.later) / number
        if self.shards > 1:
            lengths /= self.shards
        seconds: Floats = start_s + slope_s * (lengths * scale - at)
        return seconds

    def along_longest(self, batch: int, tokens: Ints) -> Floats:
        """Seconds of steps by the tokens in the caches of any number of the longest: (numbers, steps)."""
        shares = tokens[batch - 1, [0, -1]] / batch / self.shards
        least = self.equal(batch, float(shares[0]))
        every = [
            (octave, number, share)
            for octave in range(frexp(shares[0])[1], frexp(shares[1])[1] + 1)
            for number, share in self._numbers_of(batch, octave).listed
            if self.equal(number, float(tokens[number - 1, -1]) / number / self.shards) > least
        ]
        numbers = np.array([batch, *[number for _, number, _ in every]])
        return self._slowest(numbers[:, None], tokens[numbers - 1], every)

    def _slowest(self, numbers: Ints, tokens: Ints, every: list[tuple[int, int, float]]) -> Floats:
        """Seconds of all together, the first row of ``tokens``, and of others where they are looked at: these are of an
        octave, a number, and a share."""
        seconds, octaves = self._along(numbers, tokens)
        slowest: Floats = seconds[0]
        if not every:
            return slowest
        shares, those = np.array([(share, octave) for octave, _, share in every]).T[:, :, None]
        looked_at = (tokens[1:] > shares * tokens[0]) & (octaves[0] == those)
        others: Floats = np.where(looked_at, seconds[1:], 0.0).max(axis=0)
        return np.maximum(slowest, others)

    def equal(self, number: int, context: float) -> float:
        """Seconds over equal contexts."""
        share, octave = frexp(context)
        place = (2.0 * share - 1.0) * PARTS
        index = int(place)
        line = self._lines[number].get(octave) or self._line(number, octave)
        start = line[index]
        return start + (line[index + 1] - start) * (place - index)

    def _along(self, numbers: Ints, tokens: Ints) -> tuple[Floats, NDArray[np.int32]]:
        """The same of numbers of contexts, (numbers, 1), with tokens that grow, (numbers, steps); and octaves of their
        means."""
        lengths = tokens / numbers
        if self.shards > 1:
            lengths /= self.shards
        shares, octaves = np.frexp(lengths)
        places = (2.0 * shares - 1.0) * PARTS
        index = places.astype(np.int64)
        low, high = int(octaves[:, 0].min()), int(octaves[:, -1].max())
        tables = [
            self._lines[number].get(octave) or self._line(number, octave)
            for number in numbers[:, 0].tolist()
            for octave in range(low, high + 1)
        ]
        lines = np.array(tables)
        at = (np.arange(0, len(tables), high + 1 - low)[:, None] + (octaves - low)) * (PARTS + 1) + index
        start, end = lines.take(at), lines.take(at + 1)
        return start + (end - start) * (places - index), octaves

    def _line(self, number: int, octave: int) -> list[float]:
        return self._lines_of([(one, octave) for one in alike(number)])[number][octave]

    def _lines_of(self, pairs: Sequence[tuple[int, int]]) -> dict[int, dict[int, list[float]]]:
        """All lines, those of these numbers of sequences and octaves among them."""
        new = [(number, octave) for number, octave in pairs if octave not in self._lines[number]]
        if new:
            numbers, octaves = np.array(new).T[:, :, None]
            contexts = 2.0 ** (octaves - 1) * _GRID
            counts = np.broadcast_to(numbers.astype(float), contexts.shape)
            taken_s = self._over(counts.ravel(), contexts.ravel()).reshape(contexts.shape)
            for (number, octave), line in zip(new, taken_s.tolist(), strict=True):
                self._lines[number][octave] = line
        return self._lines

    def _numbers_of(self, batch: int, octave: int) -> LongestContexts:
        """Numbers of the longest contexts of a batch by the octave of its mean context."""
        numbers = self._numbers.get((batch, octave))
        if numbers is None:
            if batch % ALIKE:
                every, _ = self._numbers_of(batch + -batch % ALIKE, octave)
                every = [(number, share) for number, share in every if number < batch]
            else:
                every = self._slower(batch, octave)
            evenest = max([(1.0 - share) * batch / (batch - number) for number, share in every], default=0.0)
            numbers = self._numbers[batch, octave] = LongestContexts(every, evenest * (1.0 + ROUNDING))
        return numbers

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
        own, most = sums.own, self._most
        if sums.tallest + own <= most:
            return self._whole(sums)
        if sums.shortest + own >= most:
            return self._whole.equal(sums.batch, most / self.shards)
        return self._whole.over_longest(sums, sums.of_longest(most)[-1], most)

    def each(self, sums: GrowingSums) -> Floats:
        first, own, most = sums.first, sums.own, self._most
        if first.tallest + own + sums.steps - 1 <= most:
            return self._whole.each(sums)
        if first.unpadded + own >= most:
            return np.full(sums.steps, self(first))
        capped = np.minimum(sums.contexts[::-1] + own, most).cumsum(axis=0)
        return self._whole.along_longest(sums.batch, capped)


def alike(number: int) -> range:
    """Numbers of sequences that have one list of longest contexts.

    >>> alike(16), alike(17)
    (range(1, 17), range(17, 33))
    """
    last = number + -number % ALIKE
    return range(last - ALIKE + 1, last + 1)


def scale_of(octave: int) -> float:
    """Lines of a table that a token of a context has: a power of two, so that products with it are exact."""
    return 2.0 * PARTS / 2.0**octave
