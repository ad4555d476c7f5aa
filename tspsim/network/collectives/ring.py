"""Rings: every rank sends chunks to the next.

All-gather and reduce-scatter send (n − 1)/n of the bytes over each hop, an all-reduce twice that (Patarasuk and Yuan,
Journal of Parallel and Distributed Computing 69, 2009). A broadcast is the ring without its last hop.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..kinds import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, RING_SHIFT, CollectiveKind
from .algorithm import ALGORITHMS, CollectiveAlgorithm
from .schedule import Group, Integers, Schedule, scheduled

#: Names of the kinds that a ring can run.
KINDS = tuple([kind.name for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, RING_SHIFT)])


def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """One ring through the ranks in order; between nodes, one on each rail.

    On a mesh it uses only one link of each GPU.
    """
    return rings(group, kind, [None])


def rings(group: Group, kind: CollectiveKind, cycles: Sequence[Sequence[int] | None]) -> list[Schedule]:
    """Schedules of rings that share the bytes evenly.

    Parameters
    ----------
    cycles
        Orders in which a ring visits the ranks inside a node, as positions; None: ascending.

    Notes
    -----
    Between nodes each cycle becomes :attr:`Group.channels` rings: ring c enters every node at its c-th rank and leaves
    over that rank's rail, so that all NICs are used. If dead links interrupt some rings, a second schedule leaves them
    out.
    """
    if kind is RING_SHIFT:  # with one rank a node there are no neighbours
        return [shift(group, cycles)] if len(group.members) < group.size else []
    nodes, n = group.members, group.size
    channels = 1 if len(nodes) == 1 else group.channels
    paths = np.array([_path(group, kind, cycle, channel) for cycle in cycles for channel in range(channels)])
    if not kind.rooted:
        paths = np.concatenate([paths, paths[:, :1]], axis=1)
    crossings = kind.passes * (len(nodes) - 1)

    def over(chosen: Integers) -> Schedule:
        return scheduled(
            group,
            "ring",
            chosen[:, :-1].reshape(-1),
            chosen[:, 1:].reshape(-1),
            kind.passed_on(n) / len(chosen),
            node_steps=kind.passes * (n - 1) - crossings,
            net_steps=crossings,
            own_chunk=0.0 if kind.rooted else 1.0 / n,
        )

    layout = group.cluster.layout
    whole = paths
    if layout.dead:
        whole = paths[[not layout.interrupted(path[:-1], path[1:]).any() for path in paths]]
    return [over(paths)] if len(whole) in (0, len(paths)) else [over(paths), over(whole)]


def shift(group: Group, cycles: Sequence[Sequence[int] | None]) -> Schedule:
    """One hop along rings inside every node: each rank sends its successor in each ring an even share of the bytes."""
    paths = [[*order, order[0]] for gpus in group.members for order in (_ordered(gpus, cycle) for cycle in cycles)]
    hops = [hop for path in paths for hop in pairwise(path)]
    source, destination = zip(*hops, strict=True)
    return scheduled(group, "point_to_point", source, destination, 1.0 / len(cycles), node_steps=1)


def _ordered(gpus: Sequence[int], cycle: Sequence[int] | None) -> list[int]:
    """A node's ranks in the order in which a ring visits them."""
    return [gpus[i] for i in cycle] if cycle else list(gpus)


def _path(group: Group, kind: CollectiveKind, cycle: Sequence[int] | None, channel: int) -> Integers:
    """Ranks in the order in which one ring visits them, shape (ranks,); a broadcast begins at its root."""
    nodes = list(group.members)
    if group.regular and not kind.rooted:
        order = _ordered(range(len(nodes[0])), cycle)
        first = order.index(channel % len(order))
        return np.array(nodes)[:, order[first:] + order[:first]].reshape(-1)
    if kind.rooted:
        nodes = nodes[group.source_node :] + nodes[: group.source_node]
    path: list[int] = []
    for gpus in nodes:
        order = _ordered(gpus, cycle)
        at_root = kind.rooted and not path
        first = order.index(group.source if at_root else gpus[channel % len(gpus)])
        path += order[first:] + order[:first]
    return np.array(path)


ALGORITHM = ALGORITHMS.register(
    CollectiveAlgorithm("ring", KINDS, "one ring through the ranks; between nodes one a rail", build)
)
