"""Sequence (context) parallelism: how the ranks of the ``sp`` axis see each other's K and V.

An exchange writes the attention of one layer, or its backward, and returns the instruction whose end means that the
local result is complete. Liu et al. 2023 (Ring Attention), Jacobs et al. 2023 (DeepSpeed-Ulysses), Llama 3 report
§3.3.2 (all-gather).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd

from ..model.layer import LayerShard
from ..operators import Operator
from . import rings
from .builder import ProgramBuilder
from .ledger import Buffer, Lifetime
from .partition import block_segments, local_segments, sliced_segments
from .plan import Job

Attend = Callable[[ProgramBuilder, Job, LayerShard, int, int], int]


@dataclass(frozen=True)
class Exchange:
    """``(builder, job, layer shard, position on the axis, what to wait for) → last instruction``, both ways."""

    forward: Attend
    backward: Attend


def attend_local(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """One shard, no exchange: the whole context is here."""
    work = job.work
    segments = local_segments(job.plan.partition, work.sequence, 1, 0, job.sequences, work.causal)
    return builder.compute("attention", layer.attention(segments, causal=work.causal), after=[after])


def attend_local_backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    work = job.work
    segments = local_segments(job.plan.partition, work.sequence, 1, 0, job.sequences, work.causal)
    return attention_backward(builder, job, layer, segments, work.causal, "attention backward", [after])


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


def all_gather(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """K and V of all shards are gathered, then attended; overlapped, head bucket by head bucket or block by block.

    The gathered K and V are kept for the backward, so recomputation does not gather again.
    """
    plan, work = job.plan, job.work
    if plan.overlap and plan.overlap_by == "blocks" and not builder.recomputing:
        return by_blocks(builder, job, layer, position, after)
    segments = local_segments(plan.partition, work.sequence, plan.sp, position, job.sequences, work.causal)
    buckets = gcd(plan.overlap_chunks, layer.kv_heads) if plan.overlap and plan.overlap_by == "heads" else 1
    size = 2 * job.group_tokens * layer.kv_width * job.activation_bytes / buckets
    last = after
    for bucket in range(buckets):
        gathered = after
        if not builder.recomputing:
            gathered = builder.collective("all_gather", "sp", size, "gather K,V", after=[after], stream="context")
        last = builder.compute(
            f"attention {bucket + 1}/{buckets}" if buckets > 1 else "attention",
            layer.attention(segments, causal=work.causal, buckets=buckets),
            after=[gathered],
        )
    return last


def by_blocks(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """All heads attend a rank's own block while the first slice of the others' arrives, then slice after slice; partial
    results are merged. A call has as many thread blocks as the whole, which a bucket of few heads has not."""
    parts = job.plan.overlap_chunks
    size = 2 * job.group_tokens * layer.kv_width * job.activation_bytes / parts
    gathered = [
        builder.collective("all_gather", "sp", size, f"gather K,V {part + 1}/{parts}", after=[after], stream="context")
        for part in range(parts)
    ]
    segments, causal = own_segments(job, position)
    last = builder.compute("attention own block", layer.attention(segments, causal=causal), after=[after])
    for part, here in enumerate(gathered):
        segments = slice_segments(job, position, part, parts)
        operators = (layer.attention(segments, causal=False), layer.merge(job.tokens)) if segments else ()
        last = builder.compute(f"attention slice {part + 1}/{parts}", *operators, after=[here])
    return last


def own_segments(job: Job, position: int) -> tuple[tuple[tuple[int, int], ...], bool]:
    """What a shard attends of its own block, and whether that is causal."""
    plan, work, shards = job.plan, job.work, job.plan.token_shards
    return block_segments(plan.partition, work.sequence, shards, position, position, job.sequences, work.causal)


def slice_segments(job: Job, position: int, part: int, parts: int) -> tuple[tuple[int, int], ...]:
    """What a shard attends of one slice of everybody else's block."""
    plan, work, shards = job.plan, job.work, job.plan.token_shards
    held = [(owner, part, parts) for owner in range(shards) if owner != position]
    return sliced_segments(plan.partition, work.sequence, shards, position, held, job.sequences, work.causal)


def all_gather_backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """dK and dV of the whole context go to the shards that own them: a reduce-scatter, by blocks one a slice, while the
    next is worked on."""
    plan, work = job.plan, job.work
    size = 2 * job.group_tokens * layer.kv_width * job.activation_bytes
    last = after
    if plan.overlap and plan.overlap_by == "blocks":
        parts = plan.overlap_chunks
        for part in range(parts):
            segments = slice_segments(job, position, part, parts)
            name = f"attention slice {part + 1}/{parts} backward"
            last = attention_backward(builder, job, layer, segments, False, name, [last])
            name = f"sum dK,dV {part + 1}/{parts}"
            reduced = builder.collective("reduce_scatter", "sp", size / parts, name, after=[last], stream="context")
        segments, causal = own_segments(job, position)
        attention_backward(builder, job, layer, segments, causal, "attention own block backward", [last])
        return builder.compute("dK,dV here", after=[reduced])
    segments = local_segments(plan.partition, work.sequence, plan.sp, position, job.sequences, work.causal)
    attended = attention_backward(builder, job, layer, segments, work.causal, "attention backward", [after])
    reduced = builder.collective("reduce_scatter", "sp", size, "sum dK,dV", after=[attended], stream="context")
    return builder.compute("dK,dV here", after=[reduced])


def ring(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """Σ−1 hops: attend the block that is here while the neighbour's travels (exposed with ``overlap: false``)."""
    plan = job.plan
    size = 2 * job.tokens * layer.kv_width * job.activation_bytes
    overlap = plan.overlap is not False
    arrived, last = {0: after}, after
    for step in range(plan.sp):
        segments, causal = step_segments(job, position, step)
        operators: list[Operator] = [layer.attention(segments, causal=causal)] if segments else []
        if segments and step:
            operators.append(layer.merge(job.tokens))
        if overlap:
            for later in setting_out(job, step):
                # Two buffers: the block that arrives next lands where the one before this was read from.
                waits = [arrived[later - lead_of(job, later)], last]
                arrived[later] = bring_context(builder, job, later, size, "K,V", waits)
        last = builder.compute(f"attention block {step + 1}", *operators, after=[arrived[step]])
        if not overlap and step < plan.sp - 1:
            arrived[step + 1] = bring_context(builder, job, step + 1, size, "K,V", [last])
    return last


def ring_backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """K, V travel again with the gradients that every rank adds to; one more hop brings those home."""
    plan = job.plan
    block = 2 * job.tokens * layer.kv_width * job.activation_bytes
    last, arrived = after, {0: after}
    home: list[int] = []
    for step in range(plan.sp):
        segments, causal = step_segments(job, position, step)
        for later in setting_out(job, step) if plan.overlap is not False else range(step + 1, min(step + 2, plan.sp)):
            waits = [arrived[later - lead_of(job, later)]] if plan.overlap is not False else [last]
            arrived[later] = bring_context(builder, job, later, block, "K,V, backward,", waits)
        name = f"attention block {step + 1} backward"
        last = attention_backward(builder, job, layer, segments, causal, name, [arrived[step], last])
        if plan.context_transport == "multi_ring":
            sent = rings.take_home(builder, job, "sp", step, block, "dK,dV", [last], "context gradients")
            home = [*home, sent]
        else:
            name = f"dK,dV hop {step + 1}"
            home = [builder.ring_hop("sp", block, name, after=[last], stream="context gradients")]
    # The last hop is the one that brings a rank its own gradients.
    return builder.compute("dK,dV here", after=home)


def step_segments(job: Job, position: int, step: int) -> tuple[tuple[tuple[int, int], ...], bool]:
    """What a shard attends of what it holds at a step of the ring, and whether that is causal."""
    plan, work = job.plan, job.work
    if plan.context_transport == "ring" or not step:
        owner = (position - step) % plan.sp
        return block_segments(plan.partition, work.sequence, plan.sp, position, owner, job.sequences, work.causal)
    owners = rings.owners(job, "sp", position, step)
    held = [(owner, part, len(owners)) for part, owner in enumerate(owners)]
    return sliced_segments(plan.partition, work.sequence, plan.sp, position, held, job.sequences, work.causal), False


def lead_of(job: Job, step: int) -> int:
    """Steps ahead of its use that a block sets out."""
    return rings.lead(job, "sp", step) if job.plan.context_transport == "multi_ring" else 1


def setting_out(job: Job, step: int) -> list[int]:
    """Steps whose blocks set out at this one."""
    return [later for later in range(step + 1, job.plan.sp) if later - lead_of(job, later) == step]


def bring_context(builder: ProgramBuilder, job: Job, step: int, size_bytes: float, name: str, after: list[int]) -> int:
    """What brings the K and V of a step: over one link of a GPU on a mesh, or over all."""
    if job.plan.context_transport == "multi_ring":
        return rings.bring(builder, job, "sp", step, size_bytes, name, after, "context")
    return builder.ring_hop("sp", size_bytes, f"{name} hop {step}", after=after, stream="context")


def ulysses(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """All-to-all from token shards to head shards, attention over the whole sequence, all-to-all back."""
    plan, work = job.plan, job.work
    rows = job.tokens * job.activation_bytes
    inside = builder.collective(
        "all_to_all",
        "sp",
        rows * (layer.query_width + 2 * layer.kv_width),
        "tokens to heads",
        after=[after],
        stream="context",
    )
    segments = local_segments(plan.partition, work.sequence, 1, 0, job.sequences, work.causal)
    attended = builder.compute(
        "attention", layer.attention(segments, causal=work.causal, buckets=plan.sp), after=[inside]
    )
    return builder.collective(
        "all_to_all", "sp", rows * layer.query_width, "heads to tokens", after=[attended], stream="context"
    )


def ulysses_backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """The forward's two all-to-alls the other way: dO to heads, dQ, dK, dV to tokens."""
    plan, work = job.plan, job.work
    rows = job.tokens * job.activation_bytes
    inside = builder.collective(
        "all_to_all", "sp", rows * layer.query_width, "d tokens to heads", after=[after], stream="context"
    )
    segments = local_segments(plan.partition, work.sequence, 1, 0, job.sequences, work.causal)
    attended = attention_backward(
        builder, job, layer, segments, work.causal, "attention backward", [inside], buckets=plan.sp
    )
    size = rows * (layer.query_width + 2 * layer.kv_width)
    back = builder.collective("all_to_all", "sp", size, "d heads to tokens", after=[attended], stream="context")
    return builder.compute("dQ,dK,dV here", after=[back])


EXCHANGES: dict[str, Exchange] = {
    "all_gather": Exchange(all_gather, all_gather_backward),
    "ring": Exchange(ring, ring_backward),
    "ulysses": Exchange(ulysses, ulysses_backward),
}


def buffers(job: Job) -> Iterator[Buffer]:
    """Other shards' K and V.

    Gathered: the whole context of one layer; while training that of every layer and micro-batch in flight is kept
    for its backward, because the gather lies outside what recomputation repeats, and one more is the gradient under
    way. Ring: the block that is here and the one that arrives, with their gradients while training (once more where
    blocks come by the rails besides). Ulysses: the exchanged copies of one layer.
    """
    plan, work = job.plan, job.work
    if plan.sp == 1:
        return
    layer = LayerShard(job.model, plan.tp, work.precision, job.activation_bytes)
    if plan.exchange == "all_gather":
        one_layer = 2 * job.group_tokens * layer.kv_width * job.activation_bytes
        yield Buffer("gathered_context", one_layer, Lifetime.LAYER)
        if job.training:
            yield Buffer("gathered_context", one_layer, Lifetime.IN_FLIGHT)
    elif plan.exchange == "ring":
        block = 2 * job.tokens * layer.kv_width * job.activation_bytes
        # Over several nodes two more come by the rails.
        levels = 2 if plan.context_transport == "multi_ring" and plan.node_ranks("sp") < plan.sp else 1
        yield Buffer("gathered_context", block * (4 if job.training else 2) * levels, Lifetime.LAYER)
    else:
        exchanged = job.tokens * (2 * layer.query_width + 2 * layer.kv_width) * job.activation_bytes
        yield Buffer("gathered_context", exchanged * (2 if job.training else 1), Lifetime.LAYER)
