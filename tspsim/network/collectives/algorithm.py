"""What a collective algorithm is, and what its schedules take: measured curves where there are any, else links.

Collectives inside a node, as measured: one curve a family of algorithms, three regimes of a library's protocols.

    t_p = L·(base_p + s·hop_p) + (V/(B·e_p) + S/(n·own))/W      p = LL, LL128, Simple
    t_1 additionally + L·growth·log2(1 + S/4 KiB); LL has no own chunk to pass over, and its W is one
    t   = (t_1^−12 + t_2^−12 + t_3^−12)^(−1/12)

n ranks, S bytes as nccl-tests counts them, V = S·(n−1)/n (an all-reduce twice that) passed on by a GPU whose links
carry B bytes/s together, s = n − 1 steps (an all-reduce twice that); L and W are the library's factors. A tuner takes
the cheapest protocol; the power 12 rounds the corners as measured. Where it was seen to change to Simple at a size of
its own, that protocol alone counts from there on, and the others win below it by no more than they can. The bandwidth
term of the last regime is what contention stretches; the rest is latency. docs/collective-models.md has the study.

What a library's tuner may choose: an algorithm's schedule, and how long it takes by size.

The time is a measured form where the node or fabric has one (below, :mod:`.between`,
:mod:`.custom_all_reduce`, :mod:`.experts`), otherwise a line for each protocol of the library.

What a collective algorithm is to everybody else: an object that registers itself.

::

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

SHARPNESS = 12.0


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """A curve for one kind and number of ranks.

    ``latency`` and ``bandwidth`` are the library's factors, ``floor_s`` the seconds a byte of S takes on the slowest
    link at its full bandwidth, and ``stretch`` (≥ 1) how much slower that is than as specified.
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
        """(latency, fluid part) in seconds of a collective of ``size_bytes``."""
        curve = self.curve
        last = self._moving(2, size_bytes)
        if curve.switch is not None:
            # Beyond the groups that were measured it stays where it was last seen: carried on, a larger group would
            # leave the costly protocol that a smaller one is held to, and be faster.
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


# --- what a library's tuner may choose ------------------------------------------------------------------------

#: A group's schedules for one byte of a kind of collective; none: it cannot run there.
Builder = Callable[[Group, CollectiveKind], list[Schedule]]
#: A group's seconds for a schedule of a kind.
Costing = Callable[[Group, CollectiveKind, Schedule], "CollectiveCost"]


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


# --- what a collective algorithm is to everybody else ---------------------------------------------------------


@dataclass(frozen=True)
class CollectiveAlgorithm:
    """One algorithm.

    Attributes
    ----------
    name
        As plans, node files and reports write it.
    kinds
        Names of the kinds it can run.
    summary
        What it is, in a line.
    build
        A group's schedules for one byte of a kind, of which the cheapest is taken; none: it cannot run there.
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
        """Those of a kind; none of one that is not among its kinds."""
        return self.build(group, kind) if kind.name in self.kinds else []

    def choices(
        self, group: Group, kind: CollectiveKind, library: str | None, exchange: ExpertExchange | None
    ) -> list[AlgorithmCandidate]:
        """Its schedules, each with its own or its measured time, or under every protocol."""
        if self.cost is not None:
            return [
                AlgorithmCandidate(self.name, schedule, self.cost(group, kind, schedule), self.apart)
                for schedule in self.schedules(group, kind)
            ]
        return [
            choice
            for schedule in self.schedules(group, kind)
            for choice in timed(group, kind, self.name, schedule, self.build, library)
        ]

    def missing(self, group: Group, library: str | None) -> bool:
        """Whether the node has no such thing at all, so that its library's own choice takes its place."""
        return False

    def size_bytes(self, group: Group, stated: float, library: str | None, exchange: ExpertExchange) -> float:
        """What ``size_bytes`` is when ``exchange`` is what is moved."""
        return stated


#: Every algorithm that a caller may name.
ALGORITHMS: Registry[CollectiveAlgorithm] = Registry("algorithm", "tspsim.collective_algorithms", CollectiveAlgorithm)
