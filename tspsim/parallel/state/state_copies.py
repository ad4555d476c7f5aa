"""Copies of a checkpoint in a step's program, and what waits for them (:mod:`tspsim.parallel.state.checkpoint`).

A checkpoint has every parameter once: what tensor-parallel ranks repeat is not written by each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ...steps import FORWARD, Task
from ..builder import ProgramBuilder
from ..job import Job
from ..parameter_group import ParameterGroup
from ..pipeline import Chunk
from ..scheme import scheme_of
from .checkpoint import CHECKPOINTS, Checkpoint
from .owned import OwnedParameters


def written_bytes(job: Job, held: Sequence[ParameterGroup]) -> float:
    """Bytes that a rank writes of parameters: trained weights, and their state."""
    optimizer = job.work.optimizer
    return sum(group.parameters / group.copies for group in held) * (optimizer.weights + optimizer.state)


def rank_bytes(job: Job, share: OwnedParameters, stage: int) -> float:
    """Bytes that a rank of a pipeline stage writes."""
    return written_bytes(job, share.trained(job.chunks(stage)))


def copied_bytes(job: Job) -> float:
    """Bytes that the rank with most copies to its host."""
    return max(most_bytes(job, range(job.plan.pp)))


def file_s(job: Job) -> float:
    """Seconds of the file system for all ranks; 0 if no rate is stated."""
    plan = job.plan
    if plan.checkpoint_rate is None:
        return 0.0
    ranks = prod(plan.degree(axis) for axis in (*job.scheme.axes, "dp"))
    return ranks * sum(most_bytes(job, range(plan.pp))) / plan.checkpoint_rate


def most_bytes(job: Job, stages: Sequence[int]) -> list[float]:
    """Bytes that a rank of each stage writes."""
    share = OwnedParameters(job, scheme_of(job.plan).residency.weight_shards(job), once=True)
    return [rank_bytes(job, share, stage) for stage in stages]


def checkpoint_of(job: Job) -> Checkpoint | None:
    """How a step's checkpoint is written; None if it writes none."""
    name = job.plan.checkpoint if job.training else None
    return CHECKPOINTS.get(name) if name is not None else None


def begin(builder: ProgramBuilder, job: Job, share: OwnedParameters, chunks: Sequence[Chunk]) -> list[int]:
    """Write the part of a checkpoint at a step's start; returns the dependencies of its update."""
    way, last = checkpoint_of(job), list[int]()
    if way is None:
        return last
    builder.part = "checkpoint"
    if job.held_s > 0.0:
        last = [builder.wait_for_store("file of the checkpoint before", job.held_s)]
    if not way.after_forward:
        last = copies(builder, job, share, chunks, last)
    if way.holds_copy:
        builder.compute("state in hosts' memory", after=last)
    if way.holds_file:
        builder.compute("state in its file", after=[builder.wait_for_store("file", file_s(job), after=last)])
    return last


def after_forward(builder: ProgramBuilder, job: Job, share: OwnedParameters, chunk: Chunk, task: Task) -> list[int]:
    """Write the copies of a chunk's state after its first forward; returns the dependencies of the update."""
    way = checkpoint_of(job)
    if way is None or not way.after_forward or task.kind != FORWARD or task.micro_batch:
        return []
    builder.part = "checkpoint"
    return copies(builder, job, share, [chunk], [builder.compute("first forward over")])


def copies(
    builder: ProgramBuilder, job: Job, share: OwnedParameters, chunks: Sequence[Chunk], after: list[int]
) -> list[int]:
    """Copy the state of some chunks to the host; returns the last copy."""
    last = after
    for name, held in _pieces(job, replace(share, once=True), chunks):
        size = written_bytes(job, held)
        if size:
            last = [builder.copy("out", size, name, after=last)]
    return last


def _pieces(job: Job, share: OwnedParameters, chunks: Sequence[Chunk]) -> list[tuple[str, tuple[ParameterGroup, ...]]]:
    """Names and parameters of the copies, in order: tables and layers of every chunk."""
    pieces: list[tuple[str, tuple[ParameterGroup, ...]]] = []
    tables = job.work.adapters is None
    for chunk in chunks:
        if tables and chunk.has_embedding:
            pieces.append(("state of the embedding", (share.embedding(chunk),)))
        for block, count in job.blocks([chunk]).items():
            pieces += [("state of a layer", share.trained_layer(block))] * count
        if tables and chunk.has_head:
            pieces.append(("state of the head", (share.head(chunk),)))
    return pieces
