"""Means and percentiles of values that come in pieces and are too many for memory: to the bit what NumPy says of all of
them in one array.

A sum is NumPy's: of more than 128 values the halves' sums, the first half a multiple of eight, and so on (pairwise
summation; Higham 1993, SIAM J. Sci. Comput. 14). Every half is known from how many values there are.

A percentile is found by its digits. Doubles taken as whole numbers have the order of their values; the values are
counted by their first sixteen bits, then those that begin with the ones sought by the next sixteen, and so on (radix
selection): four readings, and a table of 65,536 counts, whatever the values are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from ..traffic.kind import Floats, Ints

#: Values up to which NumPy adds up at once what is one array.
ONCE = 2**16
#: Bits of a digit, and what a double has of them.
DIGIT, BITS = 16, 64
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class ValueStream:
    """Values that can be read again and again."""

    #: Reads them from their beginning, in pieces.
    read: Callable[[], Iterator[Floats]]

    def count(self) -> int:
        """How many there are."""
        return sum(map(len, self.read()))

    def total(self, count: int) -> float:
        """Sum of the ``count`` values."""
        return total(self.read(), count)

    def mean(self) -> float:
        """There is one."""
        count = self.count()
        return self.total(count) / count

    def percentiles(self, asked: Sequence[float]) -> list[float]:
        """Interpolated straight between two values; there is one."""
        count = self.count()
        places = [(count - 1) * (each / 100.0) for each in asked]
        lows = [floor(place) for place in places]
        ranks = sorted({rank for low in lows for rank in (low, min(low + 1, count - 1))})
        found = dict(zip(ranks, reached(self._counted, [rank + 1 for rank in ranks]), strict=True))
        return [
            between(found[low], found[min(low + 1, count - 1)], place - low)
            for low, place in zip(lows, places, strict=True)
        ]

    def _counted(self) -> Iterator[tuple[Floats, None]]:
        return ((values, None) for values in self.read())


def between(low: float, high: float, share: float) -> float:
    """As NumPy does: from the nearer end."""
    return high - (high - low) * (1.0 - share) if share >= 0.5 else low + (high - low) * share


def total(pieces: Iterator[Floats], count: int) -> float:
    """Sum of ``count`` values."""
    left = np.empty(0)

    def take(wanted: int) -> Floats:
        nonlocal left
        parts, have = [left], len(left)
        while have < wanted:
            parts.append(next(pieces))
            have += len(parts[-1])
        joined = np.concatenate(parts) if len(parts) > 1 else left
        left = joined[wanted:]
        return joined[:wanted]

    def added(wanted: int) -> float:
        if wanted <= ONCE:
            return float(np.add.reduce(take(wanted)))
        half = wanted // 2
        half -= half % 8
        return added(half) + added(wanted - half)

    return added(count)


def reached(read: Callable[[], Iterator[tuple[Floats, Ints | None]]], asked: Sequence[float]) -> list[float]:
    """The least values that weights of so much, all together, do not exceed.

    Parameters
    ----------
    read
        Values, and how often each is there (None: once).
    asked
        Sums of weights, more than none.
    """
    #: Of each: the digits that are known, and the weight of all that is less.
    known = [(0, 0)] * len(asked)
    for shift in range(BITS - DIGIT, -1, -DIGIT):
        counts = {first: np.zeros(2**DIGIT, dtype=np.int64) for first, _ in known}
        for values, weights in read():
            keys = keys_of(values)
            digits = ((keys >> np.uint64(shift)) & np.uint64(2**DIGIT - 1)).astype(np.int64)
            for first, table in counts.items():
                own = weights
                mine = digits
                if shift < BITS - DIGIT:
                    chosen = keys >> np.uint64(shift + DIGIT) == np.uint64(first)
                    mine, own = digits[chosen], None if weights is None else weights[chosen]
                if len(mine):
                    table += np.bincount(mine, own, minlength=2**DIGIT).astype(np.int64)
        sums = {first: np.cumsum(table) for first, table in counts.items()}
        found = []
        for (first, less), wanted in zip(known, asked, strict=True):
            digit = int(np.searchsorted(sums[first], wanted - less))
            found.append((first << DIGIT | digit, less + (int(sums[first][digit - 1]) if digit else 0)))
        known = found
    return [value_of(key) for key, _ in known]


def keys_of(values: Floats) -> Keys:
    """Whole numbers in the order of the values."""
    bits = values.view(np.uint64)
    top = np.uint64(1 << (BITS - 1))
    keys: Keys = np.where(bits & top, ~bits, bits | top)
    return keys


def value_of(key: int) -> float:
    """The value of a number of :func:`keys_of`."""
    top = 1 << (BITS - 1)
    bits = key ^ top if key & top else key ^ (2**BITS - 1)
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])
