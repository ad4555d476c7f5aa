"""Requests of a batch as rows of an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..oracle import Row


def rows_of(requests: Iterable[tuple[int, int]]) -> list[Row]:
    """(query tokens, tokens in the cache before, count) from requests of (query tokens, tokens before).

    >>> rows_of([(1, 900), (512, 0), (1, 900)])
    [(1, 900, 2), (512, 0, 1)]
    """
    return [(queries, before, count) for (queries, before), count in sorted(Counter(requests).items())]


def spread(total: int, count: int) -> list[tuple[int, int]]:
    """``count`` whole numbers of the sum ``total``, as equal as possible: each with its count.

    >>> spread(10, 4), spread(8, 4)
    ([(2, 2), (3, 2)], [(2, 4)])
    """
    share, more = divmod(total, count)
    return [(value, often) for value, often in ((share, count - more), (share + 1, more)) if often]
