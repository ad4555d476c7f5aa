"""The collectives of a library: its algorithms by name, and the cheapest of them for a size.

A library's tuner weighs a latency and a bandwidth for each algorithm and protocol and takes the smallest sum
(NCCL, src/graph/tuning.cc). So does :func:`collective`, with the links of this cluster in the place of the
tuner's bandwidths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ...errors import InputError, UnknownNameError, shorten
from ...program import COLLECTIVE_KINDS
from ..cluster import Cluster
from . import direct, in_switch, multi_ring, ring, tree, two_level
from .curves import Measured
from .schedule import Group, Schedule, scheduled

#: Every algorithm a caller may name, and what builds its schedules (none: it cannot run there).
ALGORITHMS: Mapping[str, Callable[[Group, str], list[Schedule]]] = MappingProxyType(
    {
        "ring": ring.build,
        "multi_ring": multi_ring.build,
        "direct": direct.build,
        "tree": tree.build,
        "in_switch": in_switch.build,
        "two_level": two_level.build,
    }
)

#: Results kept on one cluster; beyond, the oldest half is let go.
MOST_KEPT = 65_536


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a transfer asks of the network.

    Alone it takes ``latency_s + fluid_s``; contention stretches the second part.

    Attributes
    ----------
    algorithm
        Name in :data:`ALGORITHMS`, ``point_to_point``, or ``none`` where nothing moves.
    latency_s
        Seconds that no bandwidth shortens.
    fluid_s
        Seconds the slowest link needs, at the efficiency libraries reach.
    links, link_bytes
        Ids of the links used, and the bytes that cross each in all.
    """

    algorithm: str
    latency_s: float
    fluid_s: float
    links: tuple[int, ...]
    link_bytes: tuple[float, ...]


NOTHING = Traffic("none", 0.0, 0.0, (), ())


@dataclass(frozen=True, slots=True)
class _Choice:
    """One algorithm with one protocol: a line ``latency_s + size_bytes · fluid_s``, or a measured curve."""

    algorithm: str
    latency_s: float
    fluid_s: float
    schedule: Schedule
    curve: Measured | None = None

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Seconds of latency, and seconds that contention stretches."""
        if self.curve is not None:
            return self.curve.alone(size_bytes)
        return self.latency_s, size_bytes * self.fluid_s


def collective(
    cluster: Cluster,
    ranks: Sequence[int],
    kind: str,
    size_bytes: float,
    *,
    root: int = 0,
    algorithm: str | None = None,
) -> Traffic:
    """One collective of a group.

    Parameters
    ----------
    cluster
        Where the ranks are.
    ranks
        GPU numbers, distinct.
    kind
        ``all_gather``, ``reduce_scatter``, ``all_reduce``, ``broadcast`` or ``all_to_all``.
    size_bytes
        As nccl-tests counts: the gathered result of an all-gather, the whole input of a reduce-scatter, the
        vector of an all-reduce or broadcast, what one rank holds before an all-to-all.
    root
        Position in ``ranks`` of a broadcast's source.
    algorithm
        Name in :data:`ALGORITHMS`; None takes the cheapest of those the node's library considers.

    Returns
    -------
    Traffic

    Raises
    ------
    InputError
        An argument is wrong, or the named algorithm cannot run on these ranks.

    Examples
    --------
    >>> from tspsim.network import load_cluster
    >>> traffic = collective(load_cluster("mi300x-8"), range(8), "all_reduce", 2**30)
    >>> traffic.algorithm, len(traffic.links), traffic.link_bytes[0] / 2**30
    ('direct', 56, 0.25)
    """
    members = tuple(ranks)
    key = (members, kind, size_bytes, root, algorithm)
    known: Traffic | None = cluster.memo.get(key)
    if known is not None:
        return known
    group = _checked(cluster, members, kind, size_bytes, root)
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise UnknownNameError("algorithm", algorithm, ALGORITHMS)
    traffic = NOTHING
    if group.size > 1 and size_bytes > 0:
        traffic = _traffic(group, kind, float(size_bytes), algorithm)
    return _kept(cluster, key, traffic)


def point_to_point(cluster: Cluster, source: int, destination: int, size_bytes: float) -> Traffic:
    """One message by the collective library.

    Parameters
    ----------
    source, destination
        GPU numbers; equal ones move nothing.
    size_bytes
        Bytes of the message.

    Raises
    ------
    InputError
        An argument is wrong.

    Examples
    --------
    >>> from tspsim.network import load_cluster
    >>> point_to_point(load_cluster("mi300x-8"), 0, 1, 64e6).link_bytes
    (64000000.0,)
    """
    key = ("point_to_point", source, destination, size_bytes)
    known: Traffic | None = cluster.memo.get(key)
    if known is not None:
        return known
    _check_size(size_bytes)
    ends = cluster.check_gpu(source), cluster.check_gpu(destination)
    traffic = NOTHING
    if ends[0] != ends[1] and size_bytes > 0:
        choices = cluster.memo.get(("choices", "point_to_point", ends))
        if choices is None:
            across = ends[0] // cluster.gpus_per_node != ends[1] // cluster.gpus_per_node
            relayed = across and cluster.sound.route(*ends)[0] < cluster.layout.host_start
            schedule = scheduled(
                Group(cluster, ends),
                "point_to_point",
                [ends[0]],
                [ends[1]],
                1.0,
                node_steps=int(not across or relayed),
                net_steps=int(across),
            )
            choices = _choices(cluster, "point_to_point", schedule, 1.0)
            cluster.memo["choices", "point_to_point", ends] = choices
        traffic = _cheapest(choices, float(size_bytes), 0)
    return _kept(cluster, key, traffic)


def _checked(cluster: Cluster, ranks: tuple[int, ...], kind: str, size_bytes: float, root: int) -> Group:
    if kind not in COLLECTIVE_KINDS:
        raise UnknownNameError("collective", kind, COLLECTIVE_KINDS)
    _check_size(size_bytes)
    gpus = tuple([cluster.check_gpu(rank) for rank in ranks])
    if len(set(gpus)) != len(gpus) or not gpus:
        raise InputError(f"ranks {shorten(gpus)} of a {kind} must be distinct GPUs, at least one")
    if not 0 <= root < len(gpus):
        raise InputError(f"root {shorten(root)} is a position among {len(gpus)} ranks: 0 to {len(gpus) - 1}")
    return Group(cluster, gpus, root)


def _check_size(size_bytes: float) -> None:
    if not 0.0 <= size_bytes < math.inf:
        raise InputError(f"size {shorten(size_bytes)} must be a finite number of bytes, 0 or more")


def _traffic(group: Group, kind: str, size_bytes: float, algorithm: str | None) -> Traffic:
    """The cheapest choice. Groups inside one node are computed on node 0 and moved, if all nodes are
    equal."""
    cluster, layout = group.cluster, group.cluster.layout
    node, shift = 0, 0
    if len(group.members) == 1 and not cluster.factors:
        node = group.ranks[0] // layout.gpus
        shift = node * layout.node_links
    ranks = tuple([rank - node * layout.gpus for rank in group.ranks])
    source = ranks[group.root] if kind == "broadcast" else -1
    key = ("choices", kind, algorithm, frozenset(ranks), source)
    choices: tuple[_Choice, ...] | None = cluster.memo.get(key)
    if choices is None:
        choices = _considered(Group(cluster, ranks, group.root), kind, algorithm)
        cluster.memo[key] = choices
    return _cheapest(choices, size_bytes, shift)


def _considered(group: Group, kind: str, algorithm: str | None) -> tuple[_Choice, ...]:
    """All lines of the named algorithm, or of all that the library's tuner knows."""
    cluster = group.cluster
    library = cluster.node.collectives
    considered = library.inside_node if len(group.members) == 1 else library.between_nodes
    n = group.size
    passed = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0}.get(kind, (n - 1) / n)
    names = getattr(considered, kind) if algorithm is None else (algorithm,)
    choices = [
        choice
        for name in names
        for schedule in ALGORITHMS[name](group, kind)
        for choice in _measured(group, kind, name, schedule) or _choices(cluster, name, schedule, passed)
    ]
    if not choices:
        able = [name for name, build in ALGORITHMS.items() if build(group, kind)]
        refused = f"algorithm '{algorithm}'" if algorithm else f"no algorithm of {cluster.node.name}"
        raise InputError(f"{refused} cannot run {kind} on these {n} ranks; here: {', '.join(able)}")
    return tuple(choices)


def _measured(group: Group, kind: str, name: str, schedule: Schedule) -> tuple[_Choice, ...]:
    """The measured curve of an algorithm, where the node has one for this kind and number of ranks."""
    cluster, n = group.cluster, group.size
    if len(group.members) > 1:
        return ()
    for curve in cluster.node.collectives.curves:
        if name in curve.algorithms and kind in curve.kinds and curve.ranks[0] <= n <= curve.ranks[1]:
            link = cluster.node.link
            busy = schedule.load / cluster.bandwidth_bytes_per_s[schedule.links]
            stretch = 1.0
            if cluster.factors:  # measured were links as specified
                sound = ALGORITHMS[name](Group(cluster.sound, group.ranks, group.root), kind)[0]
                stretch = float(busy.max() / (sound.load / cluster.sound.bandwidth_bytes_per_s[sound.links]).max())
            bandwidth = link.bandwidth.value * link.per_gpu
            measured = Measured(curve, kind, n, bandwidth, float(busy.max()), stretch)
            return (_Choice(name, 0.0, 0.0, schedule, measured),)
    return ()


def _choices(cluster: Cluster, name: str, schedule: Schedule, passed: float) -> tuple[_Choice, ...]:
    """A schedule under every protocol; ``passed`` is what a GPU sends on of each byte.

    Reduction in the switch has a latency of its own and moves whole messages: only the last protocol.
    """
    library = cluster.node.collectives
    lines = []
    if schedule.family == "in_switch":
        assert library.in_switch_latency is not None
        steps = library.protocols[-1].ring
        latency = library.in_switch_latency.value + schedule.net_steps * steps.net_hop
        return (_Choice(name, latency, schedule.fluid_s, schedule),)
    for protocol in library.protocols:
        steps = protocol.tree if schedule.family == "tree" else protocol.ring
        latency = steps.base + schedule.node_steps * steps.hop + schedule.net_steps * steps.net_hop
        fluid = schedule.fluid_s / protocol.bandwidth_ratio
        cap = protocol.fabric_cap if schedule.net_steps else protocol.node_cap
        if cap is not None:
            fluid = max(fluid, passed / cap)
        lines.append(_Choice(name, latency, fluid, schedule))
    return tuple(lines)


def _cheapest(choices: Sequence[_Choice], size_bytes: float, shift: int) -> Traffic:
    times = [choice.alone(size_bytes) for choice in choices]
    index = min(range(len(choices)), key=lambda i: times[i][0] + times[i][1])
    best, (latency_s, fluid_s) = choices[index], times[index]
    links = best.schedule.links + np.int64(shift)
    return Traffic(
        best.algorithm,
        latency_s,
        fluid_s,
        tuple(links.tolist()),
        tuple((best.schedule.load * size_bytes).tolist()),
    )


def _kept(cluster: Cluster, key: object, traffic: Traffic) -> Traffic:
    memo = cluster.memo
    if len(memo) >= MOST_KEPT:
        for old in list(memo)[: MOST_KEPT // 2]:
            del memo[old]
    memo[key] = traffic
    return traffic
