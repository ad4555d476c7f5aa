"""Schedules of collectives: the load of each link for one byte, and the steps before the first byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...base.memo import once
from ...base.quick import replace

if TYPE_CHECKING:
    from ..calibration import Family
    from ..cluster import Cluster

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """The ranks of a collective, by node.

    Parameters
    ----------
    cluster
        Cluster of the ranks.
    ranks
        Distinct GPU numbers, in the caller's order.
    root
        Position in ``ranks`` of a broadcast's source.
    """

    cluster: Cluster
    ranks: tuple[int, ...]
    root: int = 0

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def source(self) -> int:
        """GPU of the root."""
        return self.ranks[self.root]

    @once
    def members(self) -> tuple[tuple[int, ...], ...]:
        """GPUs in each node of the group, sorted."""
        by_node: dict[int, list[int]] = {}
        for rank in sorted(self.ranks):
            by_node.setdefault(rank // self.cluster.gpus_per_node, []).append(rank)
        return tuple(tuple(gpus) for gpus in by_node.values())

    @once
    def regular(self) -> bool:
        """Whether the group has the same positions in every node."""
        per_node = self.cluster.gpus_per_node
        return len({tuple(gpu % per_node for gpu in gpus) for gpus in self.members}) == 1

    @once
    def source_node(self) -> int:
        """Index in ``members`` of the root's node."""
        return next(i for i, gpus in enumerate(self.members) if self.source in gpus)

    @property
    def channels(self) -> int:
        """Number of rings or trees between nodes: one for each rank of a node, at most the library's."""
        across = self.cluster.node.collectives.across
        widest = max(len(gpus) for gpus in self.members)
        return min(widest, across.most_rails) if across and across.most_rails else widest

    @property
    def mesh(self) -> bool:
        """Whether the GPUs of a node are a full mesh."""
        return self.cluster.layout.mesh


@dataclass(frozen=True)
class Schedule:
    """Link loads of a collective for one byte of ``size_bytes``, and the steps before the first byte.

    Attributes
    ----------
    links
        Ids of the links used, ascending.
    load
        Bytes that cross each link.
    busy_s
        Seconds that each link is busy, at the efficiency of the algorithm's family and the fabric.
    node_steps, net_steps
        Consecutive hops inside nodes, and between them.
    family
        Family of algorithms whose latencies and efficiency apply.
    own_s
        Seconds in which a rank handles its own chunk and sends nothing.
    """

    links: Integers
    load: Floats
    busy_s: Floats
    node_steps: int
    net_steps: int
    family: Family
    own_s: float = 0.0

    @property
    def fluid_s(self) -> float:
        """Seconds a byte without contention."""
        return float(self.busy_s.max()) + self.own_s


def scheduled(
    group: Group,
    family: Family,
    source: ArrayLike,
    destination: ArrayLike,
    load: ArrayLike,
    *,
    node_steps: int,
    net_steps: int = 0,
    own_chunk: float = 0.0,
) -> Schedule:
    """Schedule of messages along their routes.

    Parameters
    ----------
    group
        Group of the collective.
    family
        Family of the algorithm (``ring``, ``tree``, ``direct``, …), whose efficiency and latencies in the node's file
        apply; those of ``default`` if the file has none of that name.
    source, destination
        GPU numbers of every message's ends, arrays of shape (messages,).
    load
        Bytes of every message for one byte of the collective: an array (messages,), or one number for all.
    node_steps, net_steps
        Consecutive messages on the critical path, inside nodes and between them; each takes a hop's latency.
    own_chunk
        Bytes that a rank handles without sending (rings), for one byte of the collective.

    Raises
    ------
    UnreachableError
        Dead links leave no route for a message.
    """
    cluster = group.cluster
    layout = cluster.layout_of(group.ranks)
    routes = layout.routes(source, destination)
    loads = np.broadcast_to(np.asarray(load, dtype=np.float64), routes.shape[:1])
    used = routes >= 0
    own = cluster.node.collectives.own_chunk
    own_s = own_chunk / own.value if own else 0.0
    links, total = summed(routes[used], np.repeat(loads, used.sum(axis=1)))
    steps = node_steps + layout.relays(source, destination)
    return on_links(group, family, links, total, node_steps=steps, net_steps=net_steps, own_s=own_s)


def on_links(
    group: Group,
    family: Family,
    links: Integers,
    load: Floats,
    *,
    node_steps: int,
    net_steps: int = 0,
    own_s: float = 0.0,
) -> Schedule:
    """Schedule with these loads on distinct links."""
    cluster = group.cluster
    efficiencies = cluster.node.collectives.efficiency
    inside = efficiencies.get(family, efficiencies["default"]).value
    fabric = cluster.joining(group.ranks)
    outside = fabric.efficiency.value if fabric else 1.0
    reached = cluster.bandwidth_bytes_per_s[links] * np.where(links < cluster.layout.host_start, inside, outside)
    return Schedule(links, load, load / reached, node_steps, net_steps, family, own_s)


def pipelined(schedules: Sequence[Schedule], family: Family) -> Schedule:
    """Phases that follow each other chunk by chunk: in a long message the links of all phases are busy together."""
    links = np.concatenate([s.links for s in schedules])
    distinct, load = summed(links, np.concatenate([s.load for s in schedules]))
    _, busy = summed(links, np.concatenate([s.busy_s for s in schedules]))
    node_steps, net_steps = (sum(getattr(s, name) for s in schedules) for name in ("node_steps", "net_steps"))
    return Schedule(distinct, load, busy, node_steps, net_steps, family, sum(s.own_s for s in schedules))


def beside(schedules: Iterable[Schedule]) -> Schedule:
    """Equal schedules of disjoint groups at the same time: loads add, steps do not."""
    every = list(schedules)
    first = every[0]
    joined = pipelined(every, first.family)
    return Schedule(
        joined.links, joined.load, joined.busy_s, first.node_steps, first.net_steps, first.family, first.own_s
    )


def scaled(schedule: Schedule, factor: float) -> Schedule:
    """The schedule for ``factor`` times the bytes."""
    return Schedule(
        schedule.links,
        schedule.load * factor,
        schedule.busy_s * factor,
        schedule.node_steps,
        schedule.net_steps,
        schedule.family,
        schedule.own_s * factor,
    )


def shifted(schedule: Schedule, links: int) -> Schedule:
    """The schedule in an equal node whose link ids are ``links`` higher."""
    return replace(schedule, links=schedule.links + np.int64(links))


def summed(links: Integers, values: Floats) -> tuple[Integers, Floats]:
    """Distinct links, ascending, and the sum of each link's values."""
    if len(links) > MANY:  # counting is faster than sorting
        every: Floats = np.bincount(links, weights=values).astype(np.float64, copy=False)
        present: Integers = np.flatnonzero(np.bincount(links)).astype(np.int64, copy=False)
        return present, every[present]
    distinct, where = np.unique(links, return_inverse=True)
    total: Floats = np.bincount(where, weights=values, minlength=len(distinct)).astype(np.float64, copy=False)
    return distinct, total


#: Entries above which a count over all links of the cluster is faster than a sort.
MANY = 4096


def busiest_s(cluster: Cluster, schedule: Schedule) -> float:
    """Seconds a byte on the slowest link at its full bandwidth."""
    return float((schedule.load / cluster.bandwidth_bytes_per_s[schedule.links]).max(initial=0.0))


def power_sum(values: Sequence[float], power: float) -> float:
    """``(Σ v^power)^(1/power)``: a smooth maximum (power > 0) or minimum (power < 0)."""
    scale = max(values) if power > 0.0 else min(values)
    if scale <= 0.0:
        return 0.0
    return float(scale * sum([(value / scale) ** power for value in values]) ** (1.0 / power))
