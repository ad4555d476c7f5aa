"""Means and percentiles of values that come in pieces and exceed memory: bit for bit NumPy's results for one array.

A sum is NumPy's pairwise sum: above 128 values the sum of its halves, the first half a multiple of eight, and so on
(Higham 1993, SIAM J. Sci. Comput. 14). The number of values determines every half.

A percentile is found digit by digit. Doubles read as whole numbers keep their order. Values are counted by their first
sixteen bits, then those with the right beginning by the next sixteen, and so on (radix selection): four passes, and a
table of 65,536 counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from ..traffic.kind import Floats, Ints

#: Most values that NumPy adds at once here.
ONCE = 2**16
#: Bits of a digit, and of a double.
DIGIT, BITS = 16, 64
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class ValueStream:
    """Values that can be read repeatedly."""

    #: Reads them from the beginning, in pieces.
    read: Callable[[], Iterator[Floats]]

    def count(self) -> int:
        """Number of values."""
        return sum(map(len, self.read()))

    def total(self, count: int) -> float:
        """Sum of the ``count`` values."""
        return total(self.read(), count)

    def mean(self) -> float:
        """The mean; there must be a value."""
        count = self.count()
        return self.total(count) / count

    def percentiles(self, percents: Sequence[float]) -> list[float]:
        """Percentiles, linearly interpolated; there must be a value."""
        count = self.count()
        places = [(count - 1) * (percent / 100.0) for percent in percents]
        lows = [floor(place) for place in places]
        ranks = sorted({rank for low in lows for rank in (low, min(low + 1, count - 1))})
        by_rank = dict(zip(ranks, reached(self._counted, [rank + 1 for rank in ranks]), strict=True))
        return [
            between(by_rank[low], by_rank[min(low + 1, count - 1)], place - low)
            for low, place in zip(lows, places, strict=True)
        ]

    def _counted(self) -> Iterator[tuple[Floats, None]]:
        return ((values, None) for values in self.read())


def between(low: float, high: float, share: float) -> float:
    """NumPy's interpolation: from the nearer end."""
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


def reached(read: Callable[[], Iterator[tuple[Floats, Ints | None]]], ranks: Sequence[float]) -> list[float]:
    """The least values at which cumulative weights reach given sums.

    Parameters
    ----------
    read
        Values and their weights (None: one each).
    ranks
        Sums of weights, above zero.
    """
    #: For each: its leading digits so far, and the weight of all smaller values.
    prefixes = [(0, 0)] * len(ranks)
    for shift in range(BITS - DIGIT, -1, -DIGIT):
        counts = {first: np.zeros(2**DIGIT, dtype=np.int64) for first, _ in prefixes}
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
        longer = []
        for (first, less), wanted in zip(prefixes, ranks, strict=True):
            digit = int(np.searchsorted(sums[first], wanted - less))
            longer.append((first << DIGIT | digit, less + (int(sums[first][digit - 1]) if digit else 0)))
        prefixes = longer
    return [value_of(key) for key, _ in prefixes]


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
