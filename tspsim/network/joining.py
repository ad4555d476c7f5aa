"""Clusters with several fabrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..base.errors import InputError
from .cluster import Cluster
from .islands import COMMON, LONGER_S, Islands

if TYPE_CHECKING:
    from .specs import FabricSpec


def with_islands(cluster: Cluster, nodes: Sequence[int], fabrics: Sequence[FabricSpec]) -> Cluster:
    """The cluster with a fabric inside each island, of ``nodes`` nodes, and its own fabric between all nodes.

    Raises
    ------
    InputError
        The cluster has no fabric, or the islands' nodes do not add up to the cluster's.

    Notes
    -----
    Every node's router has a link to its island's switch and one to the common switch, with the bandwidth of the node's
    NICs on that fabric. NICs have the rate of the fastest island's, with a factor in slower islands; traffic over the
    common switch uses them too.
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
    joined_cluster = replace(cluster, fabric=joined, islands=islands)
    slower: dict[int, float] = {}
    for node in range(cluster.nodes):
        share = islands.fabrics[islands.of(node)].nic.bandwidth.value / fastest.bandwidth.value
        if share < 1.0:
            begin = joined_cluster.layout.nic_start + 2 * node * many
            slower |= dict.fromkeys(range(begin, begin + 2 * many), share)
    return replace(joined_cluster, factors=tuple(sorted(slower.items()))) if slower else joined_cluster
