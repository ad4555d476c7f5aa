"""Collectives by copy engines: every GPU's DMA engines send its part to every peer, without compute units.

A node's file states the bandwidth of an engine on one link and the latency of a copy (``copy_engine``). Copies do not
reduce: a sum is an exchange of partial results and a separate kernel. Kernels and copies do not slow each other down.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..kinds import ALL_GATHER, ALL_TO_ALL, CollectiveKind
from . import direct
from .algorithm import ALGORITHMS, AlgorithmCandidate, CollectiveAlgorithm, ProtocolLine
from .exchange import ExpertExchange
from .schedule import Group, Schedule


def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """One step inside a node; a slow link slows a copy by its factor."""
    engine, cluster = group.cluster.node.copy_engine, group.cluster
    if engine is None or len(group.members) > 1:
        return []
    schedules = direct.build(group, kind)
    as_built = cluster.sound.bandwidth_bytes_per_s
    slower = [as_built[schedule.links] / cluster.bandwidth_bytes_per_s[schedule.links] for schedule in schedules]
    return [
        replace(schedule, busy_s=np.asarray(schedule.load * factor / engine.bandwidth.value))
        for schedule, factor in zip(schedules, slower, strict=True)
    ]


@dataclass(frozen=True)
class Copies(CollectiveAlgorithm):
    """An algorithm whose cost is the copy engine's latency and bandwidth."""

    def candidates(
        self, group: Group, kind: CollectiveKind, library: str | None, exchange: ExpertExchange | None
    ) -> list[AlgorithmCandidate]:
        engine = group.cluster.node.copy_engine
        return [
            AlgorithmCandidate(
                self.name,
                schedule,
                ProtocolLine(engine.latency.value * schedule.node_steps, schedule.fluid_s),
                apart=True,
            )
            for schedule in self.schedules(group, kind)
            if engine is not None
        ]


ALGORITHM = ALGORITHMS.register(
    Copies(
        "copy_engines",
        (ALL_GATHER.name, ALL_TO_ALL.name),
        "copy engines send to every peer, without slowing kernels; on nodes with a copy_engine",
        build,
    )
)
