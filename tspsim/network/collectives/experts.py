"""Dispatch and combine of expert-parallel libraries (DeepEP, mori): tokens to their experts, and back.

    t    = base + doubling·log2(1 + experts/8) + node·sqrt(m−1) + notice·log2(m) + move + tokens·topk·per_copy·24/SM
    move = (inside³ + outside³)^(1/3)

There are m nodes of g ranks, n = m·g. A library sends each token once to every rank that holds one of its experts (and
forwards it inside the node from the rank on the sender's rail), or once to every expert. k random experts lie on D(N,
k) = N·(1 − (1 − 1/N)^k) of N ranks or nodes. With r bytes a token, a rank moves

    inside   tokens·r·D(n, k)·(g−1)/g      or tokens·r·k·(g−1)/n      over ((SM·q)^−3 + (B·e)^−3)^(−1/3) bytes/s
    outside  tokens·r·D(m, k)·(m−1)/m      or tokens·r·k·(m−1)/m      over its share of the NICs at theirs

where q is a multiprocessor's rate. A library whose multiprocessors hand tokens to the NICs in turn takes no less than
tokens·r·D(m, k)/(SM·q_sent) for a move, its own node among the m. The time outside is multiplied by
1 + loss·(min(max(m, 4), 8) − 4)/4: it grows from 4 nodes to 8, the most that were measured. docs/collective-models.md
has the study.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...program import MULTIPROCESSORS, ExpertExchange
from ..kinds import ALL_TO_ALL, CollectiveKind
from . import direct
from .algorithm import ALGORITHMS, AlgorithmCandidate, CollectiveAlgorithm, floor_and_stretch, inside_bytes_per_s
from .exchange import reached
from .schedule import Group, Schedule, beside, pipelined, power_sum, scaled

if TYPE_CHECKING:
    from ..calibration import ExpertCurve, TransferSpread

#: Exchange of an all-to-all that only states its bytes: 7,168 elements a token, dispatched in fp8 with a scale a 128,
#: combined in bf16; 8 of 256 experts (DeepSeek-V3).
TYPICAL: Mapping[str, ExpertExchange] = MappingProxyType(
    {"dispatch": ExpertExchange(1.0, 7168 * (1.0 + 4.0 / 128.0)), "combine": ExpertExchange(1.0, 7168 * 2.0)}
)


#: Nodes above which a fabric's loss grows, and nodes of the largest measured group.
FREE_NODES, MEASURED_NODES = 4, 8


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes that a rank sends for one byte of ``size_bytes``: to peers in its node, and over the NICs."""

    inside: float
    outside: float


def copies(curve: ExpertCurve, exchange: ExpertExchange, ranks: int) -> float:
    """Copies of a token that its rank sends, one to itself included: ``size_bytes`` = tokens · bytes · copies."""
    return reached(exchange, ranks) if curve.copies == "rank" else float(exchange.topk)


def volume(curve: ExpertCurve, exchange: ExpertExchange, nodes: int, per_node: int) -> Volume:
    """Shares of ``size_bytes`` that leave the rank inside its node, and that leave the node."""
    ranks = nodes * per_node
    if curve.copies == "expert":
        return Volume((per_node - 1) / ranks, (nodes - 1) / nodes)
    crossing = reached(exchange, nodes) / reached(exchange, ranks)
    return Volume((per_node - 1) / per_node, crossing * (nodes - 1) / nodes)


def moved(group: Group, sent: Volume) -> Schedule:
    """Schedule of an exchange in which every rank sends these bytes, evenly over its peers."""
    nodes, per_node = len(group.members), len(group.members[0])
    parts = []
    if per_node > 1:
        inside = beside(
            direct.build(Group(group.cluster, gpus), ALL_TO_ALL)[0] for gpus in group.members
        )  # of a byte, (g − 1)/g leaves the rank
        parts.append(scaled(inside, sent.inside * per_node / (per_node - 1)))
    if nodes > 1:
        rails = [Group(group.cluster, tuple(gpus[i] for gpus in group.members)) for i in range(per_node)]
        outside = beside(direct.build(rail, ALL_TO_ALL)[0] for rail in rails)
        parts.append(scaled(outside, sent.outside * nodes / (nodes - 1)))
    return pipelined(parts, "direct")


@dataclass(frozen=True, slots=True)
class ExchangeCost:
    """Time of one phase for one group; ``size_bytes`` counts all copies of a rank's tokens.

    ``inside_bytes_per_s`` is the rate of a rank's links to its peers, and ``nic_bytes_per_s`` its share of the NICs.
    ``floor_s`` is the seconds a byte on the slowest link, ``stretch`` (≥ 1) its ratio to that at specified bandwidths.
    """

    curve: ExpertCurve
    exchange: ExpertExchange
    nodes: int
    per_node: int
    inside_bytes_per_s: float
    nic_bytes_per_s: float
    floor_s: float
    stretch: float = 1.0

    @property
    def spread(self) -> TransferSpread:
        return self.curve.spread

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """Uncontended (latency, fluid part) in seconds for ``size_bytes`` of all copies of a rank's tokens."""
        curve, exchange = self.curve, self.exchange
        sent = volume(curve, exchange, self.nodes, self.per_node)
        tokens = size_bytes / (exchange.token_bytes * copies(curve, exchange, self.nodes * self.per_node))
        rates = [self.inside_bytes_per_s * curve.efficiency]
        if curve.per_multiprocessor is not None:
            rates.append(exchange.multiprocessors * curve.per_multiprocessor)
        inside = size_bytes * sent.inside / power_sum(rates, -3.0)
        crowd = min(max(self.nodes, FREE_NODES), MEASURED_NODES) - FREE_NODES
        loss = 1.0 + curve.fabric_loss * crowd / (MEASURED_NODES - FREE_NODES)
        outside = size_bytes * sent.outside / (self.nic_bytes_per_s * curve.fabric_efficiency) * loss
        starting = curve.base + curve.doubling * math.log2(1.0 + exchange.experts / 8.0)
        starting += curve.node * math.sqrt(self.nodes - 1) + exchange.notice_s * math.log2(self.nodes)
        handling = tokens * exchange.topk * curve.per_copy * MULTIPROCESSORS / exchange.multiprocessors
        moving = power_sum((inside, outside), 3.0)
        if curve.sent_per_multiprocessor is not None:
            to_nodes = size_bytes * sent.outside * self.nodes / max(1, self.nodes - 1)
            moving = max(moving, to_nodes / (exchange.multiprocessors * curve.sent_per_multiprocessor))
        moving *= self.stretch
        return starting + handling, max(moving, size_bytes * self.floor_s)


def expert_curve(group: Group, phase: str, mode: str, library: str | None) -> ExpertCurve | None:
    """The node's curve of a phase of an expert exchange: the library's, else the first; None: none was measured."""
    nodes = "one" if len(group.members) == 1 else "several"
    fitting = [
        curve
        for curve in group.cluster.node.collectives.experts
        if (curve.phase, curve.mode, curve.nodes) == (phase, mode, nodes)
    ]
    own = [curve for curve in fitting if curve.library == library]
    return next(iter(own or fitting), None)


def exchange_candidate(group: Group, curve: ExpertCurve, exchange: ExpertExchange, name: str) -> AlgorithmCandidate:
    """Candidate of one phase of an expert exchange, on a group with equally many ranks in every node."""
    cluster, nodes, per_node = group.cluster, len(group.members), len(group.members[0])
    sent = volume(curve, exchange, nodes, per_node)
    schedule = moved(group, sent)
    floor, stretch = floor_and_stretch(group, schedule, lambda sound: moved(sound, sent))
    inside = inside_bytes_per_s(group)
    fabric = cluster.joining(group.ranks)
    nic = fabric.nic.bandwidth.value * cluster.node.nics / cluster.gpus_per_node if fabric is not None else inside
    return AlgorithmCandidate(
        name, schedule, ExchangeCost(curve, exchange, nodes, per_node, inside, nic, floor, stretch)
    )


@dataclass(frozen=True)
class ExpertPhase(CollectiveAlgorithm):
    """One phase of an expert-parallel library, as an algorithm of an all-to-all.

    Its loads depend on the exchange, and its time is a measured curve. A node without such a curve runs its collective
    library's all-to-all.
    """

    phase: str = "dispatch"
    mode: str = "normal"

    def candidates(
        self, group: Group, kind: CollectiveKind, library: str | None, exchange: ExpertExchange | None
    ) -> list[AlgorithmCandidate]:
        curve = expert_curve(group, self.phase, self.mode, library)
        if curve is None or kind.name not in self.kinds or not group.regular:
            return []
        return [exchange_candidate(group, curve, exchange or TYPICAL[self.phase], self.name)]

    def missing(self, group: Group, library: str | None) -> bool:
        return expert_curve(group, self.phase, self.mode, library) is None

    def size_bytes(self, group: Group, stated: float, library: str | None, exchange: ExpertExchange) -> float:
        curve = expert_curve(group, self.phase, self.mode, library)
        if curve is None or not group.regular:
            return stated
        return exchange.tokens * exchange.token_bytes * copies(curve, exchange, group.size)


for _mode, _suffix in (("normal", ""), ("low_latency", "_low_latency")):
    for _phase, _what in (("dispatch", "tokens to the ranks of their experts"), ("combine", "and back, summed")):
        ALGORITHMS.register(
            ExpertPhase(_phase + _suffix, (ALL_TO_ALL.name,), _what, lambda group, kind: [], phase=_phase, mode=_mode)
        )
