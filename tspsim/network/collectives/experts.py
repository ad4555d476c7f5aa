"""Tokens to their experts and back: the dispatch and combine of expert-parallel libraries (DeepEP, mori).

    t    = base + doubling·log2(1 + experts/8) + node·sqrt(m−1) + move + tokens·topk·per_copy·24/SM
    move = (inside³ + outside³)^(1/3)

m nodes of g ranks, n = m·g. A library sends each token once to every rank that holds one of its experts, forwarding
inside the node from the rank of the sender's rail; or once to every expert. With D(N, k) = N·(1 − (1 − 1/N)^k) of N
places that k experts touch, and r bytes a token, a rank moves

    inside   tokens·r·D(n, k)·(g−1)/g      or tokens·r·k·(g−1)/n      over ((SM·q)^−3 + (B·e)^−3)^(−1/3) bytes/s
    outside  tokens·r·D(m, k)·(m−1)/m      or tokens·r·k·(m−1)/m      over its share of the NICs at theirs

with q a multiprocessor's rate, and outside longer by 1 + loss·max(m−4, 0)/4. docs/collective-models.md has the study.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from . import direct
from .schedule import Group, Schedule, beside, pipelined, power_sum, scaled

if TYPE_CHECKING:
    from ..calibration import ExpertCurve, Spread

#: Algorithms of an all-to-all that stand for an expert-parallel library: phase and mode.
PHASES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "dispatch": ("dispatch", "normal"),
        "combine": ("combine", "normal"),
        "dispatch_low_latency": ("dispatch", "low_latency"),
        "combine_low_latency": ("combine", "low_latency"),
    }
)
#: Multiprocessors whose copies ``per_copy`` counts, and that a library takes unless told.
MULTIPROCESSORS = 24


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """What the ranks of an expert-parallel group give each other.

    Parameters
    ----------
    tokens
        Tokens a rank holds.
    token_bytes
        Bytes of one on the way, with its scales.
    experts, topk
        Experts of the layer, and how many a token goes to.
    multiprocessors
        Given to the kernels.
    groups, kept_groups
        A token's experts are in ``kept_groups`` of as many groups of neighbouring experts (DeepSeek-V3, §2.1.2).
    """

    tokens: float
    token_bytes: float
    experts: int = 256
    topk: int = 8
    multiprocessors: int = MULTIPROCESSORS
    groups: int = 1
    kept_groups: int = 1

    def touched(self, places: int) -> float:
        """Places among ``places``, neighbouring experts in each, that a token's experts lie in."""
        return touched(places, self.topk, self.groups, self.kept_groups)


#: What an all-to-all that states bytes alone is taken for: 7,168 values a token, dispatched in fp8 with a scale for
#: each 128, combined in bf16; eight of 256 experts (DeepSeek-V3).
TYPICAL: Mapping[str, ExpertExchange] = MappingProxyType(
    {
        "dispatch": ExpertExchange(1.0, 7168 * (1.0 + 4.0 / 128.0)),
        "combine": ExpertExchange(1.0, 7168 * 2.0),
    }
)


def touched(places: int, topk: int, groups: int = 1, kept_groups: int = 1) -> float:
    """Places among ``places`` that a token's experts lie in, each equally likely.

    >>> touched(8, 1), round(touched(8, 8), 2)
    (1.0, 5.25)
    """
    if groups == 1:
        return float(places * (1.0 - (1.0 - 1.0 / places) ** topk))
    if places >= groups:  # the places of the kept groups alone
        reached = places * kept_groups / groups
        return reached * (1.0 - (1.0 - 1.0 / reached) ** topk)
    # A place holds several groups, j of them kept with the hypergeometric probability.
    inside = groups // places
    ways = math.comb(groups, kept_groups)
    missed = 0.0
    for j in range(min(inside, kept_groups) + 1):
        likely = math.comb(inside, j) * math.comb(groups - inside, kept_groups - j) / ways
        missed += likely * (1.0 - j / kept_groups) ** topk
    return places * (1.0 - missed)


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes that a rank sends, a byte of ``size_bytes``: to peers of its node, and over the NICs."""

    inside: float
    outside: float


def copies(curve: ExpertCurve, exchange: ExpertExchange, ranks: int) -> float:
    """Copies of a token that its rank hands out, to itself included: ``size_bytes`` = tokens · bytes · copies."""
    return exchange.touched(ranks) if curve.copies == "rank" else float(exchange.topk)


def volume(curve: ExpertCurve, exchange: ExpertExchange, nodes: int, per_node: int) -> Volume:
    """What of them leaves the rank, and the node."""
    ranks = nodes * per_node
    if curve.copies == "expert":
        return Volume((per_node - 1) / ranks, (nodes - 1) / nodes)
    crossing = exchange.touched(nodes) / exchange.touched(ranks)
    return Volume((per_node - 1) / per_node, crossing * (nodes - 1) / nodes)


def build(group: Group, kind: str) -> list[Schedule]:
    """None: an exchange's loads depend on what is exchanged, which :func:`moved` is told."""
    return []


def moved(group: Group, sent: Volume) -> Schedule:
    """The loads of an exchange in which every rank sends these bytes, evenly to its peers."""
    nodes, per_node = len(group.members), len(group.members[0])
    parts = []
    if per_node > 1:
        inside = beside(
            direct.build(Group(group.cluster, gpus), "all_to_all")[0] for gpus in group.members
        )  # of a byte, (g − 1)/g leaves the rank
        parts.append(scaled(inside, sent.inside * per_node / (per_node - 1)))
    if nodes > 1:
        rails = [Group(group.cluster, tuple(gpus[i] for gpus in group.members)) for i in range(per_node)]
        outside = beside(direct.build(rail, "all_to_all")[0] for rail in rails)
        parts.append(scaled(outside, sent.outside * nodes / (nodes - 1)))
    return pipelined(parts, "direct")


@dataclass(frozen=True, slots=True)
class Exchange:
    """The time of one phase for one group; ``size_bytes`` follow the tokens.

    ``inside_bytes_per_s`` are a rank's links to its peers, ``nic_bytes_per_s`` its share of the NICs, ``floor_s`` the
    seconds a byte takes on the slowest link, ``stretch`` (≥ 1) how much slower that is than as specified.
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
    def spread(self) -> Spread:
        return self.curve.spread

    def alone(self, size_bytes: float) -> tuple[float, float]:
        """(latency, fluid part) in seconds where all copies of a rank's tokens have ``size_bytes``."""
        curve, exchange = self.curve, self.exchange
        sent = volume(curve, exchange, self.nodes, self.per_node)
        tokens = size_bytes / (exchange.token_bytes * copies(curve, exchange, self.nodes * self.per_node))
        rates = [self.inside_bytes_per_s * curve.efficiency]
        if curve.per_multiprocessor is not None:
            rates.append(exchange.multiprocessors * curve.per_multiprocessor)
        inside = size_bytes * sent.inside / power_sum(rates, -3.0)
        loss = 1.0 + curve.fabric_loss * max(self.nodes - 4, 0) / 4.0
        outside = size_bytes * sent.outside / (self.nic_bytes_per_s * curve.fabric_efficiency) * loss
        starting = curve.base + curve.doubling * math.log2(1.0 + exchange.experts / 8.0)
        starting += curve.node * math.sqrt(self.nodes - 1)
        handling = tokens * exchange.topk * curve.per_copy * MULTIPROCESSORS / exchange.multiprocessors
        moving = power_sum((inside, outside), 3.0) * self.stretch
        return starting + handling, max(moving, size_bytes * self.floor_s)
