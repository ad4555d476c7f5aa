"""All-gather of K and V before attention (Llama 3 report, §3.3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from ...model.layer import LayerShard
from ..builder import ProgramBuilder
from ..choice import Choice
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import Refusal
from ..plan import Plan
from ..unpacked import unpacked
from . import carried, selected
from .attention import (
    attend_by_blocks,
    attention_backward,
    context_bytes,
    expand,
    latent_bytes,
    others_context,
    own_segments,
    shard_of,
    slice_segments,
    visible_segments,
)
from .method import CONTEXT_METHODS, ContextMethod, in_parts_refused


def forward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """Gather K and V of all shards, then attend; with overlap, bucket of heads by bucket or block by block.

    The gathered K and V are kept for the backward, so that recomputation does not gather again, except in stacks that
    do (``regathers_context``).
    """
    plan, work = job.plan, job.work
    if selected.selects(layer):
        segments = visible_segments(job, plan.sp, position)
        ready = selected.select(builder, job, layer, segments, [after], overlap=plan.overlap is True)
        return builder.compute("attention", *selected.attending(layer, segments), after=ready)
    if carried.carries(layer):
        ready = carried.hand_on(builder, job, layer, [after])
        return builder.compute("attention", *carried.scanning(job, layer), after=ready)
    gathers = not builder.recomputing or work.stack.regathers_context
    if plan.overlap is True and plan.overlap_by == "blocks" and gathers:
        return by_blocks(builder, job, layer, position, after)
    segments = visible_segments(job, plan.sp, position)
    buckets = gcd(plan.overlap_chunks, layer.kv_heads) if plan.overlap is True and plan.overlap_by == "heads" else 1
    size = context_bytes(job, layer) / buckets
    last = after
    for bucket in range(buckets):
        gathered = after
        if gathers:
            # Latents serve all heads: the first bucket brings them.
            moved = size if bucket else size + latent_bytes(job, layer)
            gathered = builder.collective("all_gather", "sp", moved, "gather K,V", after=[after], stream="context")
        last = builder.compute(
            f"attention {bucket + 1}/{buckets}" if buckets > 1 else "attention",
            *(() if bucket else expand(job, layer)),
            layer.attention(segments, causal=work.causal, buckets=buckets),
            after=[gathered],
        )
    return last


def by_blocks(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """Attend all heads block by block: unlike a bucket of few heads, a call has as many thread blocks as the whole."""
    parts = job.plan.overlap_chunks
    size = (context_bytes(job, layer) + latent_bytes(job, layer)) / parts
    gathered = [
        builder.collective("all_gather", "sp", size, f"gather K,V {part + 1}/{parts}", after=[after], stream="context")
        for part in range(parts)
    ]
    return attend_by_blocks(builder, job, layer, position, "attention", after, gathered)


def backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """Reduce-scatter dK and dV of the whole context to their shards; by blocks, a slice while the next is computed."""
    plan, work = job.plan, job.work
    size = context_bytes(job, layer)
    if work.stack.regathers_context:
        moved = size + latent_bytes(job, layer)
        after = builder.collective("all_gather", "sp", moved, "gather K,V again", after=[after], stream="context")
    last = after
    if plan.overlap is True and plan.overlap_by == "blocks":
        parts = plan.overlap_chunks
        for part in range(parts):
            segments = slice_segments(job, layer, position, part, parts)
            name = f"attention slice {part + 1}/{parts} backward"
            last = attention_backward(builder, job, layer, segments, False, name, [last])
            name = f"sum dK,dV {part + 1}/{parts}"
            reduced = builder.collective("reduce_scatter", "sp", size / parts, name, after=[last], stream="context")
        segments, causal = own_segments(job, layer, position)
        attention_backward(builder, job, layer, segments, causal, "attention own block backward", [last])
        return builder.compute("dK,dV here", after=[reduced])
    segments = visible_segments(job, plan.sp, position)
    attended = attention_backward(builder, job, layer, segments, work.causal, "attention backward", [after])
    reduced = builder.collective("reduce_scatter", "sp", size, "sum dK,dV", after=[attended], stream="context")
    return builder.compute("dK,dV here", after=[reduced])


def buffers(job: Job) -> Iterator[Buffer]:
    """The whole context of one layer.

    Training keeps it for every layer and micro-batch in flight until the backward (recomputation does not repeat the
    gather), and one more for its gradient; a stack that gathers again keeps one layer's.
    """
    kinds = [shard_of(job)] if not job.step.serves else [job.layer(job.plan.tp, b) for b in job.model.distinct]
    one_layer = max(context_bytes(job, layer) + latent_bytes(job, layer) for layer in kinds)
    yield Buffer("gathered_context", one_layer, Lifetime.LAYER)
    yield from unpacked(job, shard_of(job))
    if job.training:
        kept = Lifetime.LAYER if job.work.stack.regathers_context else Lifetime.IN_FLIGHT
        yield Buffer("gathered_context", one_layer, kept)


CUT = Choice(
    switches=("overlap_by",),
    first=("overlap_by",),
    options=lambda job, mesh: iter([{"overlap_by": "heads"}, {"overlap_by": "blocks"}]),
    word=lambda plan: "b" if plan.overlap_by == "blocks" else "",
    sentence=lambda plan: f"gathers of K and V overlapped by {plan.overlap_by}",
)


def check(job: Job) -> Refusal:
    """Overlap by blocks attends slices of a context, which selection and states over the whole context do not allow."""
    if not (job.plan.overlap is True and job.plan.overlap_by == "blocks" and job.step.serves):
        return None
    return in_parts_refused(job)


def choices(plan: Plan) -> tuple[Choice, ...]:
    return (CUT,) if plan.overlap is True else ()


METHOD = CONTEXT_METHODS.register(
    ContextMethod(
        name="all_gather",
        summary="K and V of all shards are gathered before they are attended",
        forward=forward,
        backward=backward,
        received_bytes=others_context,
        buffers=buffers,
        check=check,
        choices=choices,
        can_overlap=True,
        merges=lambda plan: plan.overlap is True and plan.overlap_by == "blocks",
        over_cache=True,
        selects=True,
        word="gather",
        launched={"megatron": "allgather", "torchtitan": "allgather"},
        assumption="Sequence shards gather K and V before they attend (`exchange: all_gather`).",
    )
)
