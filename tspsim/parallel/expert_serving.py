"""Routed experts of a serving step: tokens go to the ranks of their experts, or to all of them, and sums come back."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.layer import LayerShard
from ..program import Tokens
from .builder import ProgramBuilder
from .expert import Shared
from .expert_rows import load_of, routed_shard, touched_experts
from .interleave import EXCHANGE
from .plan import Job


def serve(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int], shared: Shared | None) -> list[int]:
    """The MLP of a layer whose experts are on other replicas as well: tokens go there, or to all, and sums come back.

    Ranks of ``tp`` have the same tokens; each takes its part of them to the experts, and gathers the whole afterwards.
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
    row_bytes = job.model.hidden * (dispatch.element_bytes or job.activation_bytes)
    if dispatch.gathers:
        size = plan.ep * tokens * job.model.hidden * job.activation_bytes
        arrived = [
            builder.collective("all_gather", "ep", size, "tokens to all", after=[chosen, *done], stream=EXCHANGE)
        ]
    else:
        arrived = all_to_all(builder, job, "dispatch", 0, row_bytes, [chosen, *done])
    if shared and beside:
        done = shared([chosen])
    load = load_of(job, position)
    pairs = tokens * experts.topk * load
    touched = touched_experts(job, plan.ep * tokens, position)
    multiplied = builder.compute("experts", routed.fused(plan.ep * tokens, pairs, touched), after=arrived)
    if dispatch.gathers:
        back = [builder.collective("reduce_scatter", "ep", size, "sum experts", after=[multiplied], stream=EXCHANGE)]
    else:
        wide = job.model.hidden * job.activation_bytes
        back = all_to_all(builder, job, "combine", 1, wide, [multiplied])
    if plan.tp > 1:
        whole = job.tokens * job.model.hidden * job.activation_bytes
        back = [builder.collective("all_gather", "tp", whole, "tokens of experts", after=back)]
    return [*back, *done]


def all_to_all(
    builder: ProgramBuilder, job: Job, name: str, phase: int, row_bytes: float, after: Sequence[int]
) -> list[int]:
    """One way between the ranks of tokens and those of their experts, of a serving step."""
    experts, dispatch, tokens = job.model.experts, job.plan.dispatch, routed_tokens(job)
    assert experts is not None
    algorithm, exchanged = None, None
    if dispatch.phases is not None:
        algorithm = dispatch.phases[phase]
        choice = experts.count, experts.topk, experts.groups, experts.kept_groups
        exchanged = Tokens(tokens * load_of(job, None), row_bytes, *choice)
    size = tokens * dispatch.copies(job.plan.ep, experts) * load_of(job, None) * row_bytes
    return [
        builder.collective(
            "all_to_all", "ep", size, name, after=after, stream=EXCHANGE, algorithm=algorithm, tokens=exchanged
        )
    ]


def routed_tokens(job: Job) -> int:
    """Tokens that a rank takes to experts in a serving step: its part of those that its ranks of ``tp`` all have."""
    return -(-job.tokens // job.plan.tp)
