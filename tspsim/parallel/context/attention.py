"""The kernels that context methods have in common, and what of the context a shard attends at once."""

from __future__ import annotations

from ...model.layer import LayerShard
from ...operators import Operator
from ..builder import ProgramBuilder
from ..partition import block_segments, sliced_segments
from ..plan import Job


def attention_backward(
    builder: ProgramBuilder,
    job: Job,
    layer: LayerShard,
    segments: tuple[tuple[int, int], ...],
    causal: bool,
    name: str,
    after: list[int],
    buckets: int = 1,
) -> int:
    """The kernel's backward; selective recomputation runs its forward again just before."""
    kernel = layer.attention(segments, causal=causal, buckets=buckets, direction="backward")
    again: tuple[Operator, ...] = ()
    if job.plan.recomputation == "selective":
        again = (layer.attention(segments, causal=causal, buckets=buckets),)
    return builder.compute(name, *(again if segments else ()), *((kernel,) if segments else ()), after=after)


def own_segments(job: Job, position: int) -> tuple[tuple[tuple[int, int], ...], bool]:
    """What a shard attends of its own block, and whether that is causal."""
    plan, work, shards = job.plan, job.work, job.plan.token_shards
    return block_segments(plan.partition, work.sequence, shards, position, position, job.sequences, work.causal)


def slice_segments(job: Job, position: int, part: int, parts: int) -> tuple[tuple[int, int], ...]:
    """What a shard attends of one slice of everybody else's block."""
    plan, work, shards = job.plan, job.work, job.plan.token_shards
    held = [(owner, part, parts) for owner in range(shards) if owner != position]
    return sliced_segments(plan.partition, work.sequence, shards, position, held, job.sequences, work.causal)


def shard_of(job: Job) -> LayerShard:
    """A layer as a rank of ``tp`` beside these shards has it."""
    return LayerShard(job.model, job.plan.tp, job.work.precision, job.activation_bytes)


def others_context(job: Job) -> float:
    """K and V of the other shards, bytes."""
    away = (job.plan.sp - 1) / job.plan.sp
    return away * (2 * job.group_tokens * shard_of(job).kv_width) * job.activation_bytes
