"""Even edge colourings of bipartite multigraphs, for planned paths.

Vertices are sending and receiving leaf switches, edges are flows, and colours are the paths between them. A colouring
is even if every vertex has each colour about equally often.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def is_even(source: Integers, target: Integers, colour: Integers, colours: int) -> bool:
    """Whether at most ``ceil(d / colours)`` of every vertex's d edges have the same colour."""
    for end in (source, target):
        if end.size:
            degree = np.bincount(end)
            most = np.zeros(len(degree), dtype=np.int64)
            pairs, count = np.unique(end * colours + colour, return_counts=True)
            np.maximum.at(most, pairs // colours, count)
            if (most > -(-degree // colours)).any():
                return False
    return True


def even_colouring(source: Integers, target: Integers, preferred: Integers, colours: int) -> Integers:
    """A colour for every edge, so that at most ``ceil(d / colours)`` of a vertex's d edges have the same colour.

    Parameters
    ----------
    source, target
        Vertices of every edge, on either side.
    preferred
        Preferred colour of every edge, kept if all of them together are even.
    colours
        Number of colours.

    Notes
    -----
    A vertex of d edges is split into ``ceil(d / colours)`` vertices of at most ``colours`` edges. A bipartite
    multigraph of that degree has a proper edge colouring (König 1916). It is found edge by edge; where both ends have
    no free colour in common, two colours are exchanged along an alternating path. Such a colouring is even (de Werra
    1971).

    Examples
    --------
    Four flows between the same leaves, which all prefer the first of four paths:

    >>> ends = np.zeros(4, dtype=np.int64)
    >>> even_colouring(ends, ends, ends, 4).tolist()
    [0, 1, 2, 3]
    """
    if is_even(source, target, preferred, colours):
        return preferred
    ends = list(zip(_split(source, colours), _split(target, colours), strict=True))
    # Vertex (side, original vertex, part) → colour → edge.
    at: dict[tuple[int, int, int], dict[int, int]] = {}
    colour_of = [-1] * len(ends)

    def free(vertex: tuple[int, int, int]) -> int:
        taken = at[vertex]
        return next(colour for colour in range(colours) if colour not in taken)

    for edge, (left, right) in enumerate(ends):
        begin, end = (0, *left), (1, *right)
        here, there = at.setdefault(begin, {}), at.setdefault(end, {})
        wanted = int(preferred[edge])
        if wanted in here or wanted in there:
            wanted = free(begin)
            if wanted in there:
                _exchange(at, ends, colour_of, end, wanted, free(end))
        colour_of[edge] = wanted
        here[wanted] = there[wanted] = edge
    return np.array(colour_of, dtype=np.int64)


def _split(vertex: Integers, colours: int) -> list[tuple[int, int]]:
    """(vertex, part of the split vertex) of every edge."""
    seen: Counter[int] = Counter()
    parts = []
    for original in vertex.tolist():
        parts.append((original, seen[original] // colours))
        seen[original] += 1
    return parts


def _exchange(
    at: dict[tuple[int, int, int], dict[int, int]],
    ends: list[tuple[tuple[int, int], tuple[int, int]]],
    colour_of: list[int],
    begin: tuple[int, int, int],
    colour: int,
    other: int,
) -> None:
    """Exchange two colours along the path from ``begin``, at which ``colour`` is used and ``other`` is free."""
    path, vertex, now = [], begin, colour
    while (edge := at[vertex].get(now)) is not None:
        path.append(edge)
        side = 1 - vertex[0]
        vertex, now = (side, *ends[edge][side]), colour + other - now
    for edge in path:
        for side in (0, 1):
            del at[side, *ends[edge][side]][colour_of[edge]]
        colour_of[edge] = colour + other - colour_of[edge]
    for edge in path:
        for side in (0, 1):
            at[side, *ends[edge][side]][colour_of[edge]] = edge
