"""TokenRing: queries hop instead of K and V, and outputs return directly (Wang et al. 2024, arXiv 2412.20501).

Both directions of a link are used at once: queries move one place per step, outputs as many places back as their
queries have moved. With g heads per K/V pair, a block of queries has g/2 times the bytes of K and V for as many tokens:
it moves less than a ring of K and V only without grouped queries, and only over links whose directions share no port.
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

#: Bytes of the log-sum-exp per head and token, and of the row sums that a backward needs.
FP32_BYTES = 4.0


def forward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """sp steps: attend the local K and V with the present queries while those move on and the previous step's outputs
    return. A rank merges returned outputs into its own; the last merge overlaps with nothing."""
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
    """K, V and their gradients stay: queries, output gradients and softmax statistics move on, query gradients return.

    Derived; the paper has the forward alone.
    """
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
    """Return the result of queries that have moved ``step`` places."""
    where = f"{name} home from {step} on"
    return builder.pass_on("sp", -step, size_bytes, where, after=[after], stream="context back")


def merge(builder: ProgramBuilder, job: Job, layer: LayerShard, step: int, home: int) -> int:
    """Merge a returned output into the rank's own."""
    return builder.compute(f"merge block {step + 1}", layer.merge(job.tokens), after=[home])


def kernels(job: Job, layer: LayerShard, position: int, step: int) -> tuple[Operator, ...]:
    """Kernels over the local K and V of queries that have moved ``step`` places."""
    segments, causal = step_segments(job, layer, position, step)
    own = () if step else expand(job, layer, 1 / job.plan.sp)
    return (*own, layer.attention(segments, causal=causal)) if segments else tuple(own)


def step_segments(job: Job, layer: LayerShard, position: int, step: int) -> tuple[Segments, bool]:
    """The segments of this shard's block that queries from ``step`` places away attend, and whether they are causal."""
    return from_owner(job, layer, (position - step) % job.plan.sp, position)


def query_bytes(job: Job, layer: LayerShard) -> float:
    """Bytes of one shard's queries."""
    return float(job.tokens * layer.query_width * job.activation_bytes)


def output_bytes(job: Job, layer: LayerShard) -> float:
    """Bytes of one shard's outputs, with the log-sum-exp of every head."""
    return float(job.tokens * (layer.output_width * job.activation_bytes + FP32_BYTES * layer.heads))


def received_bytes(job: Job) -> float:
    """All other ranks' queries, and the rank's own outputs from all others; no K and V."""
    layer = shard_of(job)
    return (job.plan.sp - 1) * (query_bytes(job, layer) + output_bytes(job, layer))


def buffers(job: Job) -> Iterator[Buffer]:
    """Queries that are present and that arrive, an output that leaves and one that arrives; while training, output
    gradients beside the queries, and query gradients in place of outputs."""
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
