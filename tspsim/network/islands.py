"""Nodes whose NICs speak different languages: islands with a fabric each, and a common one between them.

As in Holmes (arXiv 2312.03549): nodes with InfiniBand and nodes with RoCE have no RDMA between them, and meet over
Ethernet. A group whose ranks are in one island uses that island's fabric; one that spans several falls back to the
common one for all its ranks, as a communicator of NCCL does. An island is one switch: its leaves and spines are not
drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from .cluster import Cluster

if TYPE_CHECKING:
    from .specs import FabricSpec


#: The switch between islands, and what makes a message inside an island prefer its own.
COMMON, LONGER_S = "common", 1e-6


@dataclass(frozen=True)
class Islands:
    """Which nodes are in which island, in order, and what joins them.

    Attributes
    ----------
    nodes
        Of every island.
    fabrics
        Of every island.
    common, switch
        Between islands, and its switch's name.
    """

    nodes: tuple[int, ...]
    fabrics: tuple[FabricSpec, ...]
    common: FabricSpec
    switch: str = COMMON

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The node after the last of every island."""
        return tuple(np.cumsum(self.nodes).tolist())

    def of(self, node: int) -> int:
        """The island of a node."""
        return int(np.searchsorted(self.ends, node, side="right"))

    def joining(self, nodes: Iterable[int]) -> FabricSpec:
        """What a group on these nodes moves its data over."""
        there = {self.of(node) for node in nodes}
        return self.common if len(there) > 1 else self.fabrics[there.pop()]


def with_islands(cluster: Cluster, nodes: Sequence[int], fabrics: Sequence[FabricSpec]) -> Cluster:
    """A cluster whose own fabric joins all nodes, with faster ones inside islands.

    Raises
    ------
    InputError
        There is no common fabric, or the islands' nodes are not those of the cluster.

    Notes
    -----
    Every node's router has a link to its island's switch and one to the common switch, each as thick as its NICs there.
    NICs are as fast as the fastest island's, slower where the node's own are; what goes over the common switch passes
    them too.
    """
    common = cluster.fabric
    if common is None or sum(nodes) != cluster.nodes or len(nodes) != len(fabrics):
        raise InputError(f"islands of {sum(nodes)} nodes are not the {cluster.nodes} of the cluster")
    islands = Islands(tuple(nodes), tuple(fabrics), common)
    many, links = cluster.node.nics, []
    for node in range(cluster.nodes):
        own = islands.of(node)
        for name, fabric, further_s in ((f"island{own}", fabrics[own], 0.0), (COMMON, common, LONGER_S)):
            rate = (many * fabric.nic.bandwidth.value, fabric.switch.latency.value / 2 + further_s)
            links += [(node, name, *rate), (name, node, *rate)]
    fastest = max(fabrics, key=lambda fabric: fabric.nic.bandwidth.value).nic
    joined = common.model_copy(update={"kind": {"graph": links}, "nic": fastest})
    found = replace(cluster, fabric=joined, islands=islands, memo={})
    slower: dict[int, float] = {}
    for node in range(cluster.nodes):
        share = islands.fabrics[islands.of(node)].nic.bandwidth.value / fastest.bandwidth.value
        if share < 1.0:
            begin = found.layout.nic_start + 2 * node * many
            slower |= dict.fromkeys(range(begin, begin + 2 * many), share)
    return replace(found, factors=tuple(sorted(slower.items())), memo={}) if slower else found


