"""Contract of a collective algorithm, and the time of its schedules: a measured curve, or latency and bandwidth.

Measured collectives inside a node have one curve a family of algorithms, with three regimes for a library's protocols:

    t_p = L·(base_p + s·hop_p) + (V/(B·e_p) + S/(n·own))/W      p = LL, LL128, Simple
    t_1 additionally + L·growth·log2(1 + S/4 KiB); LL has no term of its own chunk, and W = 1
    t   = (t_1^−12 + t_2^−12 + t_3^−12)^(−1/12)

n ranks; S bytes as nccl-tests counts; V = S·(n−1)/n bytes that a GPU passes on (an all-reduce: twice that) over links
of B bytes/s together; s = n − 1 steps (an all-reduce: twice that); own: the rate at which a rank handles its own chunk;
L and W: the library's factors. A tuner takes the cheapest protocol; the power 12 fits the measured round corners. If
the library changes to Simple at a measured size, only Simple counts from there on, and below it Simple takes as long
as at that size. Contention stretches the bandwidth term of the last regime; the rest is latency.
docs/collective-models.md has the study.

Other measured forms are in :mod:`.between`, :mod:`.custom_all_reduce` and :mod:`.experts`. Without one, each protocol
of the library is a line in the size. A new algorithm registers itself::

    def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
        after = group.ranks[1:] + group.ranks[:1]
        return [scheduled(group, "ring", group.ranks, after, kind.passed_on(group.size), node_steps=group.size)]

    ALGORITHMS.register(CollectiveAlgorithm("mine", ("all_gather",), "one line for the table", build))

A plan then names it (``algorithms: {all_gather: mine}``), or a node's file lists it among those its library considers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ...base.registry import Registry
from ...program import ExpertExchange
from ..calibration import UNMEASURED, Factors
from ..kinds import CollectiveKind
from .between import across
from .schedule import Group, Schedule, busiest_s, power_sum
from .traffic import Traffic

if TYPE_CHECKING:
    from ..calibration import Curve, TransferSpread
    from ..cluster import Cluster

#: Power of the smooth minimum of the three regimes.
SHARPNESS = 12.0


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """A measured curve for one kind and number of ranks.

    ``latency`` and ``bandwidth`` are the library's factors. ``floor_s`` is the seconds a byte of S on the slowest link
    at its full bandwidth, and ``stretch`` (≥ 1) its ratio to the seconds with every link at its specified bandwidth.
    """

    curve: Curve
    kind: CollectiveKind
    ranks: int
    bandwidth_bytes_per_s: float
    latency: float
    bandwidth: float
    floor_s: float
    stretch: float = 1.0

    @property
    def spread(self) -> TransferSpread:
        return self.curve.spread if self.ranks <= self.curve.ranks[1] else self.curve.spread.wider()

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Uncontended (latency, fluid part) in seconds of a collective of ``size_bytes``."""
        curve = self.curve
        last = self._moving(2, size_bytes)
        if curve.switch is not None:
            # Beyond the measured groups the size of the change stays constant. Extrapolated, it would let a larger
            # group leave the slow protocol before a smaller one, and be faster than it.
            ranks = min(self.ranks, curve.ranks[1])
            switch = curve.switch * (ranks / 2.0) ** curve.switch_exponent
            simple = self._starting(2) + self._moving(2, max(size_bytes, switch))
            if size_bytes >= switch:
                return self._parts(simple, last, size_bytes)
        else:
            simple = self._starting(2) + last
        first = self._starting(0) + self._moving(0, size_bytes)
        first += self.latency * curve.growth * math.log2(1.0 + size_bytes / 4096.0)
        second = self._starting(1) + self._moving(1, size_bytes)
        return self._parts(power_sum((first, second, simple), -SHARPNESS), last, size_bytes)

    def _parts(self, total: float, last: float, size_bytes: float) -> tuple[float, float]:
        moving = min(last, total)
        return max(0.0, total - moving), max(moving * self.stretch, size_bytes * self.floor_s)

    def _starting(self, regime: int) -> float:
        steps = float(self.kind.passes) * (self.ranks - 1)
        return self.latency * (self.curve.base[regime] + steps * self.curve.hop[regime])

    def _moving(self, regime: int, size_bytes: float) -> float:
        passed = float(self.kind.passes) * size_bytes * (self.ranks - 1) / self.ranks
        moving = passed / (self.bandwidth_bytes_per_s * self.curve.efficiency[regime])
        if regime == 0:
            return moving
        own = size_bytes / self.ranks / self.curve.own if self.curve.own else 0.0
        return (moving + own) / self.bandwidth


# --- candidates of a library's tuner --------------------------------------------------------------------------

#: Builds a group's schedules for one byte of a kind of collective; empty: the algorithm cannot run there.
Builder = Callable[[Group, CollectiveKind], list[Schedule]]
#: A group's seconds for a schedule of a kind.
Costing = Callable[[Group, CollectiveKind, Schedule], "CollectiveCost"]


class CollectiveCost(Protocol):
    """Time of a collective by size, and its range."""

    @property
    def spread(self) -> TransferSpread: ...

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Uncontended (latency, fluid part) in seconds; contention stretches the fluid part."""


@dataclass(frozen=True, slots=True)
class ProtocolLine:
    """Time under one protocol: ``latency_s + size_bytes · fluid_s``."""

    latency_s: float
    fluid_s: float
    spread: TransferSpread = UNMEASURED

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Uncontended (latency, fluid part) in seconds."""
        return self.latency_s, size_bytes * self.fluid_s


@dataclass(frozen=True, slots=True)
class AlgorithmCandidate:
    """A schedule for one byte and its cost, among which a tuner takes the cheapest; ``apart``: copy engines run it."""

    algorithm: str
    schedule: Schedule
    cost: CollectiveCost
    apart: bool = False


def cheapest(candidates: Sequence[AlgorithmCandidate], size_bytes: float) -> Traffic:
    """Traffic of the candidate that is fastest for a size."""
    times = [candidate.cost.alone(size_bytes) for candidate in candidates]
    index = min(range(len(candidates)), key=lambda i: times[i][0] + times[i][1])
    best, (latency_s, fluid_s) = candidates[index], times[index]
    return Traffic(
        best.algorithm,
        latency_s,
        fluid_s,
        tuple(best.schedule.links.tolist()),
        tuple((best.schedule.load * size_bytes).tolist()),
        *best.cost.spread.factors(latency_s, fluid_s),
        best.apart,
    )


def priced_candidates(
    group: Group, kind: CollectiveKind, name: str, schedule: Schedule, build: Builder, library: str | None
) -> list[AlgorithmCandidate]:
    """Candidates of a schedule from ``build``: one with its measured time, else one for each protocol."""
    collectives = group.cluster.node.collectives
    if schedule.net_steps and collectives.across is not None:
        fabric = group.cluster.joining(group.ranks)
        own = fabric.collectives if fabric is not None else None
        return [AlgorithmCandidate(name, schedule, across(group.cluster, collectives.across, own, schedule))]
    curve = _curve(group, kind, name, library) if len(group.members) == 1 else None
    if curve is not None:
        factors = curve.libraries.get(library or "", Factors())
        floor, stretch = floor_and_stretch(group, schedule, lambda sound: build(sound, kind)[0])
        bandwidth = inside_bytes_per_s(group)
        measured = MeasuredCurve(curve, kind, group.size, bandwidth, factors.latency, factors.bandwidth, floor, stretch)
        return [AlgorithmCandidate(name, schedule, measured)]
    return protocol_candidates(group.cluster, name, schedule, kind.passed_on(group.size))


def protocol_candidates(cluster: Cluster, name: str, schedule: Schedule, passed: float) -> list[AlgorithmCandidate]:
    """Candidates of a schedule, one for each protocol; ``passed`` is the bytes that a GPU passes on for one byte.

    A reduction in the switch has its own latency, and moves whole messages: one candidate, by the last protocol.
    """
    library = cluster.node.collectives
    if schedule.family == "in_switch":
        assert library.in_switch_latency is not None
        latency = library.in_switch_latency.value + schedule.net_steps * library.protocols[-1].ring.net_hop
        return [AlgorithmCandidate(name, schedule, ProtocolLine(latency, schedule.fluid_s))]
    candidates = []
    for protocol in library.protocols:
        steps = protocol.tree if schedule.family == "tree" else protocol.ring
        latency = steps.base + schedule.node_steps * steps.hop + schedule.net_steps * steps.net_hop
        fluid = schedule.fluid_s / protocol.bandwidth_ratio
        cap = protocol.fabric_cap if schedule.net_steps else protocol.node_cap
        candidates.append(
            AlgorithmCandidate(
                name, schedule, ProtocolLine(latency, fluid if cap is None else max(fluid, passed / cap))
            )
        )
    return candidates


def _curve(group: Group, kind: CollectiveKind, name: str, library: str | None) -> Curve | None:
    """Measured curve of an algorithm for this kind and number of ranks: the library's, else the first; None: none."""
    fitting = [
        curve
        for curve in group.cluster.node.collectives.curves
        if name in curve.algorithms and kind.name in curve.kinds and curve.ranks[0] <= group.size
    ]
    own = [curve for curve in fitting if library in curve.libraries]
    return next(iter(own or fitting), None)


def floor_and_stretch(group: Group, schedule: Schedule, build: Callable[[Group], Schedule]) -> tuple[float, float]:
    """Seconds a byte on the slowest link, and its ratio (≥ 1) to that with every link at its specified bandwidth, at
    which collectives were measured."""
    floor = busiest_s(group.cluster, schedule)
    if not group.cluster.factors:
        return floor, 1.0
    sound = replace(group, cluster=group.cluster.sound)
    return floor, max(1.0, floor / busiest_s(sound.cluster, build(sound)))


def inside_bytes_per_s(group: Group) -> float:
    """Bytes/s of a GPU's links inside its node, in one direction; on a mesh only of links to peers in the group."""
    link = group.cluster.node.link
    every = float(link.bandwidth.value * link.per_gpu)
    if not group.mesh:
        return every
    return every * max(1, len(group.members[0]) - 1) / (group.cluster.gpus_per_node - 1)


# --- contract of an algorithm ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class CollectiveAlgorithm:
    """A collective algorithm.

    Attributes
    ----------
    name
        Name in plans, node files and reports.
    kinds
        Names of the kinds of collectives that it can run.
    summary
        One line for the catalogue.
    build
        Builds a group's schedules for one byte of a kind, of which the cheapest is taken; empty: it cannot run there.
    cost
        Its own time of a schedule; None: that of a measured curve, or of the library's protocols.
    apart
        It runs without compute units.
    needs
        The key of a node's file that it cannot run without; empty: none.
    """

    name: str
    kinds: tuple[str, ...]
    summary: str
    build: Builder
    cost: Costing | None = None
    apart: bool = False
    needs: str = ""

    def schedules(self, group: Group, kind: CollectiveKind) -> list[Schedule]:
        """Schedules for one byte of a kind; empty if the kind is not among :attr:`kinds`."""
        return self.build(group, kind) if kind.name in self.kinds else []

    def candidates(
        self, group: Group, kind: CollectiveKind, library: str | None, exchange: ExpertExchange | None
    ) -> list[AlgorithmCandidate]:
        """Candidates of its schedules, with its own or measured times, or one for each protocol."""
        if self.cost is not None:
            return [
                AlgorithmCandidate(self.name, schedule, self.cost(group, kind, schedule), self.apart)
                for schedule in self.schedules(group, kind)
            ]
        return [
            candidate
            for schedule in self.schedules(group, kind)
            for candidate in priced_candidates(group, kind, self.name, schedule, self.build, library)
        ]

    def missing(self, group: Group, library: str | None) -> bool:
        """Whether the node does not have this algorithm, so that its library's tuner selects another one."""
        return False

    def size_bytes(self, group: Group, stated: float, library: str | None, exchange: ExpertExchange) -> float:
        """``size_bytes`` of a collective that moves ``exchange``; ``stated`` if the algorithm does not depend on it."""
        return stated


#: Algorithms by name.
ALGORITHMS: Registry[CollectiveAlgorithm] = Registry("algorithm", "tspsim.collective_algorithms", CollectiveAlgorithm)
