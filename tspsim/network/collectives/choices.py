"""What a library's tuner may choose: an algorithm's schedule, and how long it takes by size.

The time is a measured form where the node or fabric has one (:mod:`.curves`, :mod:`.between`,
:mod:`.custom_all_reduce`, :mod:`.experts`), otherwise a line for each protocol of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ..calibration import UNMEASURED, Factors
from ..kinds import CollectiveKind
from .between import across
from .curves import MeasuredCurve
from .schedule import Group, Schedule, busiest_s
from .traffic import Traffic

if TYPE_CHECKING:
    from ..calibration import Curve, TransferSpread
    from ..cluster import Cluster

#: A group's schedules for one byte of a kind of collective; none: it cannot run there.
Builder = Callable[[Group, CollectiveKind], list[Schedule]]


class CollectiveCost(Protocol):
    """Seconds by size, and how far off they may be."""

    @property
    def spread(self) -> TransferSpread: ...

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Seconds of latency, and seconds that contention stretches."""


@dataclass(frozen=True, slots=True)
class ProtocolLine:
    """One protocol: ``latency_s + size_bytes · fluid_s``."""

    latency_s: float
    fluid_s: float
    spread: TransferSpread = UNMEASURED

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Seconds of latency, and seconds that contention stretches."""
        return self.latency_s, size_bytes * self.fluid_s


@dataclass(frozen=True, slots=True)
class AlgorithmCandidate:
    """One way to do it; ``schedule`` is for one byte; ``apart``: without compute units."""

    algorithm: str
    schedule: Schedule
    cost: CollectiveCost
    apart: bool = False


def cheapest(choices: Sequence[AlgorithmCandidate], size_bytes: float) -> Traffic:
    """The choice that takes least for a size."""
    times = [choice.cost.alone(size_bytes) for choice in choices]
    index = min(range(len(choices)), key=lambda i: times[i][0] + times[i][1])
    best, (latency_s, fluid_s) = choices[index], times[index]
    return Traffic(
        best.algorithm,
        latency_s,
        fluid_s,
        tuple(best.schedule.links.tolist()),
        tuple((best.schedule.load * size_bytes).tolist()),
        *best.cost.spread.factors(latency_s, fluid_s),
        best.apart,
    )


def timed(
    group: Group, kind: CollectiveKind, name: str, schedule: Schedule, build: Builder, library: str | None
) -> list[AlgorithmCandidate]:
    """A schedule that ``build`` made with its measured time, or under every protocol."""
    collectives = group.cluster.node.collectives
    if schedule.net_steps and collectives.across is not None:
        fabric = group.cluster.joining(group.ranks)
        own = fabric.collectives if fabric is not None else None
        return [AlgorithmCandidate(name, schedule, across(group.cluster, collectives.across, own, schedule))]
    curve = _curve(group, kind, name, library) if len(group.members) == 1 else None
    if curve is not None:
        factors = curve.libraries.get(library or "", Factors())
        floor, stretch = slowest(group, schedule, lambda sound: build(sound, kind)[0])
        bandwidth = inside_bytes_per_s(group)
        measured = MeasuredCurve(curve, kind, group.size, bandwidth, factors.latency, factors.bandwidth, floor, stretch)
        return [AlgorithmCandidate(name, schedule, measured)]
    return lines(group.cluster, name, schedule, kind.passed_on(group.size))


def lines(cluster: Cluster, name: str, schedule: Schedule, passed: float) -> list[AlgorithmCandidate]:
    """A schedule under every protocol; ``passed`` is what a GPU sends on of each byte.

    Reduction in the switch has a latency of its own and moves whole messages: only the last protocol.
    """
    library = cluster.node.collectives
    if schedule.family == "in_switch":
        assert library.in_switch_latency is not None
        latency = library.in_switch_latency.value + schedule.net_steps * library.protocols[-1].ring.net_hop
        return [AlgorithmCandidate(name, schedule, ProtocolLine(latency, schedule.fluid_s))]
    choices = []
    for protocol in library.protocols:
        steps = protocol.tree if schedule.family == "tree" else protocol.ring
        latency = steps.base + schedule.node_steps * steps.hop + schedule.net_steps * steps.net_hop
        fluid = schedule.fluid_s / protocol.bandwidth_ratio
        cap = protocol.fabric_cap if schedule.net_steps else protocol.node_cap
        choices.append(
            AlgorithmCandidate(
                name, schedule, ProtocolLine(latency, fluid if cap is None else max(fluid, passed / cap))
            )
        )
    return choices


def _curve(group: Group, kind: CollectiveKind, name: str, library: str | None) -> Curve | None:
    """The measured curve of an algorithm for this kind and number of ranks: the library's own, or the first."""
    fitting = [
        curve
        for curve in group.cluster.node.collectives.curves
        if name in curve.algorithms and kind.name in curve.kinds and curve.ranks[0] <= group.size
    ]
    own = [curve for curve in fitting if library in curve.libraries]
    return next(iter(own or fitting), None)


def slowest(group: Group, schedule: Schedule, build: Callable[[Group], Schedule]) -> tuple[float, float]:
    """Seconds a byte on the slowest link, and how much longer that is than with every link as specified, as what was
    measured had them."""
    floor = busiest_s(group.cluster, schedule)
    if not group.cluster.factors:
        return floor, 1.0
    sound = replace(group, cluster=group.cluster.sound)
    return floor, max(1.0, floor / busiest_s(sound.cluster, build(sound)))


def inside_bytes_per_s(group: Group) -> float:
    """Bytes/s of all links of a GPU to its peers in the group's nodes, one way: on a mesh those to them alone."""
    link = group.cluster.node.link
    every = float(link.bandwidth.value * link.per_gpu)
    if not group.mesh:
        return every
    return every * max(1, len(group.members[0]) - 1) / (group.cluster.gpus_per_node - 1)
