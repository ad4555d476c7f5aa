"""Collectives by copy engines: every GPU's DMA engines send its part to every peer, without compute units.

A node's file states the bandwidth of an engine on one link and the latency of a copy (``copy_engine``). Copies do not
reduce: a sum is an exchange of partial results and a separate kernel. Kernels and copies do not slow each other down.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..kinds import ALL_GATHER, ALL_TO_ALL, CollectiveKind
from . import direct
from .algorithm import ALGORITHMS, CollectiveAlgorithm, ProtocolLine
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


def cost(group: Group, kind: CollectiveKind, schedule: Schedule) -> ProtocolLine:
    """The copy engine's latency and bandwidth."""
    engine = group.cluster.node.copy_engine
    assert engine is not None
    return ProtocolLine(engine.latency.value * schedule.node_steps, schedule.fluid_s)


COPY_ENGINES = ALGORITHMS.register(
    CollectiveAlgorithm(
        "copy_engines",
        (ALL_GATHER.name, ALL_TO_ALL.name),
        "copy engines send to every peer, without slowing kernels; on nodes with a copy_engine",
        build,
        cost,
        apart=True,
        needs="copy_engine",
    )
)
