"""What an order of nodes costs, in closed form: cheap enough to be asked ten thousand times.

Of a pipeline of p stages that take c_s a micro-batch forward and back, with messages of x seconds one way between
neighbours, in the steady state a micro-batch takes

    t = max( max_s c_s , (Σ_s c_s + 2·Σ x) / p ),

for a stage gets its next gradient only after p micro-batches have gone to the end and back (Pipette's *hidden critical
path*, written as ``(p(f + b) + 2(p − 1)x)/p`` for equal stages; Yim et al. 2024, arXiv 2405.18093, as in the authors'
code). A step of G micro-batches takes G·t, what fills the pipeline, and what replicas exchange: bytes over the slowest
hop of a ring round the nodes of each group.

    T = G·t + Σ_s c_s·(p − 1)/p + Σ_axes max_groups bytes / slowest hop

Not in it: that replicas' sums hide beside kernels, trees, and transfers of different groups on one NIC. The simulation
that judges has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...network import KINDS, Cluster, between_nodes, collective
from ...parallel import Job, axes_of, build_mesh, scheme_of, write_program
from ...program import Collective, Compute, Instruction, Program, SendReceive
from ...program.mesh import Mesh
from ...step.costs import Costs
from ...step.question import Question

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MappingForm:
    """The closed form of one plan."""

    #: G.
    micro_batches: int
    #: c_s: seconds of every stage's kernels and of its transfers inside nodes, one micro-batch forward and back.
    stages_s: Floats
    #: Places of a pipeline's stages, shape (pipelines, stages): positions in the order of nodes.
    chains: Integers
    #: What one rank sends to the next stage.
    message_bytes: float
    #: Of every axis whose groups span nodes: places of each group's nodes, shape (groups, nodes), and the bytes that a
    #: rank receives along it.
    rings: tuple[tuple[Integers, float], ...]
    #: Bytes/s a GPU gets from node (row) to node (column) while all GPUs of both are at it; infinite on the diagonal.
    rate: Floats

    def pipeline_s(self, order: Integers) -> float:
        """Seconds of a micro-batch in the steady state, of the slowest pipeline: t above."""
        stages = len(self.stages_s)
        nodes = order[self.chains]
        here, there = nodes[:, :-1], nodes[:, 1:]
        messages_s = self.message_bytes / self.rate[here, there] + self.message_bytes / self.rate[there, here]
        round_s = (self.stages_s.sum() + float(messages_s.sum(axis=1).max(initial=0.0))) / stages
        return max(float(self.stages_s.max()), float(round_s))

    def exchange_s(self, order: Integers) -> float:
        """Seconds of what replicas exchange: rings go round the nodes of a group by their numbers, as libraries do."""
        total_s = 0.0
        for places, size_bytes in self.rings:
            nodes = np.sort(order[places], axis=1)
            slowest = self.rate[nodes, np.roll(nodes, -1, axis=1)].min(axis=1)
            total_s += float((size_bytes / slowest).max(initial=0.0))
        return total_s

    def step_s(self, order: Integers) -> float:
        """T above."""
        stages = len(self.stages_s)
        fill_s = float(self.stages_s.sum()) * (stages - 1) / stages
        return self.micro_batches * self.pipeline_s(order) + fill_s + self.exchange_s(order)


def form_of(question: Question, job: Job) -> MappingForm:
    """Read off a scheduled job's programs, its mesh as if nodes stood in order, and the cluster's links."""
    cluster = question.cluster
    mesh = build_mesh(job.plan, cluster.gpus, cluster.gpus_per_node)
    per_node = cluster.gpus_per_node
    cost = job.work.stack.cost(Costs(question.device), question.device, job.capture)
    roles, _ = mesh.coordinates(axes_of(job))
    stages_s, received = np.zeros(job.plan.degree("pp")), dict[str, float]()
    message_bytes = 0.0
    for role in roles:
        program, stage = write_program(scheme_of(job.plan), job, role), role.get("pp", 0)
        busy_s = sum(
            times * sum(cost(operator) for operator in each.operators)
            for each, times in program.counted()
            if isinstance(each, Compute)
        )
        inside_s = sum(times * alone_s(cluster, mesh, each) for each, times in within(cluster, mesh, program))
        stages_s[stage] = max(stages_s[stage], (busy_s + inside_s) / job.micro_batches)
        by_axis: dict[str, float] = {}
        for each, times in program.counted():
            if isinstance(each, SendReceive) and each.axis == "pp":
                message_bytes = max(message_bytes, float(each.size_bytes))
            elif isinstance(each, Collective | SendReceive) and spans(cluster, mesh, each.axis):
                by_axis[each.axis] = by_axis.get(each.axis, 0.0) + times * received_bytes(mesh, each)
        for axis, size_bytes in by_axis.items():
            received[axis] = max(received.get(axis, 0.0), size_bytes)
    chains = np.unique(mesh.groups("pp") // per_node, axis=0)
    rings = tuple((places_of(mesh.groups(axis) // per_node), size) for axis, size in sorted(received.items()))
    rate = between_nodes(cluster) / per_node
    return MappingForm(job.micro_batches, stages_s, chains, message_bytes, rings, rate)


def spans(cluster: Cluster, mesh: Mesh, axis: str) -> bool:
    """Whether groups along an axis have ranks in several nodes."""
    nodes = mesh.groups(axis) // cluster.gpus_per_node
    return bool((nodes != nodes[:, :1]).any())


def places_of(nodes: Integers) -> Integers:
    """Distinct nodes of every group, shape (groups, nodes); a group with fewer than others has its first again."""
    rows = [np.unique(row) for row in nodes]
    width = max(len(row) for row in rows)
    padded = np.stack([np.concatenate([row, np.repeat(row[:1], width - len(row))]) for row in rows])
    return np.unique(padded, axis=0)


def received_bytes(mesh: Mesh, each: Collective | SendReceive) -> float:
    """Payload that a rank receives by one instruction."""
    if isinstance(each, SendReceive):
        return float(each.size_bytes)
    return KINDS.get(each.kind).received_bytes(each.size_bytes, members_of(mesh, each.axis))


def members_of(mesh: Mesh, axis: str) -> int:
    """Ranks of a group along an axis."""
    return int(mesh.groups(axis).shape[1])


def within(cluster: Cluster, mesh: Mesh, program: Program) -> Iterator[tuple[Collective, int]]:
    """Collectives of a program whose groups stay in one node, and how often they run."""
    for each, times in program.counted():
        if isinstance(each, Collective) and not spans(cluster, mesh, each.axis):
            yield each, times


def alone_s(cluster: Cluster, mesh: Mesh, each: Instruction) -> float:
    """Seconds of a collective of the first group along its axis, alone."""
    assert isinstance(each, Collective)
    ranks = mesh.groups(each.axis)[0].tolist()
    return collective(cluster, ranks, each.kind, each.size_bytes, root=each.root, algorithm=each.algorithm).alone_s
