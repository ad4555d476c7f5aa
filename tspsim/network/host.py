"""Copies between a GPU's memory and its host's, by the GPU's copy engines."""

from __future__ import annotations

from .cluster import Cluster
from .collectives.traffic import Traffic
from .specs import NodeSpec

#: Share of its link's bandwidth that copies between a GPU and its host reach: 50 to 55 of PCIe 5's 63 GB/s are what
#: pinned copies are seen at; a prior.
COPIES = 0.83
#: Share of its channels' bandwidth that a host's processors read at: what STREAM sees is 0.75 to 0.85; a prior.
READS = 0.8


def host_bandwidth(node: NodeSpec) -> float:
    """Bytes/s of copies between a GPU and its host, or the pool in its place."""
    efficiencies = node.collectives.efficiency
    share = efficiencies.get("in_memory", efficiencies["default"]).value if node.memory_pool is not None else COPIES
    return share * host_link_bytes_per_s(node)


def host_reads(node: NodeSpec) -> float:
    """Bytes/s at which the host's processors read a GPU's part of its memory; 0: not known."""
    return READS * node.host_reads.value if node.host_reads is not None else 0.0


def host_link_bytes_per_s(node: NodeSpec) -> float:
    """What that link carries each way, whoever moves it: of a node with a pool of memory that of a GPU to it."""
    if node.memory_pool is not None:
        return float(node.link.bandwidth.value * node.link.per_gpu)
    return (node.host_memory or node.host_link).bandwidth.value


def host_copy(cluster: Cluster, gpu: int, size_bytes: float, direction: str) -> Traffic:
    """A copy ``out`` of a GPU's memory to its host's, or ``in``.

    It takes the GPU's own link to the host, which what it sends to its NIC (or receives from it) takes too. Where the
    host's memory has a link of its own, or a cluster of one node no NICs, nothing else is in its way. To and from a
    pool of memory it takes the link that collectives take.

    Parameters
    ----------
    cluster
        Where the GPU is.
    gpu
        Its number.
    size_bytes
        Bytes that are copied.
    direction
        ``out`` or ``in``.

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
    if node.memory_pool is not None:
        at, local = divmod(gpu, layout.gpus)
        link = at * layout.node_links + local + (direction == "in") * layout.gpus
        stretch = host_link_bytes_per_s(node) / float(cluster.bandwidth_bytes_per_s[link])
        return Traffic("pool_link", node.memory_pool.latency.value, seconds * stretch, (link,), (float(size_bytes),))
    if node.host_memory is not None or cluster.fabric is None:
        return Traffic("host_link", 0.0, seconds, (), (), apart=True)
    link = layout.host_start + 2 * gpu + (direction == "in")
    stretch = cluster.node.host_link.bandwidth.value / float(cluster.bandwidth_bytes_per_s[link])
    return Traffic("host_link", 0.0, seconds * stretch, (link,), (float(size_bytes),), apart=True)


def waiting(seconds: float) -> Traffic:
    """What goes on to a store, or comes from one, over nothing that is shared in the cluster."""
    return Traffic("store", seconds, 0.0, (), (), apart=True)
