"""Measured transfers: the operation, the cluster, and the time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from ..base.errors import InputError
from ..network.cluster import Cluster
from ..network.collectives.algorithm import AlgorithmCandidate
from ..network.collectives.experts import copies, exchange_candidate, expert_curve
from ..network.collectives.library import candidates_of
from ..network.collectives.schedule import Group
from ..network.kinds import KINDS
from ..program import ExpertExchange


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
        """Bytes that its cost depends on."""

    @property
    def shape(self) -> tuple[object, ...]:
        """Key of the split into used and held-out rows: the same for every GPU and library."""

    @property
    def question(self) -> Hashable:
        """Rows of one cluster with the same question have the same candidates."""

    def ways(self, cluster: Cluster) -> tuple[AlgorithmCandidate, ...]:
        """The candidates of a cluster's tuner."""


@dataclass(frozen=True)
class MeasuredCollective:
    """One measured collective, ``size_bytes`` as nccl-tests counts them.

    ``library`` is a version or launch mode, or a serving engine's kernels. A version that the node's file lacks becomes
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
        return candidates_of(Group(cluster, tuple(range(self.ranks))), KINDS.get(self.kind), None, self.library)


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
        """With library and bytes from the node's curve. Raises InputError where it has none."""
        group = Group(cluster, tuple(range(ranks)))
        curve = expert_curve(group, phase, mode, None)
        if curve is None or not group.regular:
            raise InputError(f"{cluster.node.name} has no {mode} {phase} of experts on these ranks")
        size_bytes = exchange.tokens * exchange.token_bytes * copies(curve, exchange, ranks)
        return cls(cluster, phase, mode, ranks, exchange, seconds, curve.library, size_bytes)

    @property
    def shape(self) -> tuple[object, ...]:
        exchange = self.exchange
        sizes = (exchange.tokens, exchange.token_bytes, exchange.experts, exchange.topk, exchange.multiprocessors)
        return self.phase, self.mode, self.ranks, *(float(size) for size in sizes)

    @property
    def question(self) -> Hashable:
        return self.phase, self.mode, self.ranks, self.exchange._replace(tokens=1.0)

    def ways(self, cluster: Cluster) -> tuple[AlgorithmCandidate, ...]:
        group = Group(cluster, tuple(range(self.ranks)))
        curve = expert_curve(group, self.phase, self.mode, None)
        assert curve is not None
        return (exchange_candidate(group, curve, self.exchange._replace(tokens=1.0), self.phase),)
