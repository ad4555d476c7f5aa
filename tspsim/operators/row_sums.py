"""Sums over the rows of a serving step's pass, each found once for all kernels that read them.

With (q, c) the query tokens of a sequence and its cached tokens before them, kernels of sparse attention depend on
Σ q, Σ c, Σ q², Σ q·c, the longest c + q, and for a bound m of attended tokens on what the first g = min(q, m − c)
queries see, those that still see less than m tokens:

    below(m) = Σ g·c + g·(g + 1) / 2,    Σ g        over sequences with c < m
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from operator import add, mul
from typing import NamedTuple

from ..base.memo import once
from .batch import Rows


class Below(NamedTuple):
    """Tokens that queries with less than a bound of them see, and the number of these queries."""

    seen: float
    queries: int


class RowSums:
    """Sums over prompts with ``queries`` and ``before`` tokens, and sequences of ``own`` queries after ``contexts``.

    >>> sums = RowSums((3,), (2,), 1, (9, 1))
    >>> sums.tokens, sums.total, sums.products, sums.squares, sums.longest
    (5, 12, 16, 11, 10)
    >>> sums.prompts_below(4), sums.decodes_below(4)
    (Below(seen=7.0, queries=2), Below(seen=2.0, queries=1))
    """

    def __init__(
        self, queries: tuple[int, ...], before: tuple[int, ...], own: int = 1, contexts: tuple[int, ...] = ()
    ) -> None:
        self.queries, self.before, self.own, self.contexts = queries, before, own, contexts
        self.batch = batch = len(contexts)
        self.read, self.cached, self.decoded = sum(queries), sum(before), sum(contexts)
        #: Query tokens; cached tokens; products and squares of both.
        self.tokens = self.read + own * batch
        self.total = self.cached + self.decoded
        self.products = sum(map(mul, queries, before)) + own * self.decoded
        self.squares = sum(map(mul, queries, queries)) + own * own * batch
        self._below: dict[int, tuple[Below, Below]] = {}

    @once
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        longest = max(map(add, self.queries, self.before), default=0)
        return max(longest, self.ordered[-1] + self.own) if self.contexts else longest

    @once
    def ordered(self) -> list[int]:
        """Contexts of decoding sequences, shortest first."""
        return sorted(self.contexts)

    @property
    def seen(self) -> float:
        """Tokens that all queries see, themselves included."""
        return float(self.products + (self.squares + self.tokens) / 2.0)

    def prompts_below(self, most: int) -> Below:
        """Of prompts: queries that see less than ``most`` tokens, or exactly as many."""
        return self._both(most)[0]

    def decodes_below(self, most: int) -> Below:
        """The same of decoding sequences."""
        return self._both(most)[1]

    def _both(self, most: int) -> tuple[Below, Below]:
        both = self._below.get(most)
        if both is None:
            growing = [
                (q if q < most - c else most - c, c) for q, c in zip(self.queries, self.before, strict=True) if c < most
            ]
            seen = sum([some * (2 * c + some + 1) for some, c in growing]) / 2.0
            both = self._below[most] = Below(seen, sum([some for some, _ in growing])), self._decodes_below(most)
        return both

    def _decodes_below(self, most: int) -> Below:
        own, ordered = self.own, self.ordered
        whole = bisect_right(ordered, most - own)
        seen = own * (2 * sum(ordered[:whole]) + whole * (own + 1))
        queries = own * whole
        for context in ordered[whole : bisect_left(ordered, most)]:
            some = most - context
            seen += some * (2 * context + some + 1)
            queries += some
        return Below(seen / 2.0, queries)

    def prompts_at_most(self, most: int) -> int:
        """Cached tokens of prompts, of each at most ``most``."""
        return sum([c if c < most else most for c in self.before])

    def decodes_at_most(self, most: int) -> int:
        """The same of decoding sequences."""
        below = bisect_left(self.ordered, most)
        return sum(self.ordered[:below]) + most * (self.batch - below)

    @property
    def rows(self) -> Rows:
        """The rows one by one; equal contexts are one."""
        prompts = [(q, c, 1) for q, c in zip(self.queries, self.before, strict=True)]
        return *prompts, *[(self.own, context, count) for context, count in Counter(self.contexts).items()]
