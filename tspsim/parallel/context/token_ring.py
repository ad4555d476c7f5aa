"""Queries travel instead of K and V, and outputs go straight home (Wang et al. 2024, TokenRing, arXiv 2412.20501).

Two directions of a link are used at once: queries one place on a step, outputs as many places back as their queries
have come. A query's block is g/2 times K and V of as many tokens where g heads share a pair of them: it moves less than
a ring of K and V only where every head has its own, and only over links whose directions do not share a port.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.layer import LayerShard
from ...operators import Operator
from ..builder import ProgramBuilder
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..partition import Segments
from .attention import attention_backward, expand, from_owner, shard_of
from .method import CONTEXT_METHODS, ContextMethod

#: Log-sum-exp of a head and token, and the same of the row sums that a backward needs.
FP32_BYTES = 4.0


def forward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """Σ steps: attend the local K and V with the queries that are here while they travel on, and the outputs of the
    step before home; a rank folds those into its own, the last one with nothing beside it."""
    shards, overlap = job.plan.sp, job.plan.overlap is not False
    queries, outputs = query_bytes(job, layer), output_bytes(job, layer)
    here, last, attended, home = after, after, after, after
    for step in range(shards):
        onward = here
        if overlap and step < shards - 1:
            onward = send_on(builder, queries, "Q", step, here)
        if overlap and step > 1:
            home = send_home(builder, outputs, "output", step - 1, attended)
        last = attended = builder.compute(
            f"attention block {step + 1}", *kernels(job, layer, position, step), after=[here]
        )
        if not overlap and step:
            home = send_home(builder, outputs, "output", step, attended)
        merged = step - 1 if overlap else step
        if merged >= 1:
            last = merge(builder, job, layer, merged, home)
        if not overlap and step < shards - 1:
            onward = send_on(builder, queries, "Q", step, last)
        here = onward
    if overlap and shards > 1:
        home = send_home(builder, outputs, "output", shards - 1, attended)
        last = merge(builder, job, layer, shards - 1, home)
    return last


def backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """K, V and their gradients stay: queries, gradients of outputs and what their softmax needs travel on, gradients of
    queries go home. (Derived; the paper has the forward alone.)"""
    shards, overlap = job.plan.sp, job.plan.overlap is not False
    tokens, heads = job.tokens, layer.heads
    onward_bytes = query_bytes(job, layer) + output_bytes(job, layer) + FP32_BYTES * tokens * heads
    here, last = after, after
    home: list[int] = []
    for step in range(shards):
        onward = here
        if overlap and step < shards - 1:
            onward = send_on(builder, onward_bytes, "Q,dO", step, here)
        segments, causal = step_segments(job, layer, position, step)
        name = f"attention block {step + 1} backward"
        last = attention_backward(builder, job, layer, segments, causal, name, [here, last])
        if step:
            home.append(send_home(builder, query_bytes(job, layer), "dQ", step, last))
        if not overlap and step < shards - 1:
            onward = send_on(builder, onward_bytes, "Q,dO", step, home[-1] if home else last)
        here = onward
    return builder.compute("sum dQ", *(layer.merge(tokens) for _ in home), after=[last, *home])


def send_on(builder: ProgramBuilder, size_bytes: float, name: str, step: int, after: int) -> int:
    return builder.ring_hop("sp", size_bytes, f"{name} hop {step + 1}", after=[after], stream="context")


def send_home(builder: ProgramBuilder, size_bytes: float, name: str, step: int, after: int) -> int:
    """Of the queries that have come ``step`` places."""
    where = f"{name} home from {step} on"
    return builder.pass_on("sp", -step, size_bytes, where, after=[after], stream="context back")


def merge(builder: ProgramBuilder, job: Job, layer: LayerShard, step: int, home: int) -> int:
    """Fold what came home into a rank's own output."""
    return builder.compute(f"merge block {step + 1}", layer.merge(job.tokens), after=[home])


def kernels(job: Job, layer: LayerShard, position: int, step: int) -> tuple[Operator, ...]:
    """Kernels of the queries that came ``step`` places, over the local K and V."""
    segments, causal = step_segments(job, layer, position, step)
    own = () if step else expand(job, layer, 1 / job.plan.sp)
    return (*own, layer.attention(segments, causal=causal)) if segments else tuple(own)


def step_segments(job: Job, layer: LayerShard, position: int, step: int) -> tuple[Segments, bool]:
    """What queries that came ``step`` places attend of this shard's block, and whether that is causal."""
    return from_owner(job, layer, (position - step) % job.plan.sp, position)


def query_bytes(job: Job, layer: LayerShard) -> float:
    """Of one shard's queries."""
    return float(job.tokens * layer.query_width * job.activation_bytes)


def output_bytes(job: Job, layer: LayerShard) -> float:
    """Of one shard's outputs, with the log-sum-exp of every head."""
    latent = job.model.latent
    width = layer.heads * latent.value_dim if latent else layer.query_width
    return float(job.tokens * (width * job.activation_bytes + FP32_BYTES * layer.heads))


def received_bytes(job: Job) -> float:
    """Everybody else's queries, and one's own outputs from everybody else: no K, no V."""
    layer = shard_of(job)
    return (job.plan.sp - 1) * (query_bytes(job, layer) + output_bytes(job, layer))


def buffers(job: Job) -> Iterator[Buffer]:
    """Queries that are here and that arrive, an output that leaves and one that arrives; while training the gradients
    of outputs beside the queries, and gradients of queries instead of outputs."""
    layer = shard_of(job)
    queries, outputs = query_bytes(job, layer), output_bytes(job, layer)
    forward_bytes = 2 * (queries + outputs)
    backward_bytes = 2 * (queries + outputs + FP32_BYTES * job.tokens * layer.heads) + 2 * queries
    yield Buffer("gathered_context", backward_bytes if job.training else forward_bytes, Lifetime.LAYER)


METHOD = CONTEXT_METHODS.register(
    ContextMethod(
        name="token_ring",
        summary="queries hop from shard to shard, outputs go straight home, K and V stay",
        forward=forward,
        backward=backward,
        received_bytes=received_bytes,
        buffers=buffers,
        overlaps=True,
        documents=False,
        over_cache=True,
        distinct=True,
        by_position=True,
        merges=lambda plan: True,
        floor_like="all_gather",
    )
)
