"""Double binary trees: latency grows with the logarithm of the nodes, at full bandwidth.

Each of two trees carries half of the bytes; an inner vertex of one is a leaf of the other (Sanders, Speck, Träff:
Two-tree algorithms for full bandwidth broadcast, reduction and scan, Parallel Computing 35, 2009).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..kinds import ALL_REDUCE, BROADCAST, CollectiveKind
from .algorithm import ALGORITHMS, CollectiveAlgorithm
from .schedule import Group, Schedule, scheduled


def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """One schedule: an all-reduce goes up both trees and down again, a broadcast only down.

    Inside one node the trees connect its ranks. Between nodes they connect the nodes, and each node's ranks are a
    chain, as in NCCL: on channel c the c-th rank of every node communicates with other nodes, so that every rail has
    its own trees. In a broadcast the root sends to the tops of two trees over all others.
    """
    both_ways = not kind.rooted
    units = list(group.members) if len(group.members) > 1 else [(gpu,) for gpu in group.members[0]]
    if not both_ways:
        first = next(i for i, gpus in enumerate(units) if group.source in gpus)
        units = units[first:] + units[:first]
    across = len(group.members) > 1
    channels = group.channels if across else 1
    chain = max(len(gpus) for gpus in units) - 1
    down: list[tuple[int, int, float]] = []
    for channel in range(channels):
        leaders = [gpus[channel % len(gpus)] for gpus in units]
        for index, gpus in enumerate(units):
            head = gpus.index(group.source if not both_ways and index == 0 else leaders[index])
            order = gpus[head:] + gpus[:head]
            down += [(a, b, 1.0) for a, b in pairwise(order)]
        below = leaders if both_ways else leaders[1:]
        for tree in double_tree(len(below)):
            for child, parent in enumerate(tree):
                if parent is not None:
                    down.append((below[parent], below[child], 0.5))
                elif not both_ways:
                    down.append((leaders[0], below[child], 0.5))
    messages = down + [(b, a, load) for a, b, load in down] if both_ways else down
    source, destination, load = zip(*messages, strict=True)
    passes = 2 if both_ways else 1
    depth = (len(units) - 1).bit_length()
    return [
        scheduled(
            group,
            "tree",
            source,
            destination,
            np.array(load) / channels,
            node_steps=passes * (chain if across else depth),
            net_steps=passes * depth if across else 0,
        )
    ]


def double_tree(n: int) -> tuple[list[int | None], list[int | None]]:
    """Parents of ``n`` vertices in two binary trees; None at the top.

    The second tree is the first shifted by one (odd ``n``) or mirrored (even ``n``), so that no vertex has more than
    two children in both together (NCCL, src/graph/trees.cc).

    Examples
    --------
    >>> double_tree(4)
    ([None, 2, 0, 2], [1, 3, 1, None])
    """
    first = [_parent(vertex, n) for vertex in range(n)]
    second: list[int | None] = [None] * n
    for vertex, parent in enumerate(first):
        place, above = (
            ((vertex + 1) % n, None if parent is None else (parent + 1) % n)
            if n % 2
            else (n - 1 - vertex, None if parent is None else n - 1 - parent)
        )
        second[place] = above
    return first, second


def _parent(vertex: int, n: int) -> int | None:
    """Parent in the in-order binary tree, whose levels are the powers of two that divide a vertex; None: the top."""
    if vertex == 0:
        return None
    bit = vertex & -vertex
    above = (vertex ^ bit) | (bit << 1)
    return above if above < n else vertex ^ bit


ALGORITHM = ALGORITHMS.register(
    CollectiveAlgorithm("tree", (ALL_REDUCE.name, BROADCAST.name), "two binary trees that carry half each", build)
)
