"""Mixture of experts: a layer's routed MLP under any scheme, with or without expert parallelism.

With ``ep`` = N > 1 each rank of an expert group holds E/N whole experts. A rank's own tokens go to the ranks of their
experts and come back summed (*dispatch* and *combine*): two all-to-alls a forward, two of their gradients a backward
(Lepikhin et al. 2020, GShard, §3; Rajbhandari et al. 2022, DeepSpeed-MoE, §5). How many copies of a token travel is the
dispatch's business (:mod:`tspsim.parallel.dispatch`). Without expert groups every rank has all experts, or with ``tp``
a part of the columns of each.

How many rows meet a rank's experts is the balance policy's (:mod:`tspsim.parallel.balance`). Exchanges carry the bytes
of the busiest rank: all wait for it. What has no position in the group is the busiest rank's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil

from ..model import Block
from ..model.formats import WeightClass
from ..model.layer import LayerShard, gradients
from ..model.routed import RoutedShard
from ..operators import Computes, Gemm, Operator
from ..program import Tokens
from .builder import ProgramBuilder
from .interleave import EXCHANGE
from .ledger import Buffer, Lifetime
from .plan import Job
from .recompute import cheap_again

#: What to wait for → what its end is: the forward or backward of shared experts, as the scheme has it.
Shared = Callable[[list[int]], list[int]]


def own_tokens(job: Job) -> int:
    """Tokens that a rank routes: those it holds, with sequence regions 1/T of them."""
    return job.tokens // (job.plan.tp if job.plan.sequence_regions else 1)


def program_axes(job: Job) -> tuple[str, ...]:
    """Axes along which programs differ for the sake of experts: the group's, where its ranks get different loads."""
    uneven = job.model.experts is not None and job.plan.ep > 1 and not job.expert_loads.even
    return ("ep",) if uneven else ()


def load_of(job: Job, position: int | None) -> float:
    """Load of a rank over the mean."""
    return job.expert_loads.busiest_rank_load if position is None else job.expert_loads.loads[position]


def sent_rows(job: Job, position: int | None = None) -> float:
    """Rows that a rank of an expert group receives, which are those one sends when the load is balanced."""
    experts, plan = job.model.experts, job.plan
    if experts is None or plan.ep == 1:
        return 0.0
    return own_tokens(job) * plan.dispatch.copies(plan.ep, experts) * load_of(job, position)


def own_rows(job: Job) -> float:
    """Rows that a rank's own tokens make on their way to experts: as many whoever has most visits, without those that
    are dropped."""
    experts, plan = job.model.experts, job.plan
    assert experts is not None
    kept = 1.0 - job.work.routing.dropped(experts.count)
    return own_tokens(job) * plan.dispatch.copies(plan.ep, experts) * kept if plan.ep > 1 else 0.0


def routed_shard(job: Job, tokens: int | None = None, position: int | None = None) -> RoutedShard:
    """The experts of a rank and the rows that meet each, of ``tokens`` tokens a rank (None: all of them)."""
    experts, plan = job.model.experts, job.plan
    assert experts is not None
    grouped, replicated = plan.ep > 1, job.replicates_tokens
    if tokens is None:
        tokens = own_tokens(job) if grouped else job.tokens
    sources = 1 if replicated else plan.ep
    rows = tokens * sources * experts.topk / experts.count * load_of(job, position)
    whole = job.whole_ranks if job.step.serves else plan.tp
    columns = whole // plan.ep if replicated else 1 if grouped else whole
    dtype, kept = job.work.precision, None
    if job.step.serves:
        formats = job.work.formats
        dtype, kept = formats.multiplied(WeightClass.EXPERTS), formats.kept(WeightClass.EXPERTS)
    return RoutedShard(job.model, experts.count // plan.ep, ceil(rows), columns, dtype, job.activation_bytes, kept)


def expert_bytes(job: Job) -> float:
    """Of one expert's weights."""
    return job.model.expert_parameters * job.weight_bytes


def moved_bytes(job: Job) -> float:
    """Bytes of the experts that a balance policy brings to a rank for one layer, of the rank that gets most."""
    return job.expert_loads.moved_experts * expert_bytes(job)


def buffers(job: Job, kinds: Mapping[Block, int]) -> Iterator[Buffer]:
    """Experts of other ranks for a layer, with their gradients while training; and copies that stay in all layers of
    ``kinds`` (of a serving step they are weights among others: :mod:`tspsim.parallel.served`)."""
    if job.model.experts is not None and job.plan.ep > 1:
        moved = moved_bytes(job)
        gradients_ = moved / job.weight_bytes * job.work.optimizer.gradients if job.training else 0.0
        yield Buffer("moved_experts", moved + gradients_, Lifetime.LAYER)
        layers = sum(count for block, count in kinds.items() if block.experts)
        if not job.step.serves:
            yield Buffer("copied_experts", job.expert_loads.further_experts * expert_bytes(job) * layers, Lifetime.STEP)


# --- all experts here ---------------------------------------------------------------------------------------


def local_forward(job: Job, layer: LayerShard, tokens: int) -> tuple[Operator, ...]:
    """Router, routed and shared experts of tokens that need not travel."""
    shared: tuple[Operator, ...] = ()
    if layer.ffn:
        shared = layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens)
    if job.step.serves:
        return *routed_forward(job, tokens), *shared
    routed = routed_shard(job, tokens)
    return (
        routed.router(tokens), routed.choose(tokens), *_multiply(routed), routed.sum_rows(routed.all_rows, tokens),
        *shared,
    )  # fmt: skip


def routed_forward(job: Job, tokens: int) -> tuple[Operator, ...]:
    """Router and routed experts of a serving step's tokens that need not travel."""
    routed = routed_shard(job, tokens)
    pairs = tokens * routed.experts.topk / job.plan.ep * load_of(job, None)
    return routed.router(tokens), routed.fused(tokens, pairs, touched_experts(job, tokens, None))


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
        routed.copy(routed.all_rows, "d rows to experts", Computes.INPUT_GRADIENT),
        *cheap_again(job, routed.activation()), routed.activation_backward(), *shared,
        routed.sum_rows(routed.all_rows, tokens),
    )  # fmt: skip


# --- expert groups ------------------------------------------------------------------------------------------


def forward(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int], shared: Shared | None) -> int:
    """Norm and router, dispatch, experts, combine; shared experts before the dispatch, or beside it."""
    position = builder.coordinates.get("ep")
    routed, tokens = routed_shard(job, position=position), own_tokens(job)
    chosen = builder.compute(
        "norm, router", layer.norm(tokens), routed.router(tokens), routed.choose(tokens), after=after
    )
    beside = job.plan.hiding.shared_beside
    planned = plan_moves(builder, job, chosen)
    here = move_experts(builder, job, "experts from other ranks", [planned])
    done = shared([chosen]) if shared and not beside else []
    arrived = exchange(builder, job, routed, "dispatch", [planned, *done], pack=True)
    if shared and beside:
        done = shared([chosen])
    operators = *_multiply(routed), *_gather_sums(job, routed, position)
    multiplied = builder.compute("experts", *operators, after=[*arrived, *here])
    back = exchange(builder, job, routed, "combine", [multiplied])
    rows = own_rows(job) or routed.all_rows
    return builder.compute("sum of experts", routed.sum_rows(rows, tokens), after=[*back, *done])


# --- serving steps --------------------------------------------------------------------------------------------


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


def touched_experts(job: Job, tokens: int, position: int | None) -> float:
    """Distinct experts of a rank that any of the group's tokens chose: of the rank named, or of the one that has most
    to read."""
    experts, placed = job.model.experts, job.expert_loads.placed
    assert experts is not None
    pairs = tokens * experts.topk
    each = job.work.routing.distinct_of_ranks(experts.count, job.plan.ep, pairs)
    if placed:
        each = tuple(sum(1.0 - (1.0 - share) ** pairs for share in rank) for rank in placed)
    return max(each) if position is None else each[position]


def backward(builder: ProgramBuilder, job: Job, layer: LayerShard, shared: Shared | None) -> int:
    """The forward mirrored: gradients of the sums are dispatched, those of the rows come back."""
    position = builder.coordinates.get("ep")
    routed, tokens = routed_shard(job, position=position), own_tokens(job)
    beside = job.plan.hiding.shared_beside
    # Of a layer that was just repeated they are still here.
    here = [] if job.plan.recomputation == "full" else move_experts(builder, job, "experts from other ranks", [])
    done = shared([]) if shared and not beside else []
    arrived = exchange(builder, job, routed, "dispatch gradients", done, pack=True)
    if shared and beside:
        done = shared([])
    multiplied = builder.compute(
        "experts backward",
        routed.copy(routed.all_rows, "d rows to experts", Computes.INPUT_GRADIENT),
        *builder.gradients(routed.down()),
        *cheap_again(job, routed.activation()),
        routed.activation_backward(),
        *builder.gradients(routed.gate_up()),
        *_gather_sums(job, routed, position),
        after=[*arrived, *here],
    )
    builder.exchanged_gradients += move_experts(builder, job, "gradients of moved experts", [multiplied])
    back = exchange(builder, job, routed, "combine gradients", [multiplied])
    rows = own_rows(job) or routed.all_rows
    return builder.compute(
        "router, norm backward",
        routed.sum_rows(rows, tokens),
        *builder.gradients(routed.router(tokens)),
        *cheap_again(job, layer.norm(tokens)),
        layer.norm_backward(tokens),
        after=[*back, *done],
    )


def weight_gradients(builder: ProgramBuilder, job: Job, layer: LayerShard, tokens: int) -> tuple[Gemm, ...]:
    """Gradients of the weights of a layer's MLP, put off by a zero-bubble schedule."""
    if job.plan.ep == 1:
        entering, leaving = local_products(job, layer, tokens)
        return tuple(gradients(product)[1] for product in (*entering, *leaving))
    routed = routed_shard(job, position=builder.coordinates.get("ep"))
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
    experts, rows = job.model.experts, sent_rows(job)
    assert experts is not None
    if pack:
        packed = routed.copy(own_rows(job), "pack rows")
        after = [builder.compute(f"pack rows for {name}", packed, after=after)]
    row_bytes = job.model.hidden * ((job.plan.dispatch.element_bytes if pack else None) or job.activation_bytes)
    phase, tokens = None, None
    if job.plan.dispatch.phases is not None:
        phase = job.plan.dispatch.phases[0 if pack else 1]
        choice = experts.count, experts.topk, experts.groups, experts.kept_groups
        tokens = Tokens(own_tokens(job) * load_of(job, None), row_bytes, *choice)
        if job.work.stack.exchange_units is not None:
            tokens = tokens._replace(multiprocessors=job.work.stack.exchange_units)
    size = rows * row_bytes
    return [
        builder.collective(
            "all_to_all", "ep", size, name, after=after, stream=EXCHANGE, algorithm=phase, tokens=tokens
        )
    ]


def plan_moves(builder: ProgramBuilder, job: Job, chosen: int) -> int:
    """Counts of all experts summed over the group and the host's plan, where a policy decides anew for every pass;
    returns what tokens and weights wait for."""
    experts, loads = job.model.experts, job.expert_loads
    assert experts is not None
    if job.plan.ep == 1 or not loads.planned:
        return chosen
    summed = builder.collective("all_reduce", "ep", COUNT_BYTES * experts.count, "sum counts", after=[chosen])
    return builder.host("plan of experts", loads.host_s, after=[summed]) if loads.host_s else summed


#: Of the rows of an expert, as ranks tell each other.
COUNT_BYTES = 8


def move_experts(builder: ProgramBuilder, job: Job, name: str, after: Sequence[int]) -> list[int]:
    """The experts, or gradients of them, that a balance policy moves within the group; mostly nothing. As much as the
    rank that gets most receives, or the one that gives most sends."""
    loads, ranks = job.expert_loads, job.plan.ep
    size = max(loads.moved_experts, loads.sent_experts * ranks / max(1, ranks - 1)) * expert_bytes(job)
    if not size:
        return []
    return [builder.collective("all_to_all", "ep", size, name, after=after, stream="moved experts")]


def _multiply(routed: RoutedShard) -> tuple[Operator, ...]:
    """Rows put in the order of their experts, and both of their products."""
    ordered = routed.copy(routed.all_rows, "rows to experts")
    return ordered, routed.gate_up(), routed.activation(), routed.down()


def _gather_sums(job: Job, routed: RoutedShard, position: int | None) -> tuple[Operator, ...]:
    """What of a token's experts is on one rank is summed before it goes back, unless each copy travels."""
    if job.plan.ep == 1 or not job.plan.dispatch.sums_before_return:
        return ()
    return (routed.sum_rows(routed.all_rows, round(sent_rows(job, position))),)
