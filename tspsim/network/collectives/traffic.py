"""What a transfer asks of the network.

Groups that stand alike: what one of them does to its links, another does to the links of its own nodes and leaves.

Nodes are alike, and where flows choose among equal paths by the number of the NIC they go to, so are leaf switches: a
schedule depends on which ranks of each node take part, on which nodes share a leaf, and on which spine each NIC's
number picks. Groups that agree in these are one group under other numbers of nodes and leaves, and their links the same
under other numbers. Numbers are given in ascending order, so that links stay in theirs, and every sum is that of the
same numbers in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...base.quick import quick
from ..clos import Clos

if TYPE_CHECKING:
    from ..cluster import Cluster


@quick
@dataclass(frozen=True, slots=True)
class Traffic:
    """A transfer's time alone, and the links it loads.

    Alone it takes ``latency_s + fluid_s``; contention stretches the second part.

    Attributes
    ----------
    algorithm
        Name in :data:`~tspsim.network.ALGORITHMS`, ``point_to_point``, a library's name, or ``none`` where nothing
        moves.
    latency_s
        Seconds that no bandwidth shortens.
    fluid_s
        Seconds the slowest link needs, at the efficiency libraries reach.
    links, link_bytes
        Ids of the links used, and the bytes that cross each in all.
    low, high
        Factors of the time alone between which nine of ten measured ones lie.
    apart
        Copy engines move it: neither do kernels beside it slow down, nor it beside them.
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
        """The same over as many other links."""
        return Traffic(
            self.algorithm, self.latency_s, self.fluid_s, links, self.link_bytes, self.low, self.high, self.apart
        )

    def slice_of(self, slices: int) -> Traffic:
        """One of so many equal slices, which begin and end as one transfer."""
        sliced = tuple(size / slices for size in self.link_bytes)
        return replace(self, latency_s=self.latency_s / slices, fluid_s=self.fluid_s / slices, link_bytes=sliced)


NOTHING = Traffic("none", 0.0, 0.0, (), ())


# --- groups that stand alike ----------------------------------------------------------------------------------

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Standing:
    """Where a group stands: what it has in common with groups that stand alike, and what is its own."""

    #: Equal for groups that stand alike.
    alike: Hashable
    #: Its nodes, and the leaf switches of their NICs (over all planes), ascending; no leaves of a single node.
    nodes: Integers
    leaves: Integers


def standing(cluster: Cluster, ranks: Sequence[int]) -> Standing | None:
    """Where a group stands; None where links differ, or flows choose paths by more than where they go to."""
    if cluster.factors:
        return None
    per_node = cluster.gpus_per_node
    node, local = np.divmod(np.sort(np.array(ranks, dtype=np.int64)), per_node)
    begins = np.flatnonzero(np.concatenate([[True], node[1:] != node[:-1]]))
    nodes = node[begins]
    inside = local.tobytes(), begins.tobytes()
    if len(nodes) == 1:
        return Standing((inside,), nodes, nodes[:0])
    uplinks = cluster.memo.once("uplinks", lambda: _uplinks(cluster)) if cluster.islands is None else None
    if uplinks is None:
        return None
    leaves, number = np.unique(uplinks.leaf[nodes], return_inverse=True)
    around: tuple[bytes, ...] = (number.tobytes(),)
    if len(leaves) > uplinks.planes:  # some way goes over a spine
        if uplinks.spine is None:
            return None
        around = (*around, uplinks.spine[nodes].tobytes())
    return Standing((inside, around), nodes, leaves)


def onto(cluster: Cluster, links: Integers, here: Standing, there: Standing) -> Integers:
    """The links of a group that stands ``here``, as those of one that stands alike ``there``."""
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
    """Of every NIC, shape (nodes, NICs): its leaf, over all planes, and the spine that flows to it take; of planes, how
    many. ``spine`` None: what is above leaves is not alike."""

    leaf: Integers
    spine: Integers | None
    planes: int


def _uplinks(cluster: Cluster) -> _Uplinks | None:
    """None where NICs are not joined by a Clos network whose flows choose by destination."""
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
