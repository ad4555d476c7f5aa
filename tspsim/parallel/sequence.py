"""Sequence (context) parallelism: how the ranks of the ``sp`` axis see each other's K and V.

An exchange writes the attention of one layer, or its backward, and returns the instruction whose end means that the
local result is complete. Liu et al. 2023 (Ring Attention), Jacobs et al. 2023 (DeepSpeed-Ulysses), Llama 3 report
§3.3.2 (all-gather).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from ..model.layer import LayerShard
from ..operators import Operator
from .partition import block_segments, local_segments
from .plan import Job
from .script import Script

Attend = Callable[[Script, Job, LayerShard, int, int], int]


@dataclass(frozen=True)
class Exchange:
    """``(script, job, layer shard, position on the axis, what to wait for) → last instruction``, both ways."""

    forward: Attend
    backward: Attend


def attend_local(script: Script, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """One shard, no exchange: the whole context is here."""
    work = job.work
    segments = local_segments(job.plan.partition, work.sequence, 1, 0, job.sequences, work.causal)
    return script.compute("attention", layer.attention(segments, causal=work.causal), after=[after])


def attend_local_backward(script: Script, job: Job, layer: LayerShard, position: int, after: int) -> int:
    work = job.work
    segments = local_segments(job.plan.partition, work.sequence, 1, 0, job.sequences, work.causal)
    return attention_backward(script, job, layer, segments, work.causal, "attention backward", [after])


def attention_backward(
    script: Script,
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
    return script.compute(name, *(again if segments else ()), *((kernel,) if segments else ()), after=after)


def all_gather(script: Script, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """K and V of all shards are gathered, then attended; overlapped, head bucket by head bucket.

    The gathered K and V are kept for the backward, so recomputation does not gather again.
    """
    plan, work = job.plan, job.work
    segments = local_segments(plan.partition, work.sequence, plan.sp, position, job.sequences, work.causal)
    buckets = gcd(plan.overlap_chunks, layer.kv_heads) if plan.overlap else 1
    size = 2 * job.group_tokens * layer.kv_width * job.activation_bytes / buckets
    last = after
    for bucket in range(buckets):
        gathered = after
        if not script.recomputing:
            gathered = script.collective("all_gather", "sp", size, "gather K,V", after=[after], stream="context")
        last = script.compute(
            f"attention {bucket + 1}/{buckets}" if buckets > 1 else "attention",
            layer.attention(segments, causal=work.causal, buckets=buckets),
            after=[gathered],
        )
    return last


def all_gather_backward(script: Script, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """dK and dV of the whole context go to the shards that own them: a reduce-scatter."""
    plan, work = job.plan, job.work
    segments = local_segments(plan.partition, work.sequence, plan.sp, position, job.sequences, work.causal)
    attended = attention_backward(script, job, layer, segments, work.causal, "attention backward", [after])
    size = 2 * job.group_tokens * layer.kv_width * job.activation_bytes
    reduced = script.collective("reduce_scatter", "sp", size, "sum dK,dV", after=[attended], stream="context")
    return script.compute("dK,dV here", after=[reduced])


def ring(script: Script, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """Σ−1 hops: attend the block that is here while the neighbour's travels (exposed with ``overlap: false``)."""
    plan, work = job.plan, job.work
    size = 2 * job.tokens * layer.kv_width * job.activation_bytes
    overlap = plan.overlap is not False
    arrived, last = after, after
    for hop in range(plan.sp):
        owner = (position - hop) % plan.sp
        segments, causal = block_segments(
            plan.partition, work.sequence, plan.sp, position, owner, job.sequences, work.causal
        )
        operators: list[Operator] = [layer.attention(segments, causal=causal)] if segments else []
        if segments and hop:
            operators.append(layer.merge(job.tokens))
        here = arrived
        if overlap and hop < plan.sp - 1:
            # Two buffers: the block that arrives next lands where the one before this was read from.
            arrived = script.ring_hop("sp", size, f"K,V hop {hop + 1}", after=[here, last], stream="context")
        last = script.compute(f"attention block {hop + 1}", *operators, after=[here])
        if not overlap and hop < plan.sp - 1:
            arrived = script.ring_hop("sp", size, f"K,V hop {hop + 1}", after=[last], stream="context")
    return last


def ring_backward(script: Script, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """K, V travel again with the gradients that every rank adds to; one more hop brings those home."""
    plan, work = job.plan, job.work
    block = 2 * job.tokens * layer.kv_width * job.activation_bytes
    last = arrived = after
    for hop in range(plan.sp):
        owner = (position - hop) % plan.sp
        segments, causal = block_segments(
            plan.partition, work.sequence, plan.sp, position, owner, job.sequences, work.causal
        )
        here = arrived
        if hop < plan.sp - 1:
            waits = [here] if plan.overlap is not False else [last]
            arrived = script.ring_hop("sp", block, f"K,V hop {hop + 1} backward", after=waits, stream="context")
        last = attention_backward(
            script, job, layer, segments, causal, f"attention block {hop + 1} backward", [here, last]
        )
        home = script.ring_hop("sp", block, f"dK,dV hop {hop + 1}", after=[last], stream="context gradients")
    # The last hop is the one that brings a rank its own gradients.
    return script.compute("dK,dV here", after=[home])


def ulysses(script: Script, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """All-to-all from token shards to head shards, attention over the whole sequence, all-to-all back."""
    plan, work = job.plan, job.work
    rows = job.tokens * job.activation_bytes
    inside = script.collective(
        "all_to_all",
        "sp",
        rows * (layer.query_width + 2 * layer.kv_width),
        "tokens to heads",
        after=[after],
        stream="context",
    )
    segments = local_segments(plan.partition, work.sequence, 1, 0, job.sequences, work.causal)
    attended = script.compute(
        "attention", layer.attention(segments, causal=work.causal, buckets=plan.sp), after=[inside]
    )
    return script.collective(
        "all_to_all", "sp", rows * layer.query_width, "heads to tokens", after=[attended], stream="context"
    )


def ulysses_backward(script: Script, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """The forward's two all-to-alls the other way: dO to heads, dQ, dK, dV to tokens."""
    plan, work = job.plan, job.work
    rows = job.tokens * job.activation_bytes
    inside = script.collective(
        "all_to_all", "sp", rows * layer.query_width, "d tokens to heads", after=[after], stream="context"
    )
    segments = local_segments(plan.partition, work.sequence, 1, 0, job.sequences, work.causal)
    attended = attention_backward(
        script, job, layer, segments, work.causal, "attention backward", [inside], buckets=plan.sp
    )
    size = rows * (layer.query_width + 2 * layer.kv_width)
    back = script.collective("all_to_all", "sp", size, "d heads to tokens", after=[attended], stream="context")
    return script.compute("dQ,dK,dV here", after=[back])


EXCHANGES: dict[str, Exchange] = {
    "all_gather": Exchange(all_gather, all_gather_backward),
    "ring": Exchange(ring, ring_backward),
    "ulysses": Exchange(ulysses, ulysses_backward),
}


def gathered_context(job: Job, in_flight: int) -> float:
    """Other shards' K and V alive at the peak, bytes.

    Gathered: the whole context of one layer; while training that of every layer and micro-batch ``in_flight`` is kept
    for its backward, because the gather lies outside what recomputation repeats, and one more is the gradient under
    way. Ring: the block that is here and the one that arrives, with their gradients while training. Ulysses: the
    exchanged copies of one layer.
    """
    plan, work, model = job.plan, job.work, job.model
    if plan.sp == 1:
        return 0.0
    layer = LayerShard(model, plan.tp, work.precision, job.activation_bytes)
    training = job.training
    if plan.exchange == "all_gather":
        one_layer = 2 * job.group_tokens * layer.kv_width * job.activation_bytes
        return one_layer * (in_flight + 1 if training else 1)
    if plan.exchange == "ring":
        block = 2 * job.tokens * layer.kv_width * job.activation_bytes
        return block * (4 if training else 2)
    exchanged = job.tokens * (2 * layer.query_width + 2 * layer.kv_width) * job.activation_bytes
    return exchanged * (2 if training else 1)
