"""Copies between a GPU's memory and its host's, by the GPU's copy engines."""

from __future__ import annotations

from .cluster import Cluster
from .collectives.traffic import Traffic
from .specs import NodeSpec

#: Share of its link's bandwidth that copies between a GPU and its host reach: 50 to 55 of PCIe 5's 63 GB/s are what
#: pinned copies are seen at; a prior.
COPIES = 0.83


def host_bandwidth(node: NodeSpec) -> float:
    """Bytes/s of copies between a GPU and its host."""
    link = node.host_memory if node.host_memory is not None else node.host_link
    return COPIES * link.bandwidth.value


def host_copy(cluster: Cluster, gpu: int, size_bytes: float, direction: str) -> Traffic:
    """A copy ``out`` of a GPU's memory to its host's, or ``in``.

    It takes the GPU's own link to the host, which what it sends to its NIC (or receives from it) takes too. Where the
    host's memory has a link of its own, or a cluster of one node no NICs, nothing else is in its way.

    Examples
    --------
    >>> from tspsim.network import load_cluster
    >>> round(host_copy(load_cluster("mi300x-8"), 0, 52.29e9, "out").alone_s, 6)
    1.0
    """
    if size_bytes <= 0:
        return Traffic("none", 0.0, 0.0, (), (), apart=True)
    node, layout = cluster.node, cluster.layout
    seconds = size_bytes / host_bandwidth(node)
    if node.host_memory is not None or cluster.fabric is None:
        return Traffic("host_link", 0.0, seconds, (), (), apart=True)
    link = layout.host_start + 2 * gpu + (direction == "in")
    stretch = cluster.node.host_link.bandwidth.value / float(cluster.bandwidth_bytes_per_s[link])
    return Traffic("host_link", 0.0, seconds * stretch, (link,), (float(size_bytes),), apart=True)


def waiting(seconds: float) -> Traffic:
    """What goes on to a store, or comes from one, over nothing that is shared in the cluster."""
    return Traffic("store", seconds, 0.0, (), (), apart=True)
