"""Mixture of experts: a layer's routed MLP under any scheme, with or without expert parallelism.

With ``ep`` = N > 1 each rank of an expert group holds E/N whole experts. A rank's own tokens go to the ranks of their
experts and come back summed (*dispatch* and *combine*): two all-to-alls a forward, two of their gradients a backward
(Lepikhin et al. 2020, GShard, §3; Rajbhandari et al. 2022, DeepSpeed-MoE, §5). A token travels once to a rank, however
many of its k experts are there, so with experts chosen at random a rank sends D(N, k) = N·(1 − (1 − 1/N)^k) rows a
token, itself included; or k with ``expert_dispatch: experts``. Without expert groups every rank has all experts, or
with ``tp`` a part of the columns of each.

The rows that meet a rank's experts are those of the busiest rank (``Work.routing``): all wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

from ..model import Experts
from ..model.layer import LayerShard, gradients
from ..model.routed import RoutedShard
from ..network import places_reached
from ..operators import Gemm, Operator
from ..program import Tokens
from .builder import ProgramBuilder
from .plan import Job
from .recompute import cheap_again
from .weave import EXCHANGE

#: What to wait for → what its end is: the forward or backward of shared experts, as the scheme has it.
Shared = Callable[[list[int]], list[int]]


def own_tokens(job: Job) -> int:
    """Tokens that a rank routes: those it holds, with sequence regions 1/T of them."""
    return job.tokens // (job.plan.tp if job.plan.sequence_regions else 1)


def distinct_ranks(ranks: int, experts: Experts) -> float:
    """D(N, k): ranks that hold the experts of one token, chosen at random, in the groups it may choose from.

    >>> few, many = Experts(256, 8, 2048), Experts(256, 8, 2048, groups=8, kept_groups=4)
    >>> [round(distinct_ranks(ranks, few), 3) for ranks in (1, 8, 64)]
    [1.0, 5.251, 7.576]
    >>> [round(distinct_ranks(ranks, many), 3) for ranks in (1, 2, 8, 64)]
    [1.0, 1.922, 3.6, 7.178]
    """
    return places_reached(ranks, experts.topk, experts.groups, experts.kept_groups)


def sent_rows(job: Job) -> float:
    """Rows that the busiest rank of an expert group receives, which are those one sends when the load is balanced."""
    experts, plan = job.model.experts, job.plan
    if experts is None or plan.ep == 1:
        return 0.0
    load = job.work.routing.busiest(experts.count, plan.ep)
    copies = experts.topk if plan.expert_dispatch == "experts" else distinct_ranks(plan.ep, experts)
    return own_tokens(job) * copies * load


def routed_shard(job: Job, tokens: int | None = None) -> RoutedShard:
    """The experts of a rank and the rows that meet each, of ``tokens`` tokens a rank (None: all of them)."""
    experts, plan = job.model.experts, job.plan
    assert experts is not None
    grouped = plan.ep > 1
    if tokens is None:
        tokens = own_tokens(job) if grouped else job.tokens
    rows = tokens * plan.ep * experts.topk / experts.count * job.work.routing.busiest(experts.count, plan.ep)
    columns = 1 if grouped else plan.tp
    return RoutedShard(
        job.model, experts.count // plan.ep, ceil(rows), columns, job.work.precision, job.activation_bytes
    )


# --- all experts here ---------------------------------------------------------------------------------------


def local_forward(job: Job, layer: LayerShard, tokens: int) -> tuple[Operator, ...]:
    """Router, routed and shared experts of tokens that need not travel."""
    routed = routed_shard(job, tokens)
    shared: tuple[Operator, ...] = ()
    if layer.ffn:
        shared = layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens)
    return (
        routed.router(tokens), routed.choose(tokens), *_multiply(routed), routed.sum_rows(routed.all_rows, tokens),
        *shared,
    )  # fmt: skip


def local_products(job: Job, layer: LayerShard, tokens: int) -> tuple[tuple[Gemm, ...], tuple[Gemm, ...]]:
    """The products that tokens enter (router, gate and up), and those that they leave by (down)."""
    routed = routed_shard(job, tokens)
    entering, leaving = (routed.router(tokens), routed.gate_up()), (routed.down(),)
    if not layer.ffn:
        return entering, leaving
    return (*entering, layer.gate_up(tokens)), (*leaving, layer.down(tokens))


def local_activation_backward(job: Job, layer: LayerShard, tokens: int) -> tuple[Operator, ...]:
    """Between the two: gradients of the sum of experts, of their columns, and of the order of rows."""
    routed = routed_shard(job, tokens)
    shared: tuple[Operator, ...] = ()
    if layer.ffn:
        shared = *cheap_again(job, layer.activation(tokens)), layer.activation_backward(tokens)
    return (
        routed.copy(routed.all_rows, "d rows to experts"), *cheap_again(job, routed.activation()),
        routed.activation_backward(), *shared,
        routed.sum_rows(routed.all_rows, tokens),
    )  # fmt: skip


# --- expert groups ------------------------------------------------------------------------------------------


def forward(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int], shared: Shared | None) -> int:
    """Norm and router, dispatch, experts, combine; shared experts before the dispatch, or beside it."""
    routed, tokens = routed_shard(job), own_tokens(job)
    chosen = builder.compute(
        "norm, router", layer.norm(tokens), routed.router(tokens), routed.choose(tokens), after=after
    )
    beside = job.plan.expert_overlap != "none"
    done = shared([chosen]) if shared and not beside else []
    arrived = exchange(builder, job, routed, "dispatch", [chosen, *done], pack=True)
    if shared and beside:
        done = shared([chosen])
    multiplied = builder.compute("experts", *_multiply(routed), *_gather_sums(job, routed), after=arrived)
    back = exchange(builder, job, routed, "combine", [multiplied])
    rows = sent_rows(job) or routed.all_rows
    return builder.compute("sum of experts", routed.sum_rows(rows, tokens), after=[*back, *done])


def backward(builder: ProgramBuilder, job: Job, layer: LayerShard, shared: Shared | None) -> int:
    """The forward mirrored: gradients of the sums are dispatched, those of the rows come back."""
    routed, tokens = routed_shard(job), own_tokens(job)
    beside = job.plan.expert_overlap != "none"
    done = shared([]) if shared and not beside else []
    arrived = exchange(builder, job, routed, "dispatch gradients", done, pack=True)
    if shared and beside:
        done = shared([])
    multiplied = builder.compute(
        "experts backward",
        routed.copy(routed.all_rows, "d rows to experts"),
        *builder.gradients(routed.down()),
        *cheap_again(job, routed.activation()),
        routed.activation_backward(),
        *builder.gradients(routed.gate_up()),
        *_gather_sums(job, routed),
        after=arrived,
    )
    back = exchange(builder, job, routed, "combine gradients", [multiplied])
    rows = sent_rows(job) or routed.all_rows
    return builder.compute(
        "router, norm backward",
        routed.sum_rows(rows, tokens),
        *builder.gradients(routed.router(tokens)),
        *cheap_again(job, layer.norm(tokens)),
        layer.norm_backward(tokens),
        after=[*back, *done],
    )


def weight_gradients(job: Job, layer: LayerShard, tokens: int) -> tuple[Gemm, ...]:
    """Gradients of the weights of a layer's MLP, put off by a zero-bubble schedule."""
    if job.plan.ep == 1:
        entering, leaving = local_products(job, layer, tokens)
        return tuple(gradients(product)[1] for product in (*entering, *leaving))
    routed = routed_shard(job)
    products = [routed.router(own_tokens(job)), routed.gate_up(), routed.down()]
    if layer.ffn:
        products += [layer.gate_up(tokens), layer.down(tokens)]
    return tuple(gradients(product)[1] for product in products)


def exchange(
    builder: ProgramBuilder, job: Job, routed: RoutedShard, name: str, after: Sequence[int], *, pack: bool = False
) -> list[int]:
    """An all-to-all of rows over the expert group; with ``pack`` a rank puts its tokens' rows in order first.

    Nothing without a group. Returns what to wait for.
    """
    if job.plan.ep == 1:
        return list(after)
    experts, rows = routed.experts, sent_rows(job)
    if pack:
        after = [builder.compute(f"pack rows for {name}", routed.copy(rows, "pack rows"), after=after)]
    row_bytes = job.model.hidden * job.activation_bytes
    phase, tokens = None, None
    if job.plan.expert_dispatch == "ranks":
        load = job.work.routing.busiest(experts.count, job.plan.ep)
        phase = "dispatch" if name.startswith("dispatch") else "combine"
        choice = experts.count, experts.topk, experts.groups, experts.kept_groups
        tokens = Tokens(own_tokens(job) * load, row_bytes, *choice)
    size = rows * row_bytes
    return [
        builder.collective(
            "all_to_all", "ep", size, name, after=after, stream=EXCHANGE, algorithm=phase, tokens=tokens
        )
    ]


def _multiply(routed: RoutedShard) -> tuple[Operator, ...]:
    """Rows put in the order of their experts, and both of their products."""
    ordered = routed.copy(routed.all_rows, "rows to experts")
    return ordered, routed.gate_up(), routed.activation(), routed.down()


def _gather_sums(job: Job, routed: RoutedShard) -> tuple[Operator, ...]:
    """What of a token's experts is on one rank is summed before it goes back, unless each copy travels."""
    if job.plan.ep == 1 or job.plan.expert_dispatch == "experts":
        return ()
    return (routed.sum_rows(routed.all_rows, round(sent_rows(job))),)
