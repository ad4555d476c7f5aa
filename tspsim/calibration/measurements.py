"""Measured transfers: what was asked of which cluster, and how long it took."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Protocol

from ..base.errors import InputError
from ..network.cluster import Cluster
from ..network.collectives.choices import AlgorithmCandidate
from ..network.collectives.exchange import ExpertExchange
from ..network.collectives.experts import copies, exchange_choice, expert_curve
from ..network.collectives.library import considered
from ..network.collectives.schedule import Group
from ..network.kinds import KINDS


class MeasuredTransfer(Protocol):
    """One measured transfer of the first ranks of a cluster."""

    @property
    def cluster(self) -> Cluster: ...
    @property
    def ranks(self) -> int: ...
    @property
    def library(self) -> str: ...
    @property
    def seconds(self) -> float: ...

    @property
    def size_bytes(self) -> float:
        """By which its cost goes."""

    @property
    def shape(self) -> tuple[object, ...]:
        """What decides whether a fit may use the row: the same for every GPU and library."""

    @property
    def question(self) -> Hashable:
        """Rows that share it on one cluster share their ways."""

    def ways(self, cluster: Cluster) -> tuple[AlgorithmCandidate, ...]:
        """What the tuner of a cluster could take."""


@dataclass(frozen=True)
class MeasuredCollective:
    """One measured collective, ``size_bytes`` as nccl-tests counts them.

    ``library`` is a version or launch mode, or a serving engine's kernels; a version that the node does not know is
    a new one.
    """

    cluster: Cluster
    kind: str
    ranks: int
    size_bytes: float
    library: str
    seconds: float

    @property
    def shape(self) -> tuple[object, ...]:
        return self.kind, self.ranks, int(self.size_bytes)

    @property
    def question(self) -> Hashable:
        return self.kind, self.ranks, self.library

    def ways(self, cluster: Cluster) -> tuple[AlgorithmCandidate, ...]:
        return considered(Group(cluster, tuple(range(self.ranks))), KINDS.get(self.kind), None, self.library)


@dataclass(frozen=True)
class MeasuredExchange:
    """One measured phase of an expert exchange; ``library`` and ``size_bytes`` are those of the node's curve for it."""

    cluster: Cluster
    phase: str
    mode: str
    ranks: int
    exchange: ExpertExchange
    seconds: float
    library: str
    size_bytes: float

    @classmethod
    def of(
        cls, cluster: Cluster, phase: str, mode: str, ranks: int, exchange: ExpertExchange, seconds: float
    ) -> MeasuredExchange:
        """With what the node's curve tells; raises InputError where it has none."""
        group = Group(cluster, tuple(range(ranks)))
        curve = expert_curve(group, phase, mode, None)
        if curve is None or not group.regular:
            raise InputError(f"{cluster.node.name} has no {mode} {phase} of experts on these ranks")
        size_bytes = exchange.tokens * exchange.token_bytes * copies(curve, exchange, ranks)
        return cls(cluster, phase, mode, ranks, exchange, seconds, curve.library, size_bytes)

    @property
    def shape(self) -> tuple[object, ...]:
        asked = self.exchange
        sizes = (asked.tokens, asked.token_bytes, asked.experts, asked.topk, asked.multiprocessors)
        return self.phase, self.mode, self.ranks, *(float(size) for size in sizes)

    @property
    def question(self) -> Hashable:
        return self.phase, self.mode, self.ranks, replace(self.exchange, tokens=1.0)

    def ways(self, cluster: Cluster) -> tuple[AlgorithmCandidate, ...]:
        group = Group(cluster, tuple(range(self.ranks)))
        curve = expert_curve(group, self.phase, self.mode, None)
        assert curve is not None
        return (exchange_choice(group, curve, replace(self.exchange, tokens=1.0), self.phase),)
