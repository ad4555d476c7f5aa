"""Edges of a bipartite multigraph in colours that every vertex sees equally often: what a planner of paths gives.

Vertices are leaf switches that send and leaf switches that receive, edges are flows, colours are the ways between.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def is_even(source: Integers, target: Integers, colour: Integers, colours: int) -> bool:
    """Whether of any vertex's d edges no colour has more than ``ceil(d / colours)``."""
    for end in (source, target):
        if end.size:
            degree = np.bincount(end)
            most = np.zeros(len(degree), dtype=np.int64)
            pairs, count = np.unique(end * colours + colour, return_counts=True)
            np.maximum.at(most, pairs // colours, count)
            if (most > -(-degree // colours)).any():
                return False
    return True


def evenly(source: Integers, target: Integers, wish: Integers, colours: int) -> Integers:
    """A colour for every edge, so that of any vertex's d edges none has more than ``ceil(d / colours)``.

    Parameters
    ----------
    source, target
        Vertices of every edge, on either side.
    wish
        The colour that each has where nothing is gained by another.
    colours
        How many there are.

    Notes
    -----
    A vertex of d edges is split into ``ceil(d / colours)`` of at most as many edges as there are colours; a bipartite
    multigraph of that degree has a proper colouring (König 1916), found edge by edge, exchanging two colours along the
    path that begins where both ends have none in common. That such a colouring is even is de Werra's (1971).

    Examples
    --------
    Four flows from one leaf to another, all of which wish the first way of four:

    >>> ends = np.zeros(4, dtype=np.int64)
    >>> evenly(ends, ends, ends, 4).tolist()
    [0, 1, 2, 3]
    """
    if is_even(source, target, wish, colours):
        return wish
    ends = list(zip(_split(source, colours), _split(target, colours), strict=True))
    # The edge of every colour at a vertex; sides have names of their own.
    at: dict[tuple[int, int, int], dict[int, int]] = {}
    vertices = [-1] * len(ends)

    def free(vertex: tuple[int, int, int]) -> int:
        taken = at[vertex]
        return next(colour for colour in range(colours) if colour not in taken)

    for edge, (left, right) in enumerate(ends):
        begin, end = (0, *left), (1, *right)
        here, there = at.setdefault(begin, {}), at.setdefault(end, {})
        wanted = int(wish[edge])
        if wanted in here or wanted in there:
            wanted = free(begin)
            if wanted in there:
                _exchange(at, ends, vertices, end, wanted, free(end))
        vertices[edge] = wanted
        here[wanted] = there[wanted] = edge
    return np.array(vertices, dtype=np.int64)


def _split(vertex: Integers, colours: int) -> list[tuple[int, int]]:
    """Each edge's vertex, and which of the vertices that it is split into."""
    seen: Counter[int] = Counter()
    pieces = []
    for neighbour in vertex.tolist():
        pieces.append((neighbour, seen[neighbour] // colours))
        seen[neighbour] += 1
    return pieces


def _exchange(
    at: dict[tuple[int, int, int], dict[int, int]],
    ends: list[tuple[tuple[int, int], tuple[int, int]]],
    vertices: list[int],
    begin: tuple[int, int, int],
    colour: int,
    other: int,
) -> None:
    """Swap two colours along the path from ``begin``, which has ``colour`` and lacks ``other``."""
    path, vertex, now = [], begin, colour
    while (edge := at[vertex].get(now)) is not None:
        path.append(edge)
        side = 1 - vertex[0]
        vertex, now = (side, *ends[edge][side]), colour + other - now
    for edge in path:
        for side in (0, 1):
            del at[side, *ends[edge][side]][vertices[edge]]
        vertices[edge] = colour + other - vertices[edge]
    for edge in path:
        for side in (0, 1):
            at[side, *ends[edge][side]][vertices[edge]] = edge
