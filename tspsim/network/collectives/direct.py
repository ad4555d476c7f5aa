"""Direct exchange: every rank sends to every other without a detour.

On a full mesh it uses all links of a group, also where the group does not decompose into rings (four GPUs).
"""

from __future__ import annotations

import numpy as np

from ...program import RING_SHIFT
from .schedule import Group, Schedule, scheduled

#: Ranks on several nodes beyond which nobody sends to everyone: libraries forward along rails instead.
MOST_RANKS = 1024


def build(group: Group, kind: str) -> list[Schedule]:
    """One step for an exchange, two for an all-reduce (scatter, then gather) or a broadcast.

    A broadcast sends each peer its 1/(n − 1), which that peer hands to the others: on a mesh every link that
    does not lead to the root then carries the same. Only an all-to-all goes between nodes this way.
    """
    n = group.size
    across = len(group.members) > 1
    if kind == RING_SHIFT or (across and (kind != "all_to_all" or n > MOST_RANKS)):
        return []
    ranks = np.array(group.ranks)
    source, destination = (part.reshape(-1) for part in np.meshgrid(ranks, ranks, indexing="ij"))
    kept = source != destination
    steps, load = 1, 1.0 / n
    if kind == "all_reduce":
        steps, load = 2, 2.0 / n
    elif kind == "broadcast":
        kept &= destination != group.source
        steps, load = min(2, n - 1), 1.0 / (n - 1)
    return [scheduled(group, "direct", source[kept], destination[kept], load, node_steps=steps, net_steps=int(across))]
