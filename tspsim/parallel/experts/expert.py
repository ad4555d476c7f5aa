"""Mixture of experts: a layer's routed MLP under any scheme, with or without expert parallelism.

With ``ep`` = N > 1 each rank of an expert group holds E/N whole experts. Tokens go to the ranks of their experts and
return summed (*dispatch* and *combine*): two all-to-alls per forward, two of gradients per backward (Lepikhin et al.
2020, GShard, §3; Rajbhandari et al. 2022, DeepSpeed-MoE, §5). The dispatch says how many copies of a token move
(:mod:`tspsim.parallel.dispatch`). Without expert groups every rank has all experts, or with ``tp`` columns of each.

The balance policy (:mod:`tspsim.parallel.balance`) decides how many rows reach a rank's experts
(:mod:`tspsim.parallel.expert_rows`). Exchanges carry the bytes of the busiest rank, since all wait for it; programs
without a position in the group are the busiest rank's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import ceil

from ...model.layer import LayerShard, gradients
from ...model.routed import RoutedShard
from ...operators import ChoiceKernels, Computes, Gemm, MemoryBound, Operator, Role, element_bytes
from ...program import ExpertExchange
from .. import expert_shards
from ..builder import ProgramBuilder
from ..expert_rows import (
    expert_bytes,
    load_of,
    own_rows,
    own_tokens,
    routed_shard,
    sent_rows,
    step_load,
    touched_experts,
)
from ..interleave import BESIDE, EXCHANGE
from ..job import Job
from ..recompute import recomputed_kernels
from . import expert_fused

#: Dependencies → last instructions: writes the forward or backward of shared experts as the scheme does.
Shared = Callable[[list[int]], list[int]]


# --- without expert groups ----------------------------------------------------------------------------------


def local_forward(job: Job, layer: LayerShard, tokens: int) -> tuple[Operator, ...]:
    """Router, routed and shared experts of tokens whose experts are all local."""
    shared: tuple[Operator, ...] = ()
    if layer.ffn:
        shared = layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens)
    if job.step.serves:
        return *routed_forward(job, tokens), *shared
    routed = routed_shard(job, tokens)
    return (
        routed.router(tokens), routed.choose(tokens), *_multiply(job, routed), routed.sum_rows(routed.all_rows, tokens),
        *shared,
    )  # fmt: skip


def routed_forward(job: Job, tokens: int) -> tuple[Operator, ...]:
    """Router and routed experts of a serving step's tokens whose experts are all local."""
    routed = routed_shard(job, tokens)
    pairs = tokens * routed.experts.topk / job.plan.ep * step_load(job, tokens, None)
    return routed.router(tokens), routed.fused(tokens, pairs, touched_experts(job, tokens, None))


def local_products(job: Job, layer: LayerShard, tokens: int) -> tuple[tuple[Gemm, ...], tuple[Gemm, ...]]:
    """The products at the input of the experts (router, gate and up), and at their output (down)."""
    routed = routed_shard(job, tokens)
    entering, leaving = (routed.router(tokens), routed.gate_up()), (routed.down(),)
    if not layer.ffn:
        return entering, leaving
    return (*entering, layer.gate_up(tokens)), (*leaving, layer.down(tokens))


def local_activation_backward(job: Job, layer: LayerShard, tokens: int) -> tuple[Operator, ...]:
    """The backward between the two products: gradients of the sum of experts, of columns, and of the order of rows."""
    routed = routed_shard(job, tokens)
    shared: tuple[Operator, ...] = ()
    if layer.ffn:
        shared = *recomputed_kernels(job, layer.activation(tokens)), layer.activation_backward(tokens)
    return (
        routed.copy(routed.all_rows, "d rows to experts", Computes.INPUT_GRADIENT),
        *recomputed_kernels(job, routed.activation()), routed.activation_backward(), *shared,
        routed.sum_rows(routed.all_rows, tokens),
    )  # fmt: skip


# --- expert groups ------------------------------------------------------------------------------------------


def forward(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int], shared: Shared | None) -> int:
    """Norm and router, dispatch, experts, combine; shared experts before the dispatch, or beside it.

    Exchanges and experts may be cut into d pieces (Tutel, Hwang et al. 2022, arXiv 2206.03382, §4.3): all pieces are
    dispatched first, on one stream, and each is combined when its experts are done. With W per direction of the
    exchange and C of the experts, equal pieces take max(2W, W + (W + C)/d, C + 2W/d).
    """
    position = builder.coordinates.get("ep")
    routed, tokens = routed_shard(job, position=position), own_tokens(job)
    here = expert_shards.gather(builder, job)
    chosen = builder.compute(
        "norm, router",
        layer.norm(tokens),
        routed.router(tokens),
        routed.choose(tokens),
        after=after,
    )
    with_attention = job.interleaves and job.interleaving.shared_with_attention
    beside = job.plan.hiding.shared_beside and not with_attention
    planned = plan_moves(builder, job, chosen)
    builder.read_counts([planned])
    here += move_experts(builder, job, "experts from other ranks", [planned])
    rows = own_rows(job) or routed.all_rows
    if expert_fused.applies(job):
        sums, meanwhile = _gather_sums(job, routed, position), partial(_shared, shared, [chosen])
        back, _, done = expert_fused.forward(builder, job, routed, sums, [planned], here, meanwhile)
        return builder.compute("sum of experts", routed.sum_rows(rows, tokens), after=[*back, *done])
    done = shared([chosen]) if shared and not beside else []
    arrived = dispatch(builder, job, routed, "dispatch", [planned, *done], *_layout(job, tokens))
    if shared and beside:
        done = shared([chosen])
    piece, back = piece_of(job, routed), list[int]()
    for arrival in arrived:
        counted, gathered = mapping(job, piece, position), _gather_sums(job, piece, position)
        operators = *counted, *_multiply(job, piece, position), *gathered
        multiplied = builder.compute("experts", *operators, after=[*arrival, *here])
        back += exchange(builder, job, "combine", 1, [multiplied])
    expert_shards.used(builder, job, multiplied)
    if _combines(job):
        return builder.compute("experts combined", after=[*back, *done])
    return builder.compute("sum of experts", routed.sum_rows(rows, tokens), after=[*back, *done])


def backward(builder: ProgramBuilder, job: Job, layer: LayerShard, shared: Shared | None) -> int:
    """The forward mirrored: output gradients are dispatched, row gradients are combined."""
    position = builder.coordinates.get("ep")
    routed, tokens = routed_shard(job, position=position), own_tokens(job)
    beside = job.plan.hiding.shared_beside
    # After full recomputation of the layer they are still here.
    repeated = job.plan.recomputation == "full"
    here = [] if repeated else expert_shards.gather(builder, job)
    here += [] if repeated else move_experts(builder, job, "experts from other ranks", [])
    multiplied = list[int]()
    if expert_fused.applies(job):
        sums, meanwhile = _gather_sums(job, routed, position), partial(_shared, shared, [])
        back, last, done = expert_fused.backward(builder, job, routed, sums, here, meanwhile)
        multiplied.append(last)
        arrived = []
    else:
        done, back = shared([]) if shared and not beside else [], []
        casts = job.work.stack.cast_kernels
        arrived = dispatch(builder, job, routed, "dispatch gradients", done, beside=casts.gradients_beside)
        if shared and beside:
            done = shared([])
    piece = piece_of(job, routed)
    down, gate_up = (builder.gradients(product) for product in (piece.down(), piece.gate_up()))
    down = _arrived(job, down[0]), *down[1:]
    # Interleaved with another micro-batch, weight gradients may follow the exchange (DeepSeek's published profile of
    # DualPipe: dispatch(B), then mlp(W)). A framework's own backward computes both at once.
    deferred = job.interleaves and job.interleaving.defers_weights
    behind = (*down[1:], *gate_up[1:]) if deferred else ()
    for arrival in arrived:
        multiplied.append(
            builder.compute(
                "experts backward",
                _ordered(job, piece, position, "d rows to experts", Computes.INPUT_GRADIENT),
                *(down[:1] if behind else down),
                *recomputed_kernels(job, piece.activation()),
                piece.activation_backward(),
                *((piece.weights_gradient(),) if job.work.stack.expert_weights_apart else ()),
                *(gate_up[:1] if behind else gate_up),
                *_gather_sums(job, piece, position),
                after=[*arrival, *here],
            )
        )
        back += exchange(builder, job, "combine gradients", 1, multiplied[-1:])
        if behind:
            multiplied.append(builder.compute("experts' weight gradients", *behind, after=multiplied[-1:]))
    expert_shards.used(builder, job, multiplied[-1])
    home = move_experts(builder, job, "gradients of moved experts", multiplied[-1:])
    builder.exchanged_gradients += [*home, *expert_shards.scatter(builder, job, multiplied[-1:])]
    rows = own_rows(job) or routed.all_rows
    return builder.compute(
        "router, norm backward",
        *(() if _combines(job) else (routed.sum_rows(rows, tokens),)),
        *builder.gradients(routed.router(tokens)),
        *recomputed_kernels(job, layer.norm(tokens)),
        layer.norm_backward(tokens),
        after=[*back, *done],
    )


def weight_gradients(builder: ProgramBuilder, job: Job, layer: LayerShard, tokens: int) -> tuple[Gemm, ...]:
    """Weight gradients of a layer's MLP, deferred by a zero-bubble schedule."""
    if job.plan.ep == 1:
        entering, leaving = local_products(job, layer, tokens)
        return tuple(gradients(product)[1] for product in (*entering, *leaving))
    routed = routed_shard(job, position=builder.coordinates.get("ep"))
    products = [routed.router(own_tokens(job)), routed.gate_up(), routed.down()]
    if layer.ffn:
        products += [layer.gate_up(tokens), layer.down(tokens)]
    return tuple(gradients(product)[1] for product in products)


def dispatch(
    builder: ProgramBuilder,
    job: Job,
    routed: RoutedShard,
    name: str,
    after: Sequence[int],
    *behind: Operator,
    beside: bool = False,
) -> list[list[int]]:
    """Order and send a rank's rows; returns the dependencies of each piece of experts. ``behind`` are kernels of a
    library's exchange between the cast and its transfer; ``beside``: rows are cast on the exchange's multiprocessors,
    beside kernels."""
    if not expert_shards.tokens_travel(job):
        return [list(after)]
    after, element = list(after), job.plan.dispatch.element_bytes
    if _sends_tokens(job) and element is not None:
        cast, what = routed.cast(own_tokens(job), "cast rows", element), f"cast for {name}"
        if beside:
            cast = replace(cast, units=job.work.stack.exchange_units or 0)
            rows = builder.compute(f"rows for {name}", after=after)
            after = [builder.compute(what, cast, after=[rows], stream=BESIDE)]
        else:
            after = [builder.compute(what, cast, *behind, after=after)]
    elif _sends_tokens(job):
        after = [builder.compute(f"rows for {name}", *behind, after=after)] if behind else after
    else:
        after = [builder.compute(f"pack rows for {name}", routed.copy(own_rows(job), "pack rows"), after=after)]
    return [exchange(builder, job, name, 0, after) for _ in range(job.plan.expert_pieces)]


def _layout(job: Job, tokens: int) -> tuple[Operator, ...]:
    """The kernel that counts the tokens for every rank: of a library's exchange that takes them where they stand."""
    token_s = job.work.stack.layout_token_s
    if not token_s or not expert_shards.tokens_travel(job) or not _sends_tokens(job):
        return ()
    return (ChoiceKernels(tokens, 1, 0, token_s=token_s, name="layout of dispatch"),)


def mapping(job: Job, routed: RoutedShard, position: int | None) -> tuple[Operator, ...]:
    """The kernels that count the arrived tokens of every expert and map them to its rows; few blocks run them.

    They read an index in eight bytes for every choice twice, and write a position in four for each, and three numbers
    for every row, once to clear and once to fill them (deepseek-ai/TileKernels@1001fca, ``get_fused_mapping``).
    """
    units = job.work.stack.mapping_units
    if not units or not _combines(job):
        return ()
    assert job.model.experts is not None
    tokens = round(sent_rows(job, position) / job.plan.expert_pieces)
    choices = tokens * job.model.experts.topk
    read, written = 8.0 * choices, 8.0 * choices + 24.0 * routed.all_rows
    return tuple(
        MemoryBound("softmax", size, tokens, name=name, role=Role.EXPERT_ROWS, units=units)
        for name, size in (("count rows of experts", read), ("map rows to experts", read + written))
    )


def _sends_tokens(job: Job) -> bool:
    """Whether the exchange's kernels read tokens in place: DeepSeek's published profile orders no rows before an fp8
    dispatch, nor do frameworks that hand a bf16 one its tokens; others order rows before it."""
    here = job.plan.dispatch.phases is not None and not expert_shards.sliced(job)
    return here and (job.plan.dispatch.element_bytes is not None or job.work.stack.rows_in_place)


def _casts_tokens(job: Job) -> bool:
    """Whether tokens are cast before they are sent."""
    return _sends_tokens(job) and job.plan.dispatch.element_bytes is not None


def _combines(job: Job) -> bool:
    """Whether such kernels also sum at the combine, and leave arrivals in their type: the same profile has no sum after
    a combine, and orders 33,000 rows for their experts in fp8 (185 us, 470 MB)."""
    return expert_shards.tokens_travel(job) and _sends_tokens(job)


def exchange(builder: ProgramBuilder, job: Job, name: str, way: int, after: Sequence[int]) -> list[int]:
    """All-to-all of a piece of the rows over the expert group, dispatch (``way`` 0) or combine (1).

    Writes nothing if tokens stay. Returns what to wait for.
    """
    if not expert_shards.tokens_travel(job):
        return list(after)
    experts, pieces = job.model.experts, job.plan.expert_pieces
    assert experts is not None
    element = (None if way else job.plan.dispatch.element_bytes) or job.activation_bytes
    row_bytes = job.model.hidden * element
    phase, tokens = None, None
    if job.plan.dispatch.phases is not None and not expert_shards.sliced(job):
        phase = job.plan.dispatch.phases[way]
        choice = experts.count, experts.topk, experts.groups, experts.kept_groups
        tokens = ExpertExchange(own_tokens(job) * load_of(job, None) / pieces, row_bytes, *choice)
        if job.work.stack.exchange_units is not None:
            tokens = tokens._replace(multiprocessors=job.work.stack.exchange_units)
        if job.work.stack.notice_s:
            tokens = tokens._replace(notice_s=job.work.stack.notice_s)
    size = sent_rows(job) * row_bytes / pieces
    return [
        builder.collective("all_to_all", "ep", size, name, after=after, stream=EXCHANGE, algorithm=phase, tokens=tokens)
    ]


def piece_of(job: Job, routed: RoutedShard) -> RoutedShard:
    """One piece's rows, in products of their own; an expert's last rows are padded."""
    return replace(routed, rows=ceil(routed.rows / job.plan.expert_pieces))


def plan_moves(builder: ProgramBuilder, job: Job, chosen: int) -> int:
    """Sum the experts' counts over the group and plan on the host, if the balance policy decides anew in every pass;
    returns what tokens and weights wait for."""
    experts, loads = job.model.experts, job.expert_loads
    assert experts is not None
    if job.plan.ep == 1 or not loads.planned:
        return chosen
    summed = builder.collective("all_reduce", "ep", COUNT_BYTES * experts.count, "sum counts", after=[chosen])
    return builder.host("plan of experts", loads.host_s, after=[summed]) if loads.host_s else summed


#: Bytes of an expert's count of rows.
COUNT_BYTES = 8


def move_experts(builder: ProgramBuilder, job: Job, name: str, after: Sequence[int]) -> list[int]:
    """Move the experts, or their gradients, that a balance policy moves within the group; usually none.

    The size is that of the rank that receives most, or of the one that sends most.
    """
    loads, ranks = job.expert_loads, job.plan.ep
    size = max(loads.moved_experts, loads.sent_experts * ranks / max(1, ranks - 1)) * expert_bytes(job)
    if not size:
        return []
    return [builder.collective("all_to_all", "ep", size, name, after=after, stream="moved experts")]


def _shared(shared: Shared | None, after: list[int]) -> list[int]:
    return shared(after) if shared else []


def _ordered(
    job: Job, routed: RoutedShard, position: int | None, name: str, computes: Computes = Computes.OUTPUT
) -> Operator:
    """Order rows by their experts, in the type in which they arrived."""
    element = job.plan.dispatch.element_bytes if _combines(job) else None
    if _combines(job) and job.work.stack.rows_in_place and element is None:
        return routed.order(sent_rows(job, position) / job.plan.expert_pieces, name, computes)
    return routed.copy(routed.all_rows, name, computes, element)


def _arrived(job: Job, product: Gemm) -> Gemm:
    """A product of rows that came in eight bits: one in eight bits takes them as they are."""
    eight = _combines(job) and _casts_tokens(job) and element_bytes(product.dtype) == 1.0
    return replace(product, quantised=True) if eight else product


def sent_before(job: Job, both: tuple[Gemm, ...]) -> tuple[Gemm, ...]:
    """Gradients of a shared expert's last product, whose rows an exchange sends too; some stacks cast them once."""
    shares = job.work.stack.cast_kernels.shares_sent and _casts_tokens(job)
    return (_arrived(job, both[0]), *both[1:]) if shares else both


def _multiply(job: Job, routed: RoutedShard, position: int | None = None) -> tuple[Operator, ...]:
    """Order rows by their experts, then both products."""
    ordered = _ordered(job, routed, position, "rows to experts")
    return ordered, _arrived(job, routed.gate_up()), routed.activation(), routed.down()


def _gather_sums(job: Job, routed: RoutedShard, position: int | None) -> tuple[Operator, ...]:
    """Sum a token's experts on one rank before they return. If every copy returns, a plain exchange takes rows by rank,
    and several experts leave them by expert: they are put in order again."""
    if not expert_shards.tokens_travel(job) or expert_shards.sliced(job):
        return ()
    if not job.plan.dispatch.sums_before_return:
        return (routed.copy(routed.all_rows, "rows to ranks"),) if routed.local > 1 else ()
    return (routed.sum_rows(routed.all_rows, round(sent_rows(job, position) / job.plan.expert_pieces)),)
