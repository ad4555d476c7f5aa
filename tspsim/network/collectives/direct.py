"""Direct exchange: every rank sends to every other.

On a full mesh it uses all links of a group, also of groups that do not decompose into rings (four GPUs).
"""

from __future__ import annotations

import numpy as np

from ..kinds import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER, CollectiveKind
from .algorithm import ALGORITHMS, CollectiveAlgorithm
from .schedule import Group, Schedule, scheduled

#: Most ranks on several nodes that send to every other; in larger groups libraries forward along rails.
MOST_RANKS = 1024


def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """One step for an exchange, two for an all-reduce (scatter, then gather) or a broadcast.

    In a broadcast the root sends each peer 1/(n − 1) of the bytes, which that peer sends to the others: on a mesh all
    links that do not lead to the root carry equally much. Between nodes only an all-to-all runs directly.
    """
    n = group.size
    across = len(group.members) > 1
    if across and (kind is not ALL_TO_ALL or n > MOST_RANKS):
        return []
    ranks = np.array(group.ranks)
    source, destination = (part.reshape(-1) for part in np.meshgrid(ranks, ranks, indexing="ij"))
    kept = source != destination
    steps, load = kind.passes, kind.passes / n
    if kind.rooted:
        kept &= destination != group.source
        steps, load = min(2, n - 1), 1.0 / (n - 1)
    return [scheduled(group, "direct", source[kept], destination[kept], load, node_steps=steps, net_steps=int(across))]


KINDS = tuple([kind.name for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, ALL_TO_ALL)])
ALGORITHM = ALGORITHMS.register(
    CollectiveAlgorithm("direct", KINDS, "every rank sends to every other; two steps for an all-reduce", build)
)
