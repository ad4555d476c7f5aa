"""Traffic of a transfer (a collective, or a copy to a host): time and link loads; equivalent groups.

All nodes are equal. Where a flow's path depends only on the NIC that it goes to, leaf switches are equal too. Then a
schedule depends on the positions of the ranks in each node, on which nodes share a leaf, and on the spine of each NIC.
Groups that agree in these are equivalent: renumbered nodes and leaves turn one's links into the other's. Numbers are
assigned in ascending order, so that links keep their order and sums are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...base.quick import quick
from ..clos import Clos
from ..cluster import Cluster
from ..specs import NodeSpec


@quick
@dataclass(frozen=True, slots=True)
class Traffic:
    """Uncontended time of a transfer, and its link loads.

    Alone it takes ``latency_s + fluid_s``; contention stretches ``fluid_s``.

    Attributes
    ----------
    algorithm
        Name in :data:`~tspsim.network.ALGORITHMS`, ``point_to_point``, a library's name, or ``none`` if nothing moves.
    latency_s
        Seconds that do not depend on bandwidth.
    fluid_s
        Seconds of the slowest link, at the efficiency that libraries reach.
    links, link_bytes
        Ids of the links used, and bytes that cross each.
    low, high
        Factors of the uncontended time between which 90 % of measured times lie.
    apart
        Copy engines move the data: kernels and this transfer do not slow each other down.
    """

    algorithm: str
    latency_s: float
    fluid_s: float
    links: tuple[int, ...]
    link_bytes: tuple[float, ...]
    low: float = 1.0
    high: float = 1.0
    apart: bool = False

    @property
    def alone_s(self) -> float:
        """Seconds without contention."""
        return self.latency_s + self.fluid_s

    def on(self, links: tuple[int, ...]) -> Traffic:
        """The traffic on other links, as many as its own."""
        return Traffic(
            self.algorithm, self.latency_s, self.fluid_s, links, self.link_bytes, self.low, self.high, self.apart
        )

    def slice_of(self, slices: int) -> Traffic:
        """One of ``slices`` equal slices, whose times add up to the whole transfer's."""
        sliced = tuple(size / slices for size in self.link_bytes)
        return replace(self, latency_s=self.latency_s / slices, fluid_s=self.fluid_s / slices, link_bytes=sliced)


NOTHING = Traffic("none", 0.0, 0.0, (), ())


# --- groups at equivalent positions ---------------------------------------------------------------------------

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class GroupPosition:
    """Position of a group in the cluster."""

    #: Equal for equivalent groups.
    key: Hashable
    #: Its nodes, and the leaf switches of their NICs over all planes, ascending; no leaves for a single node.
    nodes: Integers
    leaves: Integers


def position_of(cluster: Cluster, ranks: Sequence[int]) -> GroupPosition | None:
    """Position of a group; None: links differ, or the paths of flows depend on more than their destination."""
    if cluster.factors:
        return None
    per_node = cluster.gpus_per_node
    node, local = np.divmod(np.sort(np.array(ranks, dtype=np.int64)), per_node)
    begins = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
    nodes = node[begins]
    inside = local.tobytes(), begins.tobytes()
    if len(nodes) == 1:
        return GroupPosition((inside,), nodes, nodes[:0])
    uplinks = cluster.memo.once("uplinks", lambda: _uplinks(cluster)) if cluster.islands is None else None
    if uplinks is None:
        return None
    leaves, number = np.unique(uplinks.leaf[nodes], return_inverse=True)
    around: tuple[bytes, ...] = (number.tobytes(),)
    if len(leaves) > uplinks.planes:  # some route crosses a spine
        if uplinks.spine is None:
            return None
        around = (*around, uplinks.spine[nodes].tobytes())
    return GroupPosition((inside, around), nodes, leaves)


def renumbered_links(cluster: Cluster, links: Integers, here: GroupPosition, there: GroupPosition) -> Integers:
    """Links of a group at position ``here``, renumbered for an equivalent group at ``there``."""
    layout = cluster.layout
    if len(here.nodes) == 1:
        return np.add(links, int(there.nodes[0] - here.nodes[0]) * layout.node_links, dtype=np.int64)
    new_node = np.zeros(cluster.nodes, dtype=np.int64)
    new_leaf = np.zeros(layout.planes * layout.clos.leaves, dtype=np.int64)
    new_node[here.nodes], new_leaf[here.leaves] = there.nodes, there.leaves
    starts = (0, layout.host_start, layout.nic_start, layout.switch_start, layout.links)
    # Links of a node in each block, and of a leaf.
    sizes = (layout.node_links, 2 * layout.gpus, 2 * layout.nics, 2 * layout.clos.pod_spines)
    borders = np.searchsorted(links, starts)
    renumbered = np.empty_like(links)
    for block, size in enumerate(sizes):
        part = slice(borders[block], borders[block + 1])
        if part.stop > part.start:
            owner, rest = np.divmod(links[part] - starts[block], size)
            new = new_leaf if block == len(sizes) - 1 else new_node
            renumbered[part] = starts[block] + new[owner] * size + rest
    return renumbered


@dataclass(frozen=True)
class _Uplinks:
    """Uplinks of the NICs."""

    #: Leaf switch of every NIC over all planes, shape (nodes, NICs).
    leaf: Integers
    #: Spine of the flows to every NIC, shape (nodes, NICs); None: leaves are not equal.
    spine: Integers | None
    #: Number of planes.
    planes: int


def _uplinks(cluster: Cluster) -> _Uplinks | None:
    """Uplinks of the cluster's NICs; None unless a Clos network with routing by destination connects them."""
    layout = cluster.layout
    if layout.fabric is None or not isinstance(layout.plane, Clos) or not layout.routing.object.by_destination:
        return None
    clos = layout.plane
    plane, leaf, endpoint = layout.attachment(np.arange(layout.nodes * layout.nics))
    shape = layout.nodes, layout.nics
    spine = endpoint % clos.pod_spines if clos.leaves > 1 and clos.pods == 1 else None
    return _Uplinks(
        (plane * clos.leaves + leaf).reshape(shape), spine.reshape(shape) if spine is not None else None, layout.planes
    )


# --- copies between a GPU's memory and its host's, by the GPU's copy engines ----------------------------------

#: Share of its link's bandwidth that copies between a GPU and its host reach: 50 to 55 of PCIe 5's 63 GB/s are what
#: pinned copies are seen at; a prior.
COPIES = 0.83
#: Share of its channels' bandwidth that a host's processors read at: what STREAM sees is 0.75 to 0.85; a prior.
READS = 0.8


def host_bandwidth(node: NodeSpec) -> float:
    """Bytes/s of copies between a GPU and its host, or a memory pool in its place."""
    efficiencies = node.collectives.efficiency
    share = efficiencies.get("in_memory", efficiencies["default"]).value if node.memory_pool is not None else COPIES
    return share * host_link_bytes_per_s(node)


def host_reads(node: NodeSpec) -> float:
    """Bytes/s at which the host's processors read a GPU's part of host memory; 0: unknown."""
    return READS * node.host_reads.value if node.host_reads is not None else 0.0


def host_link_bytes_per_s(node: NodeSpec) -> float:
    """Bytes/s in each direction of the link between a GPU and host memory, or a memory pool in its place."""
    if node.memory_pool is not None:
        return float(node.link.bandwidth.value * node.link.per_gpu)
    return (node.host_memory or node.host_link).bandwidth.value


def host_copy(cluster: Cluster, gpu: int, size_bytes: float, direction: str) -> Traffic:
    """A copy ``out`` of a GPU's memory to its host's, or ``in``.

    It uses the GPU's link to the host, which traffic to and from its NIC uses too. If host memory has its own link, or
    a cluster of one node has no NICs, it shares no link. Copies to and from a memory pool use the link of collectives.

    Parameters
    ----------
    cluster
        Cluster of the GPU.
    gpu
        GPU number.
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
    """A transfer to or from a store, of ``seconds``, which shares no link of the cluster."""
    return Traffic("store", seconds, 0.0, (), (), apart=True)
