"""Routed experts of a serving step: tokens go to the ranks of their experts, or to all ranks, and sums return."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from ...model.layer import LayerShard, ServingLayer
from ...model.parts import WeightClass
from ...program import ExpertExchange
from ..builder import ProgramBuilder
from ..expert_rows import left, load_of, routed_shard, step_load, touched_experts
from ..interleave import EXCHANGE
from ..job import Job
from ..plan import EXPERT_NODE
from . import expert_fused
from .expert import Shared


def serve(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int], shared: Shared | None) -> list[int]:
    """The MLP of a layer with experts on other replicas: tokens go there, or to all ranks, and sums return.

    Ranks of ``tp`` (and of ``sp`` if only contexts are divided) have the same tokens; each sends its share of them to
    the experts, and gathers the whole afterwards. Exchanges and experts may be cut into pieces, as in
    ``expert.forward``; every piece reads the experts that its own tokens chose.
    """
    plan, experts = job.plan, job.model.experts
    assert experts is not None
    tokens, position, dispatch = routed_tokens(job), builder.coordinates.get("ep"), plan.dispatch
    routed = routed_shard(job, tokens, position)
    chosen = builder.compute(
        "norm, router", layer.norm(job.tokens), routed.router(tokens), routed.choose(tokens), after=after
    )
    beside = plan.hiding.shared_beside
    done = shared([chosen]) if shared and not beside else []
    row_bytes = job.model.hidden * sent_element_bytes(job)
    pieces = min(plan.expert_pieces, tokens)
    size = plan.ep * tokens * job.model.hidden * job.activation_bytes / pieces
    arrived: list[list[int]] = []
    fused = expert_fused.slices(job) if expert_fused.applies(job) else 0
    if fused:
        arrived = expert_fused.arrive(builder, fused, sent_bytes(job, 0, row_bytes), "dispatch", [chosen, *done])
    for _ in range(0 if fused else pieces):
        waits = [chosen, *done]
        if dispatch.gathers:
            name = "tokens to all"
            arrived.append([builder.collective("all_gather", "ep", size, name, after=waits, stream=EXCHANGE)])
        else:
            arrived.append(all_to_all(builder, job, "dispatch", 0, row_bytes, waits, pieces))
    if dispatch.everywhere:
        entries = plan.ep * tokens * entry_bytes(layer)
        builder.collective("all_gather", "ep", entries, "new entries to all", after=after, stream="new entries")
    planned = plan_copies(builder, job, [chosen])
    if shared and beside:
        done = shared([chosen])
    few = -(-routed_tokens(job, mean_tokens(job)) // pieces)
    pairs = few * experts.topk * step_load(job, plan.ep * few, position)
    here = tokens_here(job, few, position)
    touched = touched_experts(job, plan.ep * few, position)
    operator = routed.fused(here, pairs, touched, sent=not dispatch.gathers, layout=dispatch.layout)
    wide, back = job.model.hidden * job.activation_bytes, list[int]()
    if fused:
        size, gated = sent_bytes(job, 1, wide), job.model.gated
        back = expert_fused.serve(builder, operator, gated, fused, arrived, planned, size)
    for piece in arrived if not fused else []:
        multiplied = [builder.compute("experts", operator, after=[*piece, *planned])]
        if dispatch.gathers:
            back.append(
                builder.collective("reduce_scatter", "ep", size, "sum experts", after=multiplied, stream=EXCHANGE)
            )
        else:
            back += all_to_all(builder, job, "combine", 1, wide, multiplied, pieces)
    alike = "+".join(name for name, ranks in (("sp", job.context_ranks), ("tp", plan.tp)) if ranks > 1)
    if alike:
        whole = job.tokens * job.model.hidden * job.activation_bytes
        back = [builder.collective("all_gather", alike, whole, "tokens of experts", after=back)]
    return [*back, *done]


def tokens_here(job: Job, tokens: int, position: int | None) -> int:
    """Tokens at a rank's experts if every rank of the group has ``tokens``.

    All of them if the dispatch gathers; otherwise those that chose any of its experts, scaled by the busiest rank's
    load.
    """
    plan, experts = job.plan, job.model.experts
    assert experts is not None
    every, copies = plan.ep * tokens, plan.dispatch.copies(plan.ep, experts)
    return every if plan.dispatch.gathers else min(every, ceil(tokens * copies * step_load(job, every, position)))


def sent_element_bytes(job: Job) -> float:
    """Bytes of an element on its way to the experts."""
    dispatch, multiplied = job.plan.dispatch, job.work.formats.multiplied(WeightClass.EXPERTS)
    quantised = dispatch.quantised.get(multiplied)
    return dispatch.element_bytes or quantised or job.activation_bytes


def plan_copies(builder: ProgramBuilder, job: Job, chosen: list[int]) -> list[int]:
    """All-gather every token's choices and plan on each rank, if the balance policy chooses the copies that run;
    returns the dependencies of the experts."""
    experts, loads = job.model.experts, job.expert_loads
    assert experts is not None
    if not loads.planned:
        return []
    size = job.plan.ep * routed_tokens(job) * experts.topk * CHOICE_BYTES
    choices = builder.collective("all_gather", "ep", size, "choices to all", after=chosen, stream="choices")
    return [builder.host("plan of copies", loads.host_s, after=[choices]) if loads.host_s else choices]


#: Bytes of one choice of a token.
CHOICE_BYTES = 4


def entry_bytes(layer: LayerShard) -> float:
    """Bytes of a token's keys and values in one layer's cache."""
    assert isinstance(layer, ServingLayer)
    return layer.attention_kind.cache(layer.model, layer.composition, layer.formats.cache).token_bytes


def all_to_all(
    builder: ProgramBuilder, job: Job, name: str, phase: int, row_bytes: float, after: Sequence[int], pieces: int = 1
) -> list[int]:
    """One direction of a serving step's exchange between the ranks of tokens and of their experts, or a piece of it."""
    experts, dispatch, tokens = job.model.experts, job.plan.dispatch, routed_tokens(job)
    assert experts is not None
    algorithm, exchanged = None, None
    if dispatch.phases is not None:
        algorithm = dispatch.phases[phase]
        choice = experts.count, experts.topk, experts.groups, experts.kept_groups
        exchanged = ExpertExchange(tokens * load_of(job, None) / pieces, row_bytes, *choice)
    size = sent_bytes(job, phase, row_bytes) / pieces
    if not size:
        return list(after)
    inside: list[int] = []
    if dispatch.by_nodes is not None and job.plan.expert_nodes > 1:
        size, near = by_nodes(job, phase, size)
        if near:
            moved = builder.collective("all_to_all", EXPERT_NODE, near, f"{name} in node", after=after, stream=IN_NODE)
            inside = [moved]
    return [
        builder.collective(
            "all_to_all", "ep", size, name, after=after, stream=EXCHANGE, algorithm=algorithm, tokens=exchanged
        ),
        *inside,
    ]


def sent_bytes(job: Job, phase: int, row_bytes: float) -> float:
    """Bytes of a rank's all-to-all, dispatch (``phase`` 0) or combine (1)."""
    experts, plan = job.model.experts, job.plan
    assert experts is not None
    copies = plan.dispatch.copies(plan.ep, experts)
    return routed_tokens(job) * copies * load_of(job, None) * row_bytes * left(job)[phase]


#: Stream of what stays in a node if experts are placed on nodes first.
IN_NODE = "experts in node"


def by_nodes(job: Job, phase: int, size: float) -> tuple[float, float]:
    """Bytes of an all-to-all over the whole group that crosses nodes, and of one inside each node for the rest.

    Of N ranks with g per node, the first sends (N - g)/N of its bytes out of a node. If it then moves more inside nodes
    than needed, the rest is 0, and the links inside carry the excess.
    """
    plan, experts = job.plan, job.model.experts
    assert experts is not None and plan.dispatch.by_nodes is not None
    ranks, near = plan.ep, plan.ep // plan.expert_nodes
    across = plan.dispatch.by_nodes(job.work.routing, experts, ranks, plan.expert_nodes)[2 + phase]
    leaving = size * (ranks - 1) / ranks
    whole = leaving * across * ranks / (ranks - near)
    rest = leaving - leaving * across - whole * (near - 1) / ranks
    return whole, max(0.0, rest) * near / (near - 1)


def mean_tokens(job: Job) -> int:
    """Mean tokens of a pass over the replicas that share experts."""
    return max(1, ceil(job.tokens * job.work.load.expert_share - 1e-9))


def routed_tokens(job: Job, tokens: int | None = None) -> int:
    """Tokens that a rank sends to experts in a serving step: its share of ``tokens`` (None: the job's), which all its
    ranks of ``tp`` (and of ``sp`` if only contexts are divided) have."""
    return -(-(job.tokens if tokens is None else tokens) // (job.plan.tp * job.context_ranks))
