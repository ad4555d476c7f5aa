"""What pipeline stages send each other: activations forward, gradients back."""

from __future__ import annotations

from .builder import ProgramBuilder
from .job import Job
from .pipeline import Chunk

ACTIVATIONS, GRADIENTS = "activations", "gradients"


def send(builder: ProgramBuilder, job: Job, what: str, after: list[int], chunk: Chunk) -> None:
    """Write a message to the stage of the next chunk; none to the same stage."""
    if chunk.left_here if what == ACTIVATIONS else chunk.entered_here:
        return
    wrap = wraps(job, chunk)
    builder.part = "pipeline"
    name, way = f"{what} to the next stage", chunk.way
    sent = builder.send("pp", offset_of(what, chunk), message_bytes(job), name, after=after, wrap=wrap, way=way)
    if job.order.waits or (job.training and job.work.stack.awaits_sends):
        builder.compute(f"{what} sent", after=[sent])


def offset_of(what: str, chunk: Chunk) -> int:
    """Stages between the sender and the receiver of a message: activations go a chunk's way, gradients back."""
    return chunk.way if what == ACTIVATIONS else -chunk.way


def wraps(job: Job, chunk: Chunk) -> bool:
    """Whether messages of a chunk wrap around the stages. Those of the opposite direction do so too, which keeps them
    apart from the others; they never reach an end."""
    return job.plan.vpp > 1 or chunk.way < 0


def receive(builder: ProgramBuilder, job: Job, what: str, chunk: Chunk) -> None:
    """Make kernels wait for the previous chunk's message; tensor-parallel ranks receive a piece each and gather."""
    if chunk.entered_here if what == ACTIVATIONS else chunk.left_here:
        return
    builder.part = "pipeline"
    name, wrap, offset = f"{what} received", wraps(job, chunk), offset_of(what, chunk)
    free = [builder.compute("nothing else to do")] if job.order.waits else []
    got = builder.receive("pp", offset, message_bytes(job), name, after=free, wrap=wrap, way=chunk.way)
    if job.plan.tp > 1 and not job.plan.sequence_regions:
        whole = message_bytes(job) * job.plan.tp
        got = builder.collective("all_gather", "tp", whole, f"gather {what}", after=[got])
    builder.compute(f"{what} here", after=[got])


def message_bytes(job: Job) -> float:
    """Bytes of a rank's piece of the residual stream between stages (Megatron's scatter-gather: 1/T each)."""
    return job.tokens * job.model.hidden * job.activation_bytes / job.plan.tp
