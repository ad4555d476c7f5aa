"""The cost of an order of nodes in closed form: cheap enough for ten thousand evaluations.

In a pipeline of p stages, where a micro-batch takes c_s in stage s (forward and back) and x seconds one way between
neighbours, a micro-batch takes in the steady state

    t = max( max_s c_s , (Σ_s c_s + 2·Σ x) / p ),

because a stage gets its next gradient only after p micro-batches have gone to the end and back (Pipette's *hidden
critical path*, written as ``(p(f + b) + 2(p − 1)x)/p`` for equal stages; Yim et al. 2024, arXiv 2405.18093, as in the
authors' code). A step of G micro-batches takes G·t, the filling of the pipeline, and the exchanges of replicas: bytes
over the slowest hop of a ring through the nodes of each group.

    T = G·t + Σ_s c_s·(p − 1)/p + Σ_axes max_groups bytes / slowest hop

Left out: overlap of the replicas' sums with kernels, trees, and contention of groups on one NIC. The simulation that
judges the orders has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...hardware import Costs
from ...network import KINDS, Cluster, between_nodes, collective
from ...parallel import Job, axes_of, build_mesh, scheme_of, write_program
from ...program import Collective, Compute, Instruction, Program, SendReceive
from ...program.instructions import Mesh
from ...step.question import Question

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MappingForm:
    """The closed form of one plan."""

    #: G.
    micro_batches: int
    #: c_s: seconds of a micro-batch, forward and back, in every stage: kernels and transfers inside nodes.
    stages_s: Floats
    #: Positions in the order of nodes of a pipeline's stages, shape (pipelines, stages).
    chains: Integers
    #: Bytes that one rank sends to the next stage.
    message_bytes: float
    #: For every axis whose groups span nodes: positions of each group's nodes, shape (groups, nodes), and the bytes
    #: that a rank receives along the axis.
    rings: tuple[tuple[Integers, float], ...]
    #: Bytes/s of a GPU from node (row) to node (column) while all GPUs of both send; infinite on the diagonal.
    rate: Floats

    def pipeline_s(self, order: Integers) -> float:
        """t above: seconds of a micro-batch in the steady state, of the slowest pipeline."""
        stages = len(self.stages_s)
        nodes = order[self.chains]
        here, there = nodes[:, :-1], nodes[:, 1:]
        messages_s = self.message_bytes / self.rate[here, there] + self.message_bytes / self.rate[there, here]
        round_s = (self.stages_s.sum() + float(messages_s.sum(axis=1).max(initial=0.0))) / stages
        return max(float(self.stages_s.max()), float(round_s))

    def exchange_s(self, order: Integers) -> float:
        """Seconds of the replicas' exchanges: rings visit a group's nodes by number, as libraries do."""
        total_s = 0.0
        for places, size_bytes in self.rings:
            nodes = np.sort(order[places], axis=1)
            slowest = self.rate[nodes, np.roll(nodes, -1, axis=1)].min(axis=1)
            total_s += float((size_bytes / slowest).max(initial=0.0))
        return total_s

    def step_s(self, order: Integers) -> float:
        """T above: seconds of a step."""
        stages = len(self.stages_s)
        fill_s = float(self.stages_s.sum()) * (stages - 1) / stages
        return self.micro_batches * self.pipeline_s(order) + fill_s + self.exchange_s(order)


def form_of(question: Question, job: Job) -> MappingForm:
    """The closed form of a scheduled job: from its programs, its mesh with nodes in order, and the cluster's links."""
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
            times * sum(cost(operator) for operator in instruction.operators)
            for instruction, times in program.counted()
            if isinstance(instruction, Compute)
        )
        inside_s = sum(
            times * alone_s(cluster, mesh, instruction) for instruction, times in within(cluster, mesh, program)
        )
        stages_s[stage] = max(stages_s[stage], (busy_s + inside_s) / job.micro_batches)
        by_axis: dict[str, float] = {}
        for instruction, times in program.counted():
            if isinstance(instruction, SendReceive) and instruction.axis == "pp":
                message_bytes = max(message_bytes, float(instruction.size_bytes))
            elif isinstance(instruction, Collective | SendReceive) and spans(cluster, mesh, instruction.axis):
                by_axis[instruction.axis] = by_axis.get(instruction.axis, 0.0) + times * received_bytes(
                    mesh, instruction
                )
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
    """Distinct nodes of every group, shape (groups, nodes); a group with fewer nodes repeats its first."""
    rows = [np.unique(row) for row in nodes]
    width = max(len(row) for row in rows)
    padded = np.stack([np.concatenate([row, np.repeat(row[:1], width - len(row))]) for row in rows])
    return np.unique(padded, axis=0)


def received_bytes(mesh: Mesh, instruction: Collective | SendReceive) -> float:
    """Payload that a rank receives in one instruction."""
    if isinstance(instruction, SendReceive):
        return float(instruction.size_bytes)
    return KINDS.get(instruction.kind).received_bytes(instruction.size_bytes, members_of(mesh, instruction.axis))


def members_of(mesh: Mesh, axis: str) -> int:
    """Ranks of a group along an axis."""
    return int(mesh.groups(axis).shape[1])


def within(cluster: Cluster, mesh: Mesh, program: Program) -> Iterator[tuple[Collective, int]]:
    """Collectives of a program whose groups stay in one node, and how often they run."""
    for instruction, times in program.counted():
        if isinstance(instruction, Collective) and not spans(cluster, mesh, instruction.axis):
            yield instruction, times


def alone_s(cluster: Cluster, mesh: Mesh, instruction: Instruction) -> float:
    """Seconds of a collective of the first group along its axis, without contention."""
    assert isinstance(instruction, Collective)
    ranks = mesh.groups(instruction.axis)[0].tolist()
    return collective(
        cluster, ranks, instruction.kind, instruction.size_bytes, root=instruction.root, algorithm=instruction.algorithm
    ).alone_s
