"""Exchanges between replicas, whatever the schedule: the links near a rank that they occupy.

A layout becomes a plan with a ZeRO stage and the group of replicas that shards state. The choice leaves kernels and
their exchanges unchanged and adds reductions of gradients and gathers of weights. A layer's are the same in every
schedule, so all choices for all layouts with equal degrees are bounded together, from a program of these collectives
alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from ...base.quick import replace
from ...parallel import Job, scheme_of
from ...parallel.builder import ProgramBuilder
from ...parallel.state.data import gather_weights, reduce_layer
from ...parallel.state.owned import OwnedParameters
from ...program.instructions import Mesh
from ...steps import BACKWARD, FORWARD, Task
from .groups import Floats, RankGroups
from .kernels import MIDDLE
from .parts import TaskParts


class Division(NamedTuple):
    """A ZeRO stage, the number of ranks that shard state (None: all that can), and the mesh with their groups."""

    zero: int
    shard_group: int | None
    mesh: Mesh


class ReplicaExchanges:
    """Reductions of gradients and gathers of weights, computed once per division."""

    def __init__(self, parts: TaskParts) -> None:
        self.parts = parts
        self._known: dict[Hashable, Floats] = {}

    def of_layers_s(self, job: Job, divisions: Sequence[Division]) -> Floats:
        """Seconds per step that these exchanges of all layers occupy links near a rank, shape (divisions, links)."""
        plan = job.plan
        degrees = (*plan.degrees.values(), plan.rail_axes, plan.expert_shards, plan.expert_owners)
        alike = (plan.scheme, degrees, job.micro_batches)
        key = (*alike, tuple([division[:2] for division in divisions]))
        if key not in self._known:
            self._known[key] = np.array([self._of_layers_s(job, division, alike) for division in divisions])
        return self._known[key]

    def _of_layers_s(self, job: Job, division: Division, alike: Hashable) -> Floats:
        zero, group, mesh = division
        if job.micro_batches == 1 and zero == 2:  # equal to ZeRO 1
            zero = 1
        key = (alike, zero, group)
        if key not in self._known:
            divided = replace(job, plan=replace(job.plan, zero=zero, shard_group=group))
            self._known[key] = self._written(divided, RankGroups(mesh, 0, self.parts.cluster))
        return self._known[key]

    def _written(self, job: Job, groups: RankGroups) -> Floats:
        share = OwnedParameters(job, scheme_of(job.plan).residency.weight_shards(job))
        final, blocks = job.micro_batches - 1, job.model.blocks
        occupied = np.zeros(groups.near)
        # The first and the last micro-batch of a step, and those between; a single one is both.
        numbers = [(0, 1), (MIDDLE, max(0, final - 1))] + ([(final, 1)] if final else [])
        for block in dict.fromkeys(blocks):
            held = share.trained_layer(block)
            for number, times in numbers:
                if times:
                    builder = ProgramBuilder("replicas", job)
                    gather_weights(builder, job, share, block, Task(FORWARD, number, 0))
                    gather_weights(builder, job, share, block, Task(BACKWARD, number, 0))
                    reduce_layer(builder, job, held, Task(BACKWARD, number, 0))
                    moved = self.parts.occupied_s(builder.program(), groups)
                    occupied += blocks.count(block) * times * moved
        return occupied
