"""What a library's tuner may choose: an algorithm's schedule, and how long it takes by size.

The time is a measured form where the node or fabric has one (:mod:`.curves`, :mod:`.between`,
:mod:`.custom_all_reduce`, :mod:`.experts`), otherwise a line for each protocol of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...errors import InputError
from ...program import RING_SHIFT
from ..calibration import UNMEASURED, Factors
from . import direct, experts, multi_ring, ring, tree, two_level
from .between import across
from .curves import Measured
from .custom_all_reduce import Custom
from .experts import PHASES, TYPICAL, Exchange, ExpertExchange
from .schedule import Group, Schedule, busiest_s
from .traffic import Traffic

if TYPE_CHECKING:
    from ..calibration import Curve, ExpertCurve, Spread
    from ..cluster import Cluster

Builder = Callable[[Group, str], list[Schedule]]
#: Every algorithm a caller may name, and what builds its schedules (none: it cannot run there).
ALGORITHMS: Mapping[str, Builder] = MappingProxyType(
    {
        "ring": ring.build,
        "multi_ring": multi_ring.build,
        "direct": direct.build,
        "tree": tree.build,
        "in_switch": two_level.reduced_in_switch,
        "two_level": two_level.build,
        **dict.fromkeys(PHASES, experts.build),
    }
)


class Cost(Protocol):
    """Seconds by size, and how far off they may be."""

    @property
    def spread(self) -> Spread: ...

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Seconds of latency, and seconds that contention stretches."""
        ...


@dataclass(frozen=True, slots=True)
class Line:
    """One protocol: ``latency_s + size_bytes · fluid_s``."""

    latency_s: float
    fluid_s: float
    spread: Spread = UNMEASURED

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Seconds of latency, and seconds that contention stretches."""
        return self.latency_s, size_bytes * self.fluid_s


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to do it; ``schedule`` is for one byte."""

    algorithm: str
    schedule: Schedule
    cost: Cost


def considered(
    group: Group, kind: str, algorithm: str | None, library: str | None, exchange: ExpertExchange | None = None
) -> tuple[Choice, ...]:
    """All ways of the named algorithm, or of all that the library's tuner knows; ``exchange`` instead of the typical.

    Raises
    ------
    InputError
        The algorithm or library cannot do this on these ranks.
    """
    engine = _custom(group, kind, library) if algorithm is None else ()
    if engine:
        return engine
    node, library_of = group.cluster.node, group.cluster.node.collectives
    if algorithm is not None and algorithm in PHASES:
        phase, mode = PHASES[algorithm]
        found = expert_curve(group, phase, mode, library)
        if found is not None and kind == "all_to_all" and group.regular:
            return (exchange_choice(group, found, exchange or TYPICAL[phase], algorithm),)
        algorithm = None if found is None and kind == "all_to_all" else algorithm
    names = library_of.inside_node if len(group.members) == 1 else library_of.between_nodes
    choices = [
        choice
        for name in (getattr(names, kind) if algorithm is None else (algorithm,))
        for schedule in ALGORITHMS[name](group, kind)
        for choice in _ways(group, kind, name, schedule, library)
    ]
    if not choices:
        able = [name for name, build in ALGORITHMS.items() if name not in PHASES and build(group, kind)]
        refused = f"algorithm '{algorithm}'" if algorithm else f"no algorithm of {node.name}"
        raise InputError(f"{refused} cannot run {kind} on these {group.size} ranks; here: {', '.join(able)}")
    return tuple(choices)


def cheapest(choices: Sequence[Choice], size_bytes: float, shift: int) -> Traffic:
    """The choice that takes least for a size; ``shift`` is added to every link."""
    times = [choice.cost.alone(size_bytes) for choice in choices]
    index = min(range(len(choices)), key=lambda i: times[i][0] + times[i][1])
    best, (latency_s, fluid_s) = choices[index], times[index]
    return Traffic(
        best.algorithm,
        latency_s,
        fluid_s,
        tuple((best.schedule.links + np.int64(shift)).tolist()),
        tuple((best.schedule.load * size_bytes).tolist()),
        *best.cost.spread.factors(latency_s, fluid_s),
    )


def _ways(group: Group, kind: str, name: str, schedule: Schedule, library: str | None) -> list[Choice]:
    """A schedule with its measured time, or under every protocol."""
    collectives, n = group.cluster.node.collectives, group.size
    if schedule.net_steps and collectives.across is not None:
        fabric = group.cluster.fabric
        own = fabric.collectives if fabric is not None else None
        return [Choice(name, schedule, across(group.cluster, collectives.across, own, schedule))]
    curve = _curve(group, kind, name, library) if len(group.members) == 1 else None
    if curve is not None:
        factors = curve.libraries.get(library or "", Factors())
        floor, stretch = _slowest(group, schedule, lambda sound: ALGORITHMS[name](sound, kind)[0])
        bandwidth = _inside_bytes_per_s(group)
        measured = Measured(curve, kind, n, bandwidth, factors.latency, factors.bandwidth, floor, stretch)
        return [Choice(name, schedule, measured)]
    passed = {"all_reduce": 2 * (n - 1) / n, "broadcast": 1.0, RING_SHIFT: 1.0}.get(kind, (n - 1) / n)
    return lines(group.cluster, name, schedule, passed)


def lines(cluster: Cluster, name: str, schedule: Schedule, passed: float) -> list[Choice]:
    """A schedule under every protocol; ``passed`` is what a GPU sends on of each byte.

    Reduction in the switch has a latency of its own and moves whole messages: only the last protocol.
    """
    library = cluster.node.collectives
    if schedule.family == "in_switch":
        assert library.in_switch_latency is not None
        latency = library.in_switch_latency.value + schedule.net_steps * library.protocols[-1].ring.net_hop
        return [Choice(name, schedule, Line(latency, schedule.fluid_s))]
    choices = []
    for protocol in library.protocols:
        steps = protocol.tree if schedule.family == "tree" else protocol.ring
        latency = steps.base + schedule.node_steps * steps.hop + schedule.net_steps * steps.net_hop
        fluid = schedule.fluid_s / protocol.bandwidth_ratio
        cap = protocol.fabric_cap if schedule.net_steps else protocol.node_cap
        choices.append(Choice(name, schedule, Line(latency, fluid if cap is None else max(fluid, passed / cap))))
    return choices


def _curve(group: Group, kind: str, name: str, library: str | None) -> Curve | None:
    """The measured curve of an algorithm for this kind and number of ranks: the library's own, or the first."""
    fitting = [
        curve
        for curve in group.cluster.node.collectives.curves
        if name in curve.algorithms and kind in curve.kinds and curve.ranks[0] <= group.size
    ]
    own = [curve for curve in fitting if library in curve.libraries]
    return next(iter(own or fitting), None)


def _custom(group: Group, kind: str, library: str | None) -> tuple[Choice, ...]:
    """The all-reduce of the serving engine that ``library`` names, if it names one."""
    found = [each for each in group.cluster.node.collectives.custom_all_reduce if each.library == library]
    if not found:
        return ()
    if kind != "all_reduce" or len(group.members) > 1:
        raise InputError(f"library '{library}' knows nothing but all_reduce inside one node")
    schedule = direct.build(group, kind)[0]
    floor, stretch = _slowest(group, schedule, lambda sound: direct.build(sound, kind)[0])
    cost = Custom(found[0], group.size, _inside_bytes_per_s(group), floor, stretch)
    return (Choice(found[0].library.replace(" ", "_"), schedule, cost),)


def expert_curve(group: Group, phase: str, mode: str, library: str | None) -> ExpertCurve | None:
    """The node's parameters for a phase of an expert exchange; None where it has none."""
    nodes = "one" if len(group.members) == 1 else "several"
    fitting = [
        curve
        for curve in group.cluster.node.collectives.experts
        if (curve.phase, curve.mode, curve.nodes) == (phase, mode, nodes)
    ]
    own = [curve for curve in fitting if curve.library == library]
    return next(iter(own or fitting), None)


def exchange_choice(group: Group, curve: ExpertCurve, exchange: ExpertExchange, name: str) -> Choice:
    """One phase of an expert exchange on a group of as many ranks a node."""
    cluster, nodes, per_node = group.cluster, len(group.members), len(group.members[0])
    sent = experts.volume(curve, exchange, nodes, per_node)
    schedule = experts.moved(group, sent)
    floor, stretch = _slowest(group, schedule, lambda sound: experts.moved(sound, sent))
    inside = _inside_bytes_per_s(group)
    fabric = cluster.fabric
    nic = fabric.nic.bandwidth.value * cluster.node.nics / cluster.gpus_per_node if fabric is not None else inside
    return Choice(name, schedule, Exchange(curve, exchange, nodes, per_node, inside, nic, floor, stretch))


def _slowest(group: Group, schedule: Schedule, build: Callable[[Group], Schedule]) -> tuple[float, float]:
    """Seconds a byte on the slowest link, and how much longer that is than with every link as specified, as what was
    measured had them."""
    floor = busiest_s(group.cluster, schedule)
    if not group.cluster.factors:
        return floor, 1.0
    sound = replace(group, cluster=group.cluster.sound)
    return floor, max(1.0, floor / busiest_s(sound.cluster, build(sound)))


def _inside_bytes_per_s(group: Group) -> float:
    """Bytes/s of all links of a GPU to its peers in the group's nodes, one way: on a mesh those to them alone."""
    link = group.cluster.node.link
    every = float(link.bandwidth.value * link.per_gpu)
    if not group.mesh:
        return every
    return every * max(1, len(group.members[0]) - 1) / (group.cluster.gpus_per_node - 1)
