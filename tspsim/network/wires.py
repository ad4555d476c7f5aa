"""Messages over the links of clusters on a running clock; messages under way share links.

:func:`tspsim.network.finish_times` computes flows that are all known at the start. Here processes send at any time.
Several clusters are connected through their NICs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import simpy

from ..base.errors import InputError
from ..base.memo import once
from .cluster import Cluster
from .fluid import Calendar, Channel, Fluid, Transfer

#: (cluster, link of that cluster).
Link = tuple[int, int]


class GpuPlace(NamedTuple):
    """A GPU of one of the clusters."""

    cluster: int
    gpu: int


class Message(NamedTuple):
    """Bytes from one GPU to another."""

    source: GpuPlace
    destination: GpuPlace
    size_bytes: float


@dataclass(frozen=True)
class MessageBundle:
    """Links and uncontended time of a bundle of messages."""

    #: Seconds that each link is busy, at the share of its bandwidth that messages reach.
    busy_s: Mapping[Link, float]
    #: Bytes that cross each link.
    carried: Mapping[Link, float]
    #: Latency of the longest route.
    latency_s: float

    @once
    def fluid_s(self) -> float:
        """Seconds of the busiest link."""
        return max(self.busy_s.values(), default=0.0)

    @once
    def busiest_bytes(self) -> float:
        """Bytes on the link that is busy longest."""
        busiest = max(self.busy_s, key=self.busy_s.__getitem__, default=None)
        return 0.0 if busiest is None else self.carried[busiest]

    @property
    def alone_s(self) -> float:
        """Seconds until the last byte arrives, without contention."""
        return self.latency_s + self.fluid_s


class SharedLinks:
    """Links of any kind on a clock, named by the sender.

    Sends under way share links max-min fairly, in bytes (:mod:`tspsim.network.sharing`).
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self._fluid = Fluid(env, Calendar(env))
        self._numbers: dict[Hashable, int] = {}
        self._following = count()

    def send(self, way: MessageBundle, share: float = 1.0, *, least_s: float = 0.0) -> Transfer:
        """Send ``share`` of the bytes of a bundle, starting now.

        Parameters
        ----------
        least_s
            Least seconds of the transfer: bytes that are still being computed cannot move faster.

        Returns
        -------
        Transfer
            A SimPy event, triggered when the last byte arrives.
        """
        alone_s = way.fluid_s * share
        fluid_s = max(alone_s, least_s)
        scale = share / fluid_s if fluid_s > 0.0 else 0.0
        # Rounded, so that bundles of the same proportions have the same number, whatever their size.
        usage: dict[Hashable, float] = {link: round(busy_s * scale, 12) for link, busy_s in way.busy_s.items()}
        weight = float(f"{fluid_s / (way.busiest_bytes * share):.12g}") if alone_s > 0.0 else 1.0
        number = next(self._following)
        if fluid_s == alone_s:
            number = self._numbers.setdefault((weight, *usage.items()), number)
        channel = Channel(number, way.latency_s, fluid_s, usage, weight, (), "", parties=1)
        return self._fluid.arrive(channel, 0)


class Wires(SharedLinks):
    """The links of clusters on a clock.

    The messages of one :meth:`send` progress at the same share of their uncontended rate, so that they end together.

    Parameters
    ----------
    env
        The clock.
    clusters
        One or several clusters. Messages between two clusters go from NIC to NIC; the network between their fabrics
        does not limit them.

    Raises
    ------
    InputError
        There are several clusters, and one has no fabric and so no NICs.

    Notes
    -----
    Messages are one-sided RDMA writes, not those of a collective library. A route's latency counts once. Bytes move at
    the fabric's efficiency between nodes, and at that of point-to-point messages inside a node.
    """

    def __init__(self, env: simpy.Environment, clusters: Sequence[Cluster]) -> None:
        for cluster in clusters:
            if len(clusters) > 1 and cluster.fabric is None:
                raise InputError(
                    f"{cluster.name} has no fabric to reach other clusters by; give its cluster a `fabric`"
                )
        super().__init__(env)
        self.clusters = tuple(clusters)

    def bundle(self, messages: Iterable[Message]) -> MessageBundle:
        """Links and uncontended time of messages that are sent together."""
        busy_s: dict[Link, float] = {}
        carried: dict[Link, float] = {}
        latency_s = 0.0
        for source, destination, size_bytes in messages:
            if source == destination or size_bytes <= 0.0:
                continue
            route = self._route(source, destination)
            latency_s = max(latency_s, sum(float(self.clusters[c].latency_s[link]) for c, link in route))
            for link in route:
                busy_s[link] = busy_s.get(link, 0.0) + size_bytes / self._rate(link)
                carried[link] = carried.get(link, 0.0) + size_bytes
        return MessageBundle(busy_s, carried, latency_s)

    def _route(self, source: GpuPlace, destination: GpuPlace) -> list[Link]:
        if source.cluster == destination.cluster:
            cluster = self.clusters[source.cluster]
            return [(source.cluster, link) for link in cluster.route(source.gpu, destination.gpu)]
        return [*self._outside(source, 0), *self._outside(destination, 1)]

    def _outside(self, place: GpuPlace, direction: int) -> list[Link]:
        """Links between a GPU and its port on the fabric, up (0) or down (1), in order of the route."""
        layout = self.clusters[place.cluster].layout
        host = layout.host_start + 2 * place.gpu + direction
        nic = layout.nic_start + 2 * int(layout.nic_of(np.array(place.gpu))) * layout.nic_lanes + direction
        links = [(place.cluster, host), (place.cluster, nic)]
        return links if direction == 0 else links[::-1]

    def _rate(self, link: Link) -> float:
        """Bytes/s that messages reach on a link without contention."""
        cluster = self.clusters[link[0]]
        inside = link[1] < cluster.layout.host_start
        efficiencies = cluster.node.collectives.efficiency
        reached = (
            efficiencies.get("point_to_point", efficiencies["default"]).value if inside else fabric_efficiency(cluster)
        )
        return float(cluster.bandwidth_bytes_per_s[link[1]]) * reached


def fabric_efficiency(cluster: Cluster) -> float:
    """Share of its links' bandwidth that a cluster's fabric reaches; 1 without a fabric."""
    return cluster.fabric.efficiency.value if cluster.fabric else 1.0
