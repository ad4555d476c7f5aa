"""Copy engines: every GPU's DMA engines send its part to every peer, and no compute unit takes part.

A node's file states what such an engine reaches on one link, and what a copy takes before its first byte
(``copy_engine``). Nothing is added on the way: a sum is an exchange of partial results and a kernel of its own. Kernels
keep their rate beside copies, and copies theirs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..kinds import ALL_GATHER, ALL_TO_ALL, CollectiveKind
from . import direct
from .algorithm import ALGORITHMS, CollectiveAlgorithm, ProtocolLine
from .schedule import Group, Schedule


def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """One step inside a node; links that are slower than the node's own slow a copy as much."""
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
    """A line of the engine's own."""
    engine = group.cluster.node.copy_engine
    assert engine is not None
    return ProtocolLine(engine.latency.value * schedule.node_steps, schedule.fluid_s)


COPY_ENGINES = ALGORITHMS.register(
    CollectiveAlgorithm(
        "copy_engines",
        (ALL_GATHER.name, ALL_TO_ALL.name),
        "copy engines send to every peer, beside kernels that keep their rate; of nodes that state a copy_engine",
        build,
        cost,
        apart=True,
        needs="copy_engine",
    )
)
