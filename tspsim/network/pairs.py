"""Bandwidth between every two nodes: measured ones as a cluster's links, and those of any cluster.

A matrix of measured bandwidths replaces a fabric's switches by a link from every node to every other. NICs stay, and
bound what a node sends to all others together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from .cluster import Cluster

Floats = NDArray[np.float64]


def with_pairs(cluster: Cluster, bandwidth_bytes_per_s: Sequence[Sequence[float]]) -> Cluster:
    """The cluster with measured bandwidths between its nodes instead of its switches.

    Parameters
    ----------
    bandwidth_bytes_per_s
        Row i, column j: bytes/s from node i to node j with all NICs of both in use. The diagonal is not read.

    Raises
    ------
    InputError
        The cluster has no fabric, the matrix does not have a row and a column a node, or a rate exceeds that of a
        node's NICs.

    Notes
    -----
    A measured rate is that of a transfer, so the link's bandwidth is the rate over the fabric's efficiency.
    """
    fabric, nodes = cluster.fabric, cluster.nodes
    if fabric is None:
        raise InputError("bandwidths between nodes need two nodes or more")
    if len(bandwidth_bytes_per_s) != nodes or any(len(row) != nodes for row in bandwidth_bytes_per_s):
        raise InputError(f"{nodes} nodes need {nodes} rows of {nodes} bandwidths")
    most = cluster.node.nics * fabric.nic.bandwidth.value * fabric.efficiency.value
    links = []
    for source, row in enumerate(bandwidth_bytes_per_s):
        for target, rate in enumerate(row):
            if source == target:
                continue
            if not 0.0 < rate <= most * (1.0 + 1e-9):
                problem = f"{rate / 1e9:g} GB/s from node {source} to node {target} must be over 0 and at most the"
                raise InputError(f"{problem} {most / 1e9:.4g} GB/s that a node's NICs reach")
            links.append((source, target, rate / fabric.efficiency.value, 0.0))
    joined = fabric.model_copy(update={"kind": {"graph": links}})
    return replace(cluster, fabric=joined, measured=fabric)


def between_nodes(cluster: Cluster) -> Floats:
    """Bytes/s from every node (row) to every other (column), while each GPU of one sends to its peer in the other.

    Shape (nodes, nodes); infinite on the diagonal. Other pairs of nodes are idle.
    """
    layout, per_node, nodes = cluster.layout, cluster.gpus_per_node, cluster.nodes
    rates = np.full((nodes, nodes), np.inf)
    if cluster.fabric is None:
        return rates
    local = np.arange(per_node)
    for source in range(nodes):
        others = np.array([target for target in range(nodes) if target != source], dtype=np.int64)
        start = np.tile(source * per_node + local, len(others))
        end = (others[:, None] * per_node + local).reshape(-1)
        routes = layout.routes(start, end).reshape(len(others), -1)
        for target, row in zip(others.tolist(), routes, strict=True):
            links, load = np.unique(row[row >= layout.host_start], return_counts=True)
            busiest_s = float((load / cluster.bandwidth_bytes_per_s[links]).max())
            fabric = cluster.joining((source * per_node, target * per_node))
            assert fabric is not None
            rates[source, target] = per_node / busiest_s * fabric.efficiency.value
    return rates
