"""Reduction and multicast inside the switch (NVLink SHARP): a GPU sends once, whatever the group's size."""

from __future__ import annotations

import numpy as np

from ..kinds import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER, CollectiveKind
from .schedule import Group, Schedule, on_links


def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """Behind one switch that can reduce; bytes out of and into each GPU for one byte of payload.

    Each of n ranks owns 1/n. To reduce, it reads its part from all ranks through the switch, which adds them
    up (``multimem.ld_reduce``): everyone sends all it has, and receives its part. To gather, it writes its
    part to all ranks at once (``multimem.st``). An all-reduce does both: 1 + 1/n each way, so bus bandwidth
    grows with the group as 2(n − 1)/(n + 1).
    """
    cluster = group.cluster
    adds_up = cluster.layout.inside.star and cluster.node.collectives.in_switch_latency is not None
    if not adds_up or len(group.members) > 1:
        return []
    own = 1.0 / group.size
    out, into = {
        ALL_REDUCE: (1.0 + own, 1.0 + own),
        REDUCE_SCATTER: (1.0, own),
        ALL_GATHER: (own, 1.0),
        BROADCAST: (0.0, 1.0),
    }[kind]
    layout = cluster.layout
    node, local = np.divmod(np.sort(group.ranks), layout.gpus)
    up = node * layout.node_links + local
    sent = np.full(group.size, out)
    if kind.rooted:
        root = group.source // layout.gpus * layout.node_links + group.source % layout.gpus
        sent[up == root] = 1.0
    sending = sent > 0.0
    links = np.concatenate([up[sending], up + layout.gpus])
    load = np.concatenate([sent[sending], np.full(group.size, into)])
    if np.isin(links, layout.dead).any():
        return []
    order = np.argsort(links)
    return [on_links(group, "in_switch", links[order], load[order], node_steps=0)]
