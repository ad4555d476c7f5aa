"""Messages between two pools of GPUs: rows to one GPU of each node of the second pool, and sums back.

A group's first ``root`` ranks (0: half of them) are the first pool, the others the second. ``to_pool``: every GPU of
the first pool sends its rows once to every node of the second, to its GPUs in turn. ``from_pool``: every GPU of the
second pool sends every GPU of the first its part of the sums. Messages are one-sided RDMA writes: a route's latency
counts once, and no compute units are used. ``size_bytes`` is what a rank of the group receives in the mean (Janus,
arXiv 2512.13525, from second-hand notes: few large messages, one relay a node).
"""

from __future__ import annotations

import numpy as np

from ..kinds import KINDS, CollectiveKind
from .algorithm import ALGORITHMS, CollectiveAlgorithm, ProtocolLine
from .schedule import Group, Schedule, scheduled

TO_POOL, FROM_POOL = (
    KINDS.register(CollectiveKind(name, "what a rank receives on the mean", keeps_own=False, rooted=True))
    for name in ("to_pool", "from_pool")
)


def messages(group: Group, kind: CollectiveKind) -> tuple[list[int], list[int]]:
    """Sources and destinations of messages of equal size."""
    first = group.root or group.size // 2
    senders, nodes = group.ranks[:first], dict[int, list[int]]()
    for gpu in group.ranks[first:]:
        nodes.setdefault(gpu // group.cluster.gpus_per_node, []).append(gpu)
    pairs = [
        (sender, relay)
        for members in nodes.values()
        for number, sender in enumerate(senders)
        for relay in (members if kind is FROM_POOL else [members[number % len(members)]])
    ]
    there, back = [sender for sender, _ in pairs], [relay for _, relay in pairs]
    return (back, there) if kind is FROM_POOL else (there, back)


def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """One schedule, with all messages at once."""
    if group.size < 2:
        return []
    source, destination = messages(group, kind)
    load = group.size / len(source)
    return [scheduled(group, "point_to_point", source, destination, load, node_steps=1)]


def cost(group: Group, kind: CollectiveKind, schedule: Schedule) -> ProtocolLine:
    """The latency is that of the longest route, not a library's."""
    routes = group.cluster.layout_of(group.ranks).routes(*messages(group, kind))
    alone = np.where(routes >= 0, np.asarray(group.cluster.latency_s)[routes], 0.0)
    return ProtocolLine(float(alone.sum(axis=1).max()), schedule.fluid_s)


ALGORITHM = ALGORITHMS.register(
    CollectiveAlgorithm(
        "pool_messages",
        (TO_POOL.name, FROM_POOL.name),
        "one-sided messages between two pools of GPUs",
        build,
        cost,
        apart=True,
    )
)
