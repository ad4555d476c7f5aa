"""The kernels that context methods have in common, and what of the context a shard attends at once."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.layer import LayerShard
from ...operators import Operator
from ..builder import ProgramBuilder
from ..partition import Segments, block_segments, sliced_segments
from ..plan import Job


def attention_backward(
    builder: ProgramBuilder,
    job: Job,
    layer: LayerShard,
    segments: Segments,
    causal: bool,
    name: str,
    after: Sequence[int] = (),
    *,
    buckets: int = 1,
    before: Sequence[Operator] = (),
) -> int:
    """The kernel's backward, behind operators ``before`` it; selective recomputation runs its forward again just
    before."""
    kernels: tuple[Operator, ...] = ()
    if segments:
        kernels = (layer.attention(segments, causal=causal, buckets=buckets, direction="backward"),)
        if job.plan.recomputation == "selective":
            kernels = (layer.attention(segments, causal=causal, buckets=buckets), *kernels)
    return builder.compute(name, *before, *kernels, after=after)


def attend_by_blocks(
    builder: ProgramBuilder,
    job: Job,
    layer: LayerShard,
    position: int,
    name: str,
    after: int,
    gathered: Sequence[int],
    *behind: Operator,
) -> int:
    """A rank's own block is attended while the first slice of the others' arrives, then slice after slice; partial
    results are merged, and operators ``behind`` follow the last."""
    segments, causal = own_segments(job, position)
    last = builder.compute(f"{name} own block", layer.attention(segments, causal=causal), after=[after])
    parts = len(gathered)
    for part, here in enumerate(gathered):
        segments = slice_segments(job, position, part, parts)
        kernels = (layer.attention(segments, causal=False), layer.merge(job.tokens)) if segments else ()
        follow = behind if part == parts - 1 else ()
        last = builder.compute(f"{name} slice {part + 1}/{parts}", *kernels, *follow, after=[here])
    return last


def own_segments(job: Job, position: int) -> tuple[Segments, bool]:
    """What a shard attends of its own block, and whether that is causal."""
    plan, work, shards = job.plan, job.work, job.plan.token_shards
    return block_segments(plan.partition, work.sequence, shards, position, position, job.sequences, work.causal)


def slice_segments(job: Job, position: int, part: int, parts: int) -> Segments:
    """What a shard attends of one slice of everybody else's block."""
    plan, work, shards = job.plan, job.work, job.plan.token_shards
    held = [(owner, part, parts) for owner in range(shards) if owner != position]
    return sliced_segments(plan.partition, work.sequence, shards, position, held, job.sequences, work.causal)


def shard_of(job: Job) -> LayerShard:
    """A layer as a rank of ``tp`` beside these shards has it."""
    return job.layer(job.plan.tp)


def context_bytes(job: Job, layer: LayerShard) -> float:
    """K and V of a shard's heads over the whole context."""
    return 2 * job.group_tokens * layer.kv_width * job.activation_bytes


def others_context(job: Job) -> float:
    """K and V of the other shards, bytes."""
    return (job.plan.sp - 1) / job.plan.sp * context_bytes(job, shard_of(job))
