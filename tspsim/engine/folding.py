"""Which ranks need to be run: classes derived from programs, costs and surroundings.

Two ranks may stand for each other when no sequence of observations tells them apart: same program at the same
costs, groups of the same composition, transfers that take the same shares of links of the same kind that are
shared with the same others. That is the coarsest equitable partition of the graph of ranks, channels and links,
found by colour refinement (Weisfeiler and Leman 1968; McKay and Piperno 2014, §2). A max-min fair allocation is
unique, so it is constant on such classes (the argument of Grohe et al. 2014 for linear programs): running one
rank a class, with multiplicities on links, gives every rank's times. A slow link or an unequal share of work
splits the classes by itself; nothing is declared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray


def refined(
    colours: Sequence[Hashable], degree: NDArray[np.int64], kind: NDArray[np.int64], other: NDArray[np.int64]
) -> list[int]:
    """The same of edges in columns.

    Parameters
    ----------
    degree
        Edges of every vertex.
    kind, other
        Number of the label, and neighbour, of every edge: those of the first vertex, then those of the next.
    """
    classes = np.array(number(colours), dtype=np.int64)
    begin = np.cumsum(degree) - degree
    # Vertices of one degree see rows of one length, which numpy sorts and compares as a block.
    alike = [(vertices, begin[vertices, None] + np.arange(size)) for size, vertices in _by_value(degree)]
    count = int(classes.max(initial=-1)) + 1
    place_of = np.concatenate([vertices for vertices, _ in alike]) if alike else classes
    while True:
        seen = kind * count + classes[other]
        rows: list[bytes] = []
        for vertices, place in alike:
            rows += row_bytes(np.concatenate([classes[vertices, None], np.sort(seen[place], axis=1)], axis=1))
        views = np.empty(len(classes), dtype=object)
        views[place_of] = rows
        classes = np.array(number(views.tolist()), dtype=np.int64)
        refined = int(classes.max(initial=-1)) + 1
        if refined == count:
            return [int(kind) for kind in classes]
        count = refined


def row_bytes(rows: NDArray[np.int64]) -> list[bytes]:
    """Every row as bytes: equal for equal rows."""
    whole = np.ascontiguousarray(rows)
    voids: Any = whole.view(np.dtype((np.void, whole.shape[1] * whole.itemsize))).reshape(-1).tolist()
    return cast("list[bytes]", voids)


def _by_value(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every value, and where it stands."""
    for value in np.unique(values).tolist():
        yield value, np.flatnonzero(values == value)


def number(keys: Sequence[Hashable]) -> list[int]:
    """Equal keys to equal numbers, in order of first appearance."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]
