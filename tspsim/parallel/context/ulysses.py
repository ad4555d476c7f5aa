"""DeepSpeed-Ulysses: all-to-alls from token shards to head shards and back (Jacobs et al. 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...model.layer import LayerShard
from ..builder import ProgramBuilder
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import Refusal
from ..unpacked import unpacked
from .attention import attention_backward, cached_bytes, expand, latent_bytes, shard_of, visible_segments
from .method import CONTEXT_METHODS, ContextMethod


def forward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """All-to-all from token shards to head shards, attention over the whole sequence, all-to-all back."""
    plan, work = job.plan, job.work
    rows = job.tokens * job.activation_bytes
    ready, latents = [after], latent_bytes(job, layer)
    if latents:
        ready = [builder.collective("all_gather", "sp", latents, "gather latents", after=ready, stream="context")]
    inside = builder.collective(
        "all_to_all",
        "sp",
        rows * (layer.query_width + 2 * layer.kv_width) + cached_bytes(job, layer) / plan.sp,
        "tokens to heads",
        after=ready,
        stream="context",
    )
    segments = visible_segments(job, 1, 0)
    kernel = layer.attention(segments, causal=work.causal, buckets=plan.sp)
    expanded = expand(job, replace(layer, shards=layer.shards * plan.sp))
    attended = builder.compute("attention", *expanded, kernel, after=[inside])
    return builder.collective(
        "all_to_all", "sp", rows * layer.output_width, "heads to tokens", after=[attended], stream="context"
    )


def backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """The forward's two all-to-alls reversed: dO to heads, dQ, dK, dV to tokens."""
    plan, work = job.plan, job.work
    rows = job.tokens * job.activation_bytes
    inside = builder.collective(
        "all_to_all", "sp", rows * layer.output_width, "d tokens to heads", after=[after], stream="context"
    )
    segments = visible_segments(job, 1, 0)
    attended = attention_backward(
        builder, job, layer, segments, work.causal, "attention backward", [inside], buckets=plan.sp
    )
    size = rows * (layer.query_width + 2 * layer.kv_width)
    back = builder.collective("all_to_all", "sp", size, "d heads to tokens", after=[attended], stream="context")
    return builder.compute("dQ,dK,dV here", after=[back])


def exchanged_elements(job: Job) -> float:
    """Elements of a rank's tokens that move to heads (Q, K, V) and back (the output)."""
    layer = shard_of(job)
    return job.tokens * (layer.query_width + 2 * layer.kv_width + layer.output_width)


def received_bytes(job: Job) -> float:
    layer, away = shard_of(job), (job.plan.sp - 1) / job.plan.sp
    cached = cached_bytes(job, layer) / job.plan.sp + latent_bytes(job, layer)
    return away * (exchanged_elements(job) * job.activation_bytes + cached)


def buffers(job: Job) -> Iterator[Buffer]:
    """The exchanged copies of one layer, and their gradients while training."""
    layer = shard_of(job)
    cached = cached_bytes(job, layer) / job.plan.sp + latent_bytes(job, layer)
    exchanged = exchanged_elements(job) * job.activation_bytes + cached
    yield Buffer("gathered_context", exchanged * (2 if job.training else 1), Lifetime.LAYER)
    yield from unpacked(job, replace(layer, shards=layer.shards * job.plan.sp))


def check(job: Job) -> Refusal:
    shards, heads = job.head_shards, job.model.kv_heads
    if shards <= heads:
        return None
    return "exchange", f"ulysses needs sp·tp <= {heads} key/value heads, not {shards}; use all_gather or ring"


METHOD = CONTEXT_METHODS.register(
    ContextMethod(
        name="ulysses",
        summary="all-to-alls turn shards of tokens into shards of heads, and back",
        launched={"megatron": "a2a"},
        forward=forward,
        backward=backward,
        received_bytes=received_bytes,
        buffers=buffers,
        head_shards=lambda plan: plan.sp,
        check=check,
        distinct=True,
        over_cache=True,
        floor_like="all_gather",
    )
)
