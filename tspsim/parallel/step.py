"""A whole pass from a scheme's pieces: embedding, layers, head; while training also loss, backward and optimizer.

Recomputation ``full`` runs a layer's forward again before its backward, exchanges included, except a K, V gather,
whose result is kept (docs/memory.md); ``selective`` runs the attention kernel's forward again. Gradients of a layer are
reduced over data-parallel replicas while the layers before it run backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..model.layer import LayerShard
from ..operators import MemoryBound
from ..program import Program
from .memory import Residency
from .plan import Job
from .script import Script

Piece = Callable[[Script, Job, LayerShard], None]
LayerPiece = Callable[[Script, Job, LayerShard, int], None]


@dataclass(frozen=True)
class Scheme:
    """A way to spread one replica.

    Attributes
    ----------
    shards
        Job → parts that heads, FFN columns and vocabulary rows are cut into.
    embed, layer, head
        Write the forward of a model's three parts; ``layer`` is told the rank's position on the token axis.
    layer_backward, head_backward
        Write their backward (of the head: from the loss on).
    residency
        What stays in memory.
    """

    name: str
    shards: Callable[[Job], int]
    embed: Piece
    layer: LayerPiece
    head: Piece
    layer_backward: LayerPiece
    head_backward: Piece
    residency: Residency


def write_program(scheme: Scheme, job: Job, position: int) -> Program:
    """The program of the ranks at ``position`` on the token axis, for the job's pass."""
    plan, model = job.plan, job.model
    layer = LayerShard(model, scheme.shards(job), job.work.precision, job.activation_bytes)
    script = Script(f"{plan.token_axis} {position}" if plan.token_shards > 1 else "all ranks", plan)
    training = job.work.pass_ == "training"
    if model.vocab:
        script.part = "embedding"
        scheme.embed(script, job, layer)
    script.begin_layers()
    scheme.layer(script, job, layer, position)
    script.end_layers(model.layers)
    if model.vocab:
        script.part = "head"
        scheme.head(script, job, layer)
    if not training:
        return script.program()
    if model.vocab:
        script.part = "head backward"
        scheme.head_backward(script, job, layer)
    script.begin_layers(model.layers - 1)
    if plan.recomputation == "full":
        script.recomputing = True
        scheme.layer(script, job, layer, position)
        script.recomputing = False
    scheme.layer_backward(script, job, layer, position)
    owned = model.parameters / scheme.residency.weight_shards(job)
    in_layers = model.parameters_per_layer * model.layers / scheme.residency.weight_shards(job)
    reduce_gradients(script, job, in_layers / model.layers)
    script.end_layers(model.layers, layer_step=-1)
    script.part = "optimizer"
    if owned > in_layers:
        reduce_gradients(script, job, owned - in_layers)
    update(script, job, owned)
    return script.program()


def reduce_gradients(script: Script, job: Job, parameters: float) -> None:
    """Sum gradients over the replicas, beside the backward of the layers before."""
    if job.plan.dp > 1:
        ready = script.compute("gradients ready", after=[])
        size = parameters * job.work.optimizer.gradients
        script.collective("all_reduce", "dp", size, "sum gradients", after=[ready], stream="gradients")


def update(script: Script, job: Job, parameters: float) -> None:
    """The optimizer's pass over what a rank owns: gradients and weights once, its state and temporaries twice."""
    optimizer = job.work.optimizer
    size = parameters * (optimizer.gradients + optimizer.weights + 2.0 * (optimizer.state + optimizer.temporaries))
    waits = []
    if job.plan.dp > 1:
        waits = [script.collective("all_reduce", "dp", 4, "gradient norm", stream="gradients")]
    script.compute("optimizer step", MemoryBound("adamw", size, name="optimizer"), after=waits)
