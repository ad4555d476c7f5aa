"""Ring attention: K and V hop from shard to shard and are attended block by block (Liu et al. 2023).

Without FlashAttention a row of scores must be complete before its softmax, and the same hops are those of Ring
Self-Attention (Li et al. 2021, arXiv 2105.13120): K blocks pass while scores are filled, V blocks while the output is
summed, without overlap. Every rank then keeps S/n × S scores per head.

With kernel time c and hop time w per block, and L rings that share no link, a layer's attention takes

    c + (n − 1)·max(c, w/L)    overlapped (TASP, Wang et al. 2025, arXiv 2509.26541: L = n − 1), or
    n·c + (n − 1)·w/L          one after the other
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.layer import LayerShard
from ...operators import Operator
from .. import rings
from ..builder import ProgramBuilder
from ..choice import Choice
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..partition import Segments
from ..pipeline import Refusal
from ..plan import Plan
from ..switches import CONTEXT_TRANSPORTS
from ..unpacked import unpacked
from .attention import (
    attention_backward,
    context_bytes,
    expand,
    from_owner,
    held_segments,
    latent_bytes,
    others_context,
    shard_of,
)
from .method import CONTEXT_METHODS, ContextMethod


def forward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """sp − 1 hops: attend the present block while the neighbour's arrives (one after the other: ``overlap: false``)."""
    plan = job.plan
    size = block_bytes(job, layer)
    overlap = plan.overlap is not False
    arrived, last = {0: after}, after
    for step in range(plan.sp):
        segments, causal = step_segments(job, layer, position, step)
        operators: list[Operator] = []
        if segments:
            operators = [*expand(job, layer, 1 / plan.sp), layer.attention(segments, causal=causal)]
        if segments and step:
            operators.append(layer.merge(job.tokens))
        if overlap:
            for later in departing(job, step):
                # Two buffers: a block may arrive when the one two steps before it has been attended.
                waits = [arrived[later - lead_of(job, later)], last]
                arrived[later] = bring_context(builder, job, later, size, "K,V", waits)
        last = builder.compute(f"attention block {step + 1}", *operators, after=[arrived[step]])
        if not overlap and step < plan.sp - 1:
            arrived[step + 1] = bring_context(builder, job, step + 1, size, "K,V", [last])
    return last


def block_bytes(job: Job, layer: LayerShard) -> float:
    """Bytes of K and V of one shard, with its part of the cache."""
    return (context_bytes(job, layer) + latent_bytes(job, layer)) / job.plan.sp


def backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    """K and V hop again, and gradients to which every rank adds; one more hop returns the gradients to their owners."""
    plan = job.plan
    block = 2 * job.tokens * layer.kv_width * job.activation_bytes
    last, arrived = after, {0: after}
    home: list[int] = []
    for step in range(plan.sp):
        segments, causal = step_segments(job, layer, position, step)
        for later in departing(job, step) if plan.overlap is not False else range(step + 1, min(step + 2, plan.sp)):
            waits = [arrived[later - lead_of(job, later)], last] if plan.overlap is not False else [last]
            arrived[later] = bring_context(builder, job, later, block, "K,V, backward,", waits)
        name = f"attention block {step + 1} backward"
        last = attention_backward(builder, job, layer, segments, causal, name, [arrived[step], last])
        if plan.context_transport == "multi_ring":
            sent = rings.reduce_gradients(builder, job, "sp", step, block, "dK,dV", [last], "context gradients")
            home = [*home, sent]
        else:
            name = f"dK,dV hop {step + 1}"
            home = [builder.ring_hop("sp", block, name, after=[last], stream="context gradients")]
    # The last hop returns a rank's own gradients.
    return builder.compute("dK,dV here", after=home)


def step_segments(job: Job, layer: LayerShard, position: int, step: int) -> tuple[Segments, bool]:
    """The segments of the block that a shard holds at a step of the ring, and whether they are causal."""
    plan = job.plan
    if plan.context_transport == "ring" or not step:
        return from_owner(job, layer, position, (position - step) % plan.sp)
    owners = rings.owners(job, "sp", position, step)
    held = [(owner, part, len(owners)) for part, owner in enumerate(owners)]
    return held_segments(job, layer, position, held), False


def lead_of(job: Job, step: int) -> int:
    """Steps between a block's departure and its use."""
    return rings.lead(job, "sp", step) if job.plan.context_transport == "multi_ring" else 1


def departing(job: Job, step: int) -> list[int]:
    """Steps whose blocks depart at ``step``."""
    ahead = {1, *([job.plan.node_ranks("sp")] if job.plan.context_transport == "multi_ring" else [])}
    near = (step + steps for steps in sorted(ahead) if step + steps < job.plan.sp)
    return [later for later in near if later - lead_of(job, later) == step]


def bring_context(builder: ProgramBuilder, job: Job, step: int, size_bytes: float, name: str, after: list[int]) -> int:
    """Receive the K and V of a step: over one ring, or on a mesh over all links of a GPU."""
    if job.plan.context_transport == "multi_ring":
        return rings.bring(builder, job, "sp", step, size_bytes, name, after, "context")
    return builder.ring_hop("sp", size_bytes, f"{name} hop {step}", after=after, stream="context")


def buffers(job: Job) -> Iterator[Buffer]:
    """The present block and the arriving one, with their gradients while training; twice that if blocks also arrive by
    the rails."""
    plan = job.plan
    block = block_bytes(job, shard_of(job))
    levels = 2 if plan.context_transport == "multi_ring" and plan.node_ranks("sp") < plan.sp else 1
    yield Buffer("gathered_context", block * (4 if job.training else 2) * levels, Lifetime.LAYER)
    yield from unpacked(job, shard_of(job), 1 / plan.sp)
    # If kept for the backward, they count as activations.
    if not job.work.stack.flash_attention and not (job.training and plan.recomputation == "none"):
        scores = job.tokens * job.work.sequence * job.model.heads / plan.tp
        yield Buffer("written_scores", scores * job.activation_bytes, Lifetime.LAYER)


def check(job: Job) -> Refusal:
    uneven = rings.refused(job.plan, "sp") if job.plan.context_transport == "multi_ring" else None
    return ("context_transport", uneven) if uneven else None


LINKS = Choice(
    switches=("context_transport",),
    first=("context_transport",),
    options=lambda job, mesh: iter([{"context_transport": name} for name in CONTEXT_TRANSPORTS[: 1 + mesh]]),
    word=lambda plan: "r" if plan.context_transport == "multi_ring" else "",
    sentence=lambda plan: f"K and V round {'several rings' if plan.context_transport == 'multi_ring' else 'one ring'}",
)


def choices(plan: Plan) -> tuple[Choice, ...]:
    return (LINKS,)


METHOD = CONTEXT_METHODS.register(
    ContextMethod(
        name="ring",
        summary="K and V hop from shard to shard while the block that is here is attended",
        forward=forward,
        backward=backward,
        received_bytes=others_context,
        buffers=buffers,
        check=check,
        choices=choices,
        overlaps=True,
        launched={"megatron": "p2p", "torchtitan": "alltoall"},  # torchtitan's shards go round by an all-to-all
        documents=False,
        over_cache=True,
        by_position=True,
        merges=lambda plan: plan.overlap is not False or plan.context_transport != "ring",
        floor_like="all_gather",
    )
)
