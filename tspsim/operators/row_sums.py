"""Sums over the rows of a serving step's pass, each found once for all kernels that read them.

With (q, c) the query tokens of a sequence and its cached tokens before them, kernels of sparse attention depend on
Σ q, Σ c, Σ q², Σ q·c, the longest c + q, and for a bound m of attended tokens on what the first g = min(q, m − c)
queries see, those that still see less than m tokens:

    below(m) = Σ g·c + g·(g + 1) / 2,    Σ g        over sequences with c < m
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from operator import add, mul
from typing import NamedTuple

from numpy import arange, array, float64, int64, minimum
from numpy.typing import NDArray

from ..base.memo import once
from .batch import Rows

#: Sums over the longest contexts that are found one by one.
FEW = 8


class Attended(NamedTuple):
    """Tokens that queries attend under a bound: of prompts, and of decoding sequences; and tokens that queries see
    which see less than the bound."""

    read: float
    decoded: float
    below: float


class RowSums:
    """Sums over prompts with ``queries`` and ``before`` tokens, and sequences of ``own`` queries after ``contexts``.

    >>> sums = RowSums((3,), (2,), 1, (9, 1))
    >>> sums.tokens, sums.total, sums.products, sums.squares, sums.longest
    (5, 12, 16, 11, 10)
    >>> sums.of_longest(), sums.of_longest(most=4)
    ([9, 10], [3, 4])
    >>> sums.attended(4), sums.reached(4)
    (Attended(read=11.0, decoded=6.0, below=9.0), (5, 7))
    """

    _listed: Callable[[], tuple[int, ...]]

    def __init__(
        self, queries: tuple[int, ...], before: tuple[int, ...], own: int = 1, contexts: tuple[int, ...] = ()
    ) -> None:
        self.queries, self.before, self.own, self.contexts = queries, before, own, contexts
        self.batch, self.decoded = len(contexts), sum(contexts)
        self._padding: tuple[int, ...] = ()

    @classmethod
    def counted(
        cls,
        own: int,
        batch: int,
        decoded: int,
        shortest: int,
        contexts: Callable[[], tuple[int, ...]],
        padding: tuple[int, ...] = (),
    ) -> RowSums:
        """The same of decoding sequences alone, from their number, the sum of their contexts and the shortest;
        ``contexts`` lists them, ``padding`` are those of sequences that pad them, none longer than all of those."""
        sums = cls.__new__(cls)
        sums.queries, sums.before, sums.own, sums._padding, sums._listed = (), (), own, padding, contexts
        sums.shortest = sums.unpadded = shortest
        if padding:
            batch += len(padding)
            decoded += sum(padding)
            sums.shortest = min(padding[0], shortest)
        sums.batch, sums.decoded = batch, decoded
        return sums

    @classmethod
    def by_length(cls, own: int, contexts: tuple[int, ...], ordered: list[int], decoded: int) -> RowSums:
        """The same of decoding sequences alone, listed: also the shortest first, and with the sum of their contexts."""
        sums = cls.__new__(cls)
        sums.queries, sums.before, sums.own, sums._padding = (), (), own, ()
        sums.contexts, sums.ordered, sums.batch, sums.decoded = contexts, ordered, len(ordered), decoded
        sums.shortest, sums.tallest = ordered[0], ordered[-1]
        return sums

    @once
    def contexts(self) -> tuple[int, ...]:
        """Tokens in the cache of every decoding sequence."""
        return *self._padding, *self._listed()

    @once
    def shortest(self) -> int:
        """The shortest context of a decoding sequence."""
        return self.ordered[0]

    @once
    def unpadded(self) -> int:
        """The shortest one of a sequence that is no padding."""
        return self.shortest

    @property
    def real(self) -> int:
        """Decoding sequences that are no padding."""
        return self.batch - len(self._padding)

    def of_real(self, number: int) -> int:
        """Tokens in the caches of so many of the longest contexts, all those that are no padding among them.

        >>> padded = RowSums.counted(1, 2, 12, 5, lambda: (7, 5), padding=(1, 1))
        >>> padded.real, padded.of_real(2), padded.of_real(3), padded.of_longest()
        (2, 12, 13, [7, 12, 13, 14])
        """
        return self.decoded - sum(self._padding[: self.batch - number])

    @once
    def tallest(self) -> int:
        """The longest one."""
        return max(self.contexts)

    @once
    def read(self) -> int:
        """Query tokens of prompts."""
        return sum(self.queries)

    @once
    def cached(self) -> int:
        """Tokens in the cache before prompts."""
        return sum(self.before)

    @once
    def tokens(self) -> int:
        """Query tokens."""
        return self.read + self.own * self.batch

    @once
    def total(self) -> int:
        """Cached tokens."""
        return self.cached + self.decoded

    @once
    def products(self) -> int:
        """Products of both."""
        products: int = sum(map(mul, self.queries, self.before)) + self.own * self.decoded
        return products

    @once
    def squares(self) -> int:
        """Squares of query tokens."""
        own = self.own
        squares: int = sum(map(mul, self.queries, self.queries)) + own * own * self.batch
        return squares

    @once
    def seen(self) -> float:
        """Tokens that all queries see, themselves included."""
        return self.products + (self.squares + self.tokens) / 2.0

    @once
    def _attended(self) -> dict[int, Attended]:
        return {}

    @once
    def _reached(self) -> dict[int, tuple[int, int]]:
        return {}

    @once
    def _of_longest(self) -> dict[int, list[int]]:
        return {}

    @once
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        longest = max(map(add, self.queries, self.before), default=0)
        return max(longest, self.tallest + self.own) if self.batch else longest

    @once
    def ordered(self) -> list[int]:
        """Contexts of decoding sequences, shortest first."""
        return sorted(self.contexts)

    def of_longest(self, most: int = 0) -> list[int]:
        """Tokens in the cache of the longest context of a decoding sequence, of the two longest, and so on; of each at
        most ``most`` with its queries, 0: all."""
        cached = self._of_longest.get(most)
        if cached is None:
            ordered = self.ordered
            if most and self.tallest + self.own > most:
                below = bisect_left(ordered, most - self.own)
                ordered = ordered[:below] + [most - self.own] * (self.batch - below)
            cached = self._of_longest[most] = list(accumulate(reversed(ordered)))
        return cached

    def of_the_longest(self, numbers: list[int], most: int = 0) -> list[int]:
        """:meth:`of_longest` of some numbers.

        >>> RowSums((), (), 1, (9, 1, 5)).of_the_longest([1, 3])
        [9, 15]
        """
        if most or len(numbers) > FEW:
            every = self.of_longest(most)
            return [every[number - 1] for number in numbers]
        ordered, batch, whole = self.ordered, self.batch, self.decoded
        return [
            sum(ordered[batch - number :]) if 2 * number < batch else whole - sum(ordered[: batch - number])
            for number in numbers
        ]

    def attended(self, most: int) -> Attended:
        """Tokens that queries attend, each at most ``most``."""
        attended = self._attended.get(most)
        if attended is None:
            twice = growing = 0
            for q, c in zip(self.queries, self.before, strict=True):
                some = most - c
                if some > 0:
                    if q < some:
                        some = q
                    twice += some * (2 * c + some + 1)
                    growing += some
            seen = twice / 2.0
            read = seen + most * (self.read - growing)
            decoded_seen, queries = self._decodes_below(most)
            decoded = decoded_seen + most * (self.own * self.batch - queries)
            attended = self._attended[most] = Attended(read, decoded, seen + decoded_seen)
        return attended

    def _decodes_below(self, most: int) -> tuple[float, int]:
        """What queries of decoding sequences see that see less than ``most`` tokens, and their number."""
        own, ordered = self.own, self.ordered
        whole = bisect_right(ordered, most - own)
        seen = own * (2 * sum(ordered[:whole]) + whole * (own + 1))
        queries = own * whole
        for context in ordered[whole : bisect_left(ordered, most)] if own > 1 else ():
            some = most - context
            seen += some * (2 * context + some + 1)
            queries += some
        return seen / 2.0, queries

    def reached(self, most: int) -> tuple[int, int]:
        """Tokens of prompts, and of decoding sequences, of which each has at most ``most`` cached ones."""
        reached = self._reached.get(most)
        if reached is None:
            below = bisect_left(self.ordered, most)
            cached = sum([c if c < most else most for c in self.before])
            decoded = sum(self.ordered[:below]) + most * (self.batch - below)
            reached = self._reached[most] = self.read + cached, self.own * self.batch + decoded
        return reached

    @property
    def rows(self) -> Rows:
        """The rows one by one; equal contexts are one."""
        prompts = [(q, c, 1) for q, c in zip(self.queries, self.before, strict=True)]
        return *prompts, *[(self.own, context, count) for context, count in Counter(self.contexts).items()]


class GrowingSums:
    """:class:`RowSums` of the steps of a run, in which each context grows by a token a step: arrays (steps,).

    Parameters
    ----------
    first
        Those of the first step.
    growing
        Number of sequences whose contexts grow; those of others, which pad them, are none longer.
    steps
        Number of steps.
    """

    queries: tuple[int, ...] = ()
    read = cached = 0

    def __init__(self, first: RowSums, growing: int, steps: int) -> None:
        self.first, self.growing, self.steps = first, growing, steps
        self.own, self.batch = first.own, first.batch

    @once
    def later(self) -> NDArray[int64]:
        """Steps before each."""
        return arange(self.steps)

    @property
    def tokens(self) -> int:
        """Query tokens of a step."""
        return self.first.tokens

    @once
    def contexts(self) -> NDArray[int64]:
        """Contexts in every step, shortest first: shape (sequences, steps)."""
        grows = arange(self.batch) >= self.batch - self.growing
        lengths: NDArray[int64] = array(self.first.ordered)[:, None] + self.later * grows[:, None]
        return lengths

    @once
    def decoded(self) -> NDArray[int64]:
        decoded: NDArray[int64] = self.first.decoded + self.growing * self.later
        return decoded

    @property
    def total(self) -> NDArray[int64]:
        return self.decoded

    @property
    def seen(self) -> NDArray[float64]:
        seen: NDArray[float64] = self.own * self.decoded.astype(float64)
        return seen + (self.first.squares + self.tokens) / 2.0

    @property
    def longest(self) -> NDArray[int64]:
        longest: NDArray[int64] = self.later + (self.first.tallest + self.own)
        return longest

    def attended(self, most: int) -> tuple[float, NDArray[int64], NDArray[int64]]:
        below = ((self.contexts + 1) * (self.contexts < most)).sum(axis=0)
        return 0.0, minimum(self.contexts + 1, most).sum(axis=0), below

    def reached(self, most: int) -> tuple[int, NDArray[int64]]:
        return 0, self.batch + minimum(self.contexts, most).sum(axis=0)
