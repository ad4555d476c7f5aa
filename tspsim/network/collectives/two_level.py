"""Two-level collectives: inside the nodes, and along the rails between ranks of the same position.

Data crosses between nodes once, over all NICs of a node, and every message stays on its rail. The phases follow each
other chunk by chunk. A node's switch may reduce and multicast (NVLink SHARP): then a GPU sends once, whatever the
group's size, and two nodes exchange reduced parts.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..kinds import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER, CollectiveKind
from . import direct, multi_ring, ring, tree
from .algorithm import ALGORITHMS, Builder, CollectiveAlgorithm
from .schedule import Group, Schedule, beside, on_links, pipelined, scaled, scheduled, shifted


def in_one_switch(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """Reduction in the switch of one node: bytes out of and into each GPU for one byte of payload.

    Each of n ranks owns 1/n. To reduce, it reads its part of all ranks through the switch, which adds them
    (``multimem.ld_reduce``): every rank sends all it has, and receives its part. To gather, it writes its part to all
    ranks at once (``multimem.st``). An all-reduce does both, with 1 + 1/n bytes in each direction, so bus bandwidth
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


# --- two levels -----------------------------------------------------------------------------------------------

#: Algorithms inside a node, by name.
INSIDE: Mapping[str, Builder] = {
    "ring": ring.build,
    "multi_ring": multi_ring.build,
    "direct": direct.build,
    "in_switch": in_one_switch,
}


def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """One schedule for each pair of an algorithm inside nodes and one between them that the library's tuner considers.

    Notes
    -----
    For g ranks on each of N nodes and a payload S:

    - all-reduce: reduce-scatter of S in each node, all-reduce of S/g along each rail, all-gather of S;
    - all-gather: all-gather to S/g along each rail, then to S in each node; a reduce-scatter is the reverse;
    - broadcast: the root's node scatters S/g, each rail broadcasts its part, each node gathers;
    - all-to-all: to the rank of the destination's position, then along its rail.
    """
    nodes = group.members
    if len(nodes) < 2 or not group.regular or len(nodes[0]) < 2:
        return []
    if kind is ALL_TO_ALL:
        return [_all_to_all(group)]
    allowed = group.cluster.node.collectives.inside_node.get(kind.name, ())
    return [
        _joined(group, kind, INSIDE[inside], outside.build)
        for inside in INSIDE
        if inside in allowed and INSIDE[inside](_in_node(group, 0), ALL_GATHER)
        for outside in (ring.ALGORITHM, tree.ALGORITHM)
        if outside.schedules(_on_rail(group, 0), kind)
    ]


def reduced_in_switch(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """Reduction in the switch, in one node; or in two nodes, whose ranks of the same position exchange reduced parts.

    Measurements show no reduction in the switch beyond two nodes: four nodes and twenty racks reach a tree's bandwidth.
    """
    if len(group.members) == 1:
        return in_one_switch(group, kind)
    pair = len(group.members) == 2 and group.regular and len(group.members[0]) > 1 and kind is ALL_REDUCE
    if not pair or not in_one_switch(_in_node(group, 0), ALL_GATHER):
        return []
    return [_joined(group, kind, in_one_switch, ring.build)]


def _joined(group: Group, kind: CollectiveKind, inside: Builder, outside: Builder) -> Schedule:
    g = len(group.members[0])

    def in_nodes(part: CollectiveKind) -> Schedule:
        # Does not depend on the root.
        return group.cluster.memo.once(("in nodes", group.members, inside, part.name), lambda: build_in_nodes(part))

    def build_in_nodes(part: CollectiveKind) -> Schedule:
        if not group.cluster.factors:  # nodes are equal: the first one's schedule is renumbered
            first, layout = inside(_in_node(group, 0), part)[0], group.cluster.layout
            nodes = [(gpus[0] - group.members[0][0]) // layout.gpus for gpus in group.members]
            return beside(shifted(first, layout.node_links * node) for node in nodes)
        return beside(inside(_in_node(group, i), part)[0] for i in range(len(group.members)))

    def on_rails() -> Schedule:
        # Does not depend on the algorithm inside nodes.
        key = ("on rails", group.members, group.source_node, outside, kind.name)
        across = (outside(_on_rail(group, i), kind)[0] for i in range(g))
        return group.cluster.memo.once(key, lambda: scaled(beside(across), 1.0 / g))

    rails = on_rails()
    phases = {
        ALL_REDUCE: lambda: [in_nodes(REDUCE_SCATTER), rails, in_nodes(ALL_GATHER)],
        REDUCE_SCATTER: lambda: [in_nodes(REDUCE_SCATTER), rails],
        ALL_GATHER: lambda: [rails, in_nodes(ALL_GATHER)],
        BROADCAST: lambda: [_scatter(group), rails, in_nodes(ALL_GATHER)],
    }[kind]()
    gathering = phases[0] if kind is REDUCE_SCATTER else phases[-1]
    if gathering.family == "in_switch":  # one latency covers both ways through the switch
        return pipelined(phases, "in_switch")
    return pipelined(phases, rails.family)


def _scatter(group: Group) -> Schedule:
    """The root sends every other rank of its node the part that is broadcast along that rank's rail."""
    home = group.members[group.source_node]
    peers = [gpu for gpu in home if gpu != group.source]
    return scheduled(group, "direct", [group.source] * len(peers), peers, 1.0 / len(home), node_steps=1)


def _all_to_all(group: Group) -> Schedule:
    g, n = len(group.members[0]), len(group.members)
    inside = beside(direct.build(_in_node(group, i), ALL_TO_ALL)[0] for i in range(n))
    return pipelined([inside, beside(direct.build(_on_rail(group, i), ALL_TO_ALL)[0] for i in range(g))], "direct")


def _in_node(group: Group, index: int) -> Group:
    return Group(group.cluster, group.members[index])


def _on_rail(group: Group, position: int) -> Group:
    return Group(group.cluster, tuple(gpus[position] for gpus in group.members), group.source_node)


KINDS = tuple([kind.name for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, ALL_TO_ALL)])
ALGORITHMS.register(
    CollectiveAlgorithm("in_switch", KINDS[:-1], "the switch adds and multicasts; two nodes swap", reduced_in_switch)
)
ALGORITHM = ALGORITHMS.register(
    CollectiveAlgorithm("two_level", KINDS, "inside nodes and along rails, chunk by chunk", build)
)
