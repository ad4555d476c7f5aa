"""Data parallelism: gradients summed over all ranks that hold the same weights, and what ZeRO divides among them.

Those are the replicas and, within one, the sequence shards beside each other (``Job.replica_axis``).

Stage 0 (DDP): a layer's gradients are all-reduced while the layers before it run backward, once a step. Stages 1 and
2: they are reduce-scattered, each replica updates its share, and weights are gathered, layer by layer, ahead of the
first forward of the next step (in a steady run: of this one). Stage 3 (FSDP): a layer's weights are gathered ahead of
every forward and backward, one layer in advance, and gradients are reduce-scattered in every backward.
Rajbhandari et al. 2020 (ZeRO), §5 and §7; Zhao et al. 2023 (FSDP), §3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ..operators import MemoryBound
from .pipeline import FORWARD, Chunk, Task
from .plan import Job
from .script import Script


@dataclass(frozen=True)
class Share:
    """What one rank of a replica owns, in parameters: ``weight_shards`` ranks hold a copy of the weights together."""

    job: Job
    weight_shards: int

    @cached_property
    def layer(self) -> float:
        return self.job.model.parameters_per_layer / self.weight_shards

    def outside_layers(self, chunks: Sequence[Chunk]) -> float:
        """Embedding and head, where the stage has them (half each; a tied table counts where it stands)."""
        model = self.job.model
        outside = model.parameters - model.parameters_per_layer * model.layers
        tables = [chunk.has_embedding for chunk in chunks] + [chunk.has_head for chunk in chunks]
        if model.tied_embeddings:
            return outside / self.weight_shards if any(tables) else 0.0
        return outside / 2 * sum(tables) / self.weight_shards

    def owned(self, chunks: Sequence[Chunk]) -> float:
        """Parameters of a stage on one rank."""
        return self.layer * sum(chunk.layers for chunk in chunks) + self.outside_layers(chunks)


def gather_weights(script: Script, job: Job, share: Share, task: Task) -> int | None:
    """A layer's weights from the replicas that hold shares of them, ahead of the layer; None where nobody divides."""
    plan = job.plan
    first_use = task.kind == FORWARD and task.micro_batch == 0
    if job.copies == 1 or not job.training or plan.zero == 0 or (plan.zero < 3 and not first_use):
        return None
    script.part = "weights"
    size = share.layer * job.weight_bytes
    return script.collective("all_gather", job.replica_axis, size, "gather layer weights", stream="parameters")


def wait_for_weights(script: Script, gathered: int | None, ready: Sequence[int]) -> None:
    """The layer that was just written begins when its weights are here; the gather runs one layer ahead."""
    if gathered is None:
        return
    script.hold_until(gathered)
    script.after_previous_layer(gathered, ready[-1], turns=2)


def reduce_layer(script: Script, job: Job, share: Share, task: Task) -> None:
    """Sum a layer's gradients beside the backward of the layers before, after a scheme's own exchange of them."""
    plan = job.plan
    if job.copies == 1 or (plan.zero < 3 and task.micro_batch != job.micro_batches - 1):
        return
    script.part = "gradients"
    ready = script.compute("layer gradients ready")
    sum_gradients(script, job, share.layer, "sum layer gradients", [ready, *script.exchanged_gradients])


def sum_gradients(script: Script, job: Job, parameters: float, name: str, after: Sequence[int]) -> None:
    """Over all ranks that hold the weights: whole on each, or with ZeRO each rank its share."""
    kind = "reduce_scatter" if job.plan.zero else "all_reduce"
    size = parameters * job.work.optimizer.gradients
    script.collective(kind, job.replica_axis, size, name, after=after, stream="gradients")


def finish_step(script: Script, job: Job, share: Share, chunks: Sequence[Chunk], exchanged: Sequence[int]) -> None:
    """Gradients of embedding and head, the norm of all gradients, and the optimizer's pass over what a rank owns.

    ``exchanged`` ends the scheme's own exchange of gradients.
    """
    plan, optimizer = job.plan, job.work.optimizer
    waits = list(exchanged)
    if job.copies > 1:
        outside = share.outside_layers(chunks)
        if outside:
            ready = script.compute("table gradients ready", after=exchanged)
            sum_gradients(script, job, outside, "sum table gradients", [ready])
        waits.append(script.collective("all_reduce", job.replica_axis, 4, "gradient norm", stream="gradients"))
    elements = share.owned(chunks) / (job.copies if plan.zero else 1)
    size = elements * (optimizer.gradients + optimizer.weights + 2.0 * (optimizer.state + optimizer.temporaries))
    script.compute("optimizer step", MemoryBound("adamw", size, name="optimizer"), after=waits)
