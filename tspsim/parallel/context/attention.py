"""Kernels that context methods share, and the segments of the context that a shard attends at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from ...model.layer import LayerShard, ServingLayer
from ...operators import Operator
from ..builder import ProgramBuilder
from ..job import Job
from ..partition import Segments, block_segments, local_segments, sliced_segments
from ..windows import block_in_window
from .carried import carries, handed_bytes
from .selected import attended_bytes, scored_bytes, selects


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
    """The backward of an attention kernel, after the operators ``before``; selective recomputation first repeats its
    forward."""
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
    """Attend a rank's own block while the first slice of the others' arrives, then slice by slice.

    Partial results are merged; the operators ``behind`` follow the last slice.
    """
    segments, causal = own_segments(job, layer, position)
    parts, shards = len(gathered), job.plan.token_shards
    own = *expand(job, layer, 1 / shards), layer.attention(segments, causal=causal)
    last = builder.compute(f"{name} own block", *own, after=[after])
    for part, here in enumerate(gathered):
        segments = slice_segments(job, layer, position, part, parts)
        kernels: tuple[Operator, ...] = ()
        if segments:
            others = expand(job, layer, (shards - 1) / shards / parts)
            kernels = *others, layer.attention(segments, causal=False), layer.merge(job.tokens)
        follow = behind if part == parts - 1 else ()
        last = builder.compute(f"{name} slice {part + 1}/{parts}", *kernels, *follow, after=[here])
    return last


def own_segments(job: Job, layer: LayerShard, position: int) -> tuple[Segments, bool]:
    """The segments that a shard attends of its own block, and whether they are causal."""
    return from_owner(job, layer, position, position)


def from_owner(job: Job, layer: LayerShard, position: int, owner: int) -> tuple[Segments, bool]:
    """The segments that a shard attends of the block of ``owner``, and whether they are causal."""
    plan, work, shards = job.plan, job.work, job.plan.token_shards
    visible: Segments = ()
    causal = False
    if narrows(job, layer):
        return held_segments(job, layer, position, [(owner, 0, 1)]), False
    for tokens, count in job.lengths:
        between = plan.partition, tokens, shards, position, owner
        segments, causal = block_segments(*between, count, work.causal, job.cached)
        visible += segments
    return visible, causal


def visible_segments(job: Job, shards: int, position: int) -> Segments:
    """The segments that one of ``shards`` attends when the whole context is present."""
    plan, work = job.plan, job.work
    visible: Segments = ()
    for tokens, count in job.lengths:
        visible += local_segments(plan.partition, tokens, shards, position, count, work.causal, job.cached)
    return visible


def held_segments(job: Job, layer: LayerShard, position: int, held: Sequence[tuple[int, int, int]]) -> Segments:
    """The segments that a shard attends of slices ``(owner, part, parts)`` of blocks (without windows, of others')."""
    plan, work, shards = job.plan, job.work, job.plan.token_shards
    visible: Segments = ()
    for tokens, count in job.lengths:
        among = plan.partition, tokens, shards, position, held
        if narrows(job, layer):
            visible += block_in_window(*among, count, layer.composition.window, job.cached, layer.borders)
        else:
            visible += sliced_segments(*among, count, work.causal, job.cached)
    return visible


def slice_segments(job: Job, layer: LayerShard, position: int, part: int, parts: int) -> Segments:
    """The segments that a shard attends of one slice of all other blocks."""
    held = [(owner, part, parts) for owner in range(job.plan.token_shards) if owner != position]
    return held_segments(job, layer, position, held)


def narrows(job: Job, layer: LayerShard) -> bool:
    """Whether a window, chunk or document hides part of a sequence from its last token."""
    longest = max(tokens for tokens, _ in job.lengths) + job.cached
    return any(0 < size < longest for size in (layer.composition.window, *layer.borders))


def shard_of(job: Job) -> LayerShard:
    """The layer of a rank whose heads ``tp`` divides."""
    return job.layer(job.plan.tp)


def context_bytes(job: Job, layer: LayerShard) -> float:
    """Bytes of a shard's heads over the whole context: K and V, cached ones in the cache's type; for sparse attention
    latents and index keys, for linear attention tails and summaries of states."""
    if selects(layer):
        return scored_bytes(job, layer) + attended_bytes(job, layer)
    if carries(layer):
        return handed_bytes(job, layer)
    return 2 * job.group_tokens * layer.kv_width * job.activation_bytes + cached_bytes(job, layer)


def cached_bytes(job: Job, layer: LayerShard) -> float:
    """Bytes of K and V of a shard's heads that a pass reads from the cache, over all shards of the context."""
    return 0.0 if expands(job, layer) else cached_entries(job, layer)


def latent_bytes(job: Job, layer: LayerShard) -> float:
    """Bytes of latents that a pass reads from the cache, from which K and V of all heads are expanded."""
    return cached_entries(job, layer) if expands(job, layer) else 0.0


def cached_entries(job: Job, layer: LayerShard) -> float:
    """Cache bytes in one layer of the prompts of a pass, of a shard's heads."""
    if not job.cached:
        return 0.0
    assert isinstance(layer, ServingLayer)
    use = layer.attention_kind.cache(layer.model, layer.composition, layer.formats.cache)
    tokens = min(job.cached, use.window) if use.window else job.cached
    return tokens * job.sequences * use.token_bytes / min(layer.shards, use.heads)


def expand(job: Job, layer: LayerShard, share: float = 1.0) -> tuple[Operator, ...]:
    """Operators that expand cached latents to K and V, of a share of the cached tokens."""
    if not job.cached or not isinstance(layer, ServingLayer):
        return ()
    return layer.attention_kind.expand(layer, ceil(share * job.cached) * job.sequences)


def expands(job: Job, layer: LayerShard) -> bool:
    return bool(expand(job, layer))


def others_context(job: Job) -> float:
    """Bytes of the other shards' K and V, of the layer with least."""
    layers = [job.layer(job.plan.tp, block) for block in job.model.distinct]
    if not any(selects(layer) or carries(layer) for layer in layers):
        layers = [shard_of(job)]
    least = min(context_bytes(job, layer) + latent_bytes(job, layer) for layer in layers)
    return (job.plan.sp - 1) / job.plan.sp * least
