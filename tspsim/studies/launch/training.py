"""A training plan as a run to launch, and the frameworks that can launch it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from ...base.errors import InputError
from ...base.memo import once
from ...base.registry import Registry
from ...parallel import CONTEXT_METHODS, Job, Plan, build_mesh
from ...parallel.balance import BUSIEST
from ...parallel.pipeline import chunk_layers
from ...parallel.recomputed import RECOMPUTE_METHODS
from ...program.instructions import Mesh
from ...step.question import Question
from .command import Command

#: Axes that frameworks have.
USUAL = ("tp", "sp", "pp", "ep", "dp")
#: Keys of a plan that no framework has an argument for.
UNHEARD_OF = (
    "secondary_shard", "weight_wire", "gradient_wire", "activation_store", "offload_layers",
    "offload_weights", "expert_pieces", "expert_shards", "checkpoint",
)  # fmt: skip
#: Bytes per parameter of Adam's fp32 moments and master weights.
ADAM_STATE = 12.0


@dataclass(frozen=True)
class TrainingRun:
    """One training run."""

    #: Model, plan and work of a replica.
    job: Job
    #: Nodes, and GPUs of each.
    nodes: int
    per_node: int
    #: Coordinates of the ranks.
    mesh: Mesh
    #: Vendor of the GPUs.
    vendor: str
    #: The model as the scenario names it.
    model_name: str

    @property
    def plan(self) -> Plan:
        return self.job.plan

    @property
    def batch(self) -> int:
        """Sequences of a step over all replicas."""
        return self.job.work.sequences * self.plan.dp

    @property
    def copies(self) -> int:
        """Ranks that hold the same weights, or divide them: sequence shards and replicas."""
        return self.plan.sp * self.plan.dp

    @property
    def fully_sharded(self) -> bool:
        """Whether weights or gradients are divided among the copies."""
        return self.plan.zero >= 2 and self.copies > 1

    @once
    def chunks(self) -> tuple[int, ...]:
        """Layers of every pipeline chunk, first to last."""
        plan = self.plan
        return plan.stage_layers or chunk_layers(self.job.model.layers, plan.pp * plan.vpp)

    @property
    def even(self) -> bool:
        """Whether all chunks have the same number of layers."""
        return len(set(self.chunks)) == 1

    def exchange(self, framework: str, cannot: list[str]) -> str | None:
        """A framework's name for the exchange of sequence shards; what it lacks is added to ``cannot``."""
        plan = self.plan
        method = CONTEXT_METHODS.get(plan.exchange)
        if framework not in method.launched:
            names = [other.name for other in CONTEXT_METHODS.values() if framework in other.launched]
            cannot.append(f"exchange {plan.exchange}; of those here it has {', '.join(names)}")
        if plan.partition != Plan.partition:
            cannot.append(f"partition {plan.partition}: its own is {Plan.partition}")
        if plan.overlap and not method.overlaps:
            cannot.append(f"overlap of exchanges between sequence shards, by {plan.overlap_by}")
        return method.launched.get(framework)

    def some_layers(self, framework: str, cannot: list[str]) -> tuple[str, int] | None:
        """A framework's name for the method that selects recomputed layers, and its number; None where all layers are
        recomputed. What the framework lacks is added to ``cannot``."""
        partly = self.plan.recomputed
        if partly is None:
            return None
        method = RECOMPUTE_METHODS.get(partly.method)
        if framework in method.launched:
            return method.launched[framework], partly.layers
        cannot.append(f"recomputation of some layers by {partly.method}, {partly.layers}: all are recomputed")
        return None

    def placed_as(self, *axes: str) -> bool:
        """Whether ranks stand in this order of axes, neighbours along the first; True where there are other axes."""
        sizes = [self.plan.degree(axis) for axis in reversed(axes)]
        if prod(sizes) != self.mesh.ranks.size:
            return True
        numbers = np.arange(self.mesh.ranks.size).reshape(sizes)
        return all(
            np.array_equal(self.mesh.positions[axis][numbers], np.indices(sizes)[len(axes) - 1 - place])
            for place, axis in enumerate(axes)
            if self.plan.degree(axis) > 1
        )


class Trainer(Protocol):
    """A framework with a launch command."""

    @property
    def name(self) -> str:
        """Its name for ``--emit``."""

    @property
    def vendors(self) -> tuple[str, ...]:
        """Vendors of the GPUs that it runs on."""

    @property
    def beside(self) -> str:
        """Further arguments that a launch needs, in words."""

    def command(self, run: TrainingRun) -> Command:
        """The command on one node."""


TRAINERS: Registry[Trainer] = Registry("framework to launch", "tspsim.trainers", Trainer)


def run_of(question: Question, plan: Plan) -> TrainingRun:
    """A plan of a training step as a run."""
    cluster = question.cluster
    return TrainingRun(
        job=question.job(plan),
        nodes=cluster.nodes,
        per_node=cluster.gpus_per_node,
        mesh=build_mesh(plan, cluster.gpus, cluster.gpus_per_node),
        vendor=question.device.spec.vendor,
        model_name=question.scenario.workload.model,
    )


def train(framework: str, question: Question, plan: Plan) -> str:
    """The launch of a plan: comments, files and a command for a shell, the same on every node.

    Raises
    ------
    UnknownNameError
        No trainer has this name.
    InputError
        The scenario is no training step.
    """
    trainer = TRAINERS.get(framework)
    if not question.work.step.trains:
        raise InputError(f"{trainer.name} trains; the scenario is a {question.work.step.title}", key="workload.pass")
    run = run_of(question, plan)
    lines = [f"# {question.scenario.name}: {plan.name}, {question.cluster.gpus} GPUs ({question.device.name})"]
    lines += [f"# beside these: {trainer.beside}"]
    if run.vendor not in trainer.vendors:
        lines.append(f"# {trainer.name} does not run on GPUs of {run.vendor}")
    if run.nodes > 1:
        lines.append(f"# on each of {run.nodes} nodes, HOST being one of them")
    command = trainer.command(run)
    whole = Command(command.words, (*strange(run), *command.cannot), command.files, command.exports)
    return "\n".join([*lines, "", *whole.lines()]) + "\n"


def torchrun(run: TrainingRun) -> list[str]:
    """Words that start one process per GPU of a node."""
    words = ["torchrun", "--nproc-per-node", str(run.per_node)]
    if run.nodes > 1:
        words += ["--nnodes", str(run.nodes), "--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
    return words


def strange(run: TrainingRun) -> Iterator[str]:
    """Parts of a plan that no framework has an argument for."""
    plan, work = run.plan, run.job.work
    for axis, degree in plan.degrees.items():
        if axis not in USUAL and degree > 1:
            yield f"{axis} {degree}: those ranks would be replicas"
    if plan.context_transport != Plan.context_transport and plan.sp > 1:
        yield f"context_transport {plan.context_transport}"
    for kind, algorithm in plan.algorithms.items():
        yield f"algorithms: {algorithm} for {kind}, which the library chooses"
    for key in UNHEARD_OF:
        if getattr(plan, key) != getattr(Plan, key):
            yield f"{key} {getattr(plan, key)}"
    if plan.node_order:
        yield "placement.order: sort the hosts so"
    if plan.routing is not None:
        yield "routing: the switches' business"
    for key, value in plan.options.items():
        yield f"{key} {value}"
    if run.job.unequal:
        yield "lengths of sequences: the data set's; which ranks share one is decided as it is read"
    if plan.expert_balance != BUSIEST:
        yield f"expert_balance {plan.expert_balance.policy}"
    if plan.overlap == "fused":
        yield "overlap fused: slices of one kernel"
    if work.document is not None:
        yield f"documents of {work.document} tokens: the data set packs them"
    if work.optimizer.state != ADAM_STATE:
        yield f"{work.optimizer.state:g} bytes of optimizer state a parameter; Adam's in fp32 has {ADAM_STATE:g}"
