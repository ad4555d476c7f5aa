"""Tensor parallelism (Megatron), alone or beside sequence shards: a tp × sp mesh.

QKV and gate/up are split by columns, output and down projection by rows; each of the two is followed by an all-reduce
of B·S/Σ·h over ``tp``, or with sequence regions by a reduce-scatter and an all-gather of the same bytes around the norm
(Shoeybi et al. 2019, §3; Korthikanti et al. 2022, §4.2). The backward mirrors it: gradients of the column-split inputs
are summed. With overlap, tokens are cut into ``overlap_chunks``, and a chunk is reduced while the next is multiplied
(Flux, Comet, asynchronous TP); in the backward the sum runs beside the weights' gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import StrictBool

from ...base.units import PositiveCount
from ...model.attention import prefilled
from ...model.layer import LayerShard, gradients
from ...operators import Gemm, Operator
from ..builder import ProgramBuilder
from ..choice import Choice
from ..context import method_of
from ..context.method import refused
from ..decode.layer import attends_alone
from ..decode.sharing import exchange_buffers, exchanged_bytes
from ..expert_rows import tokens_leave
from ..experts import expert, expert_serving
from ..experts.fused import Cut
from ..feature import features_of
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..lengths import BATCH_ASSIGNMENTS, OFFLOAD_FROM
from ..pipeline import Refusal
from ..plan import Plan
from ..recompute import gathers_inputs_again, keeps_gathered_inputs, recomputed_heads, recomputed_kernels
from ..registries import Option
from ..residency import Residency
from ..residual import residual_of
from ..scheme import SCHEMES, Received, Scheme, WholeTokens
from ..search_rule import SearchRule, of_lengths
from ..unequal_checks import ways_to_deal
from .tensor_pieces import (
    SERVING_OPTIONS,
    check_groups,
    column_gradients,
    column_products,
    context,
    embed,
    gather_rows,
    head_served,
    reduce_rows,
    residual_tokens,
    serve,
    serving_variants,
)


def forward_layer(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    residual, cut = residual_of(job.plan), Cut.of(job)
    builder.part = "attention"
    entering = list(column_products(builder, job, layer, cut, [[]] * cut.pieces, "QKV"))
    attended = method_of(job.plan).forward(builder, job, layer, position, entering[-1][1])
    reduced, output = [], layer.leaving(cut.tokens)
    for slice_of in cut.slices:
        projected = builder.compute("output projection", *output, after=[attended], slice_of=slice_of)
        summed = reduce_rows(
            builder, job, cut.tokens, projected, "sum attention", slice_of=slice_of, sums=residual.sums_attention
        )
        reduced.append([summed])
    builder.part = "mlp"
    first: list[int] = []
    if travels(job, layer):
        shared = partial(shared_experts, builder, job, layer) if layer.ffn else None
        ready = [index for chunk in reduced for index in chunk]
        if job.step.serves:
            done = expert_serving.serve(builder, job, layer, ready, shared)
            leaving = [builder.compute("add experts", after=done) if len(done) > 1 else done[0]] * cut.pieces
        else:
            leaving = [expert.forward(builder, job, layer, ready, shared)] * cut.pieces
    else:
        leaving, waits = [], [[]] * cut.pieces if residual.late else reduced
        products = column_products(builder, job, layer, cut, waits, "MLP")
        for slice_of, (entered, multiplied) in zip(cut.slices, products, strict=True):
            first.append(entered)
            leaving.append(
                reduce_rows(builder, job, cut.tokens, multiplied, "sum MLP", slice_of=slice_of, sums=residual.sums_mlp)
            )
    if not builder.recomputing:
        for chunk, ((consumer, _), producer) in enumerate(zip(entering, leaving, strict=True)):
            builder.after_previous_layer(consumer, reduced[chunk][0] if residual.late else producer, f"tokens {chunk}")
            if residual.late:
                builder.after_previous_layer(first[chunk], producer, f"tokens {chunk} of the MLP")
    return [*leaving, *(index for chunk in reduced for index in chunk if residual.late)]


def head(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    normed = builder.compute("final norm", layer.norm(residual_tokens(job)))
    product = layer.head(job.tokens)
    ready = gather_rows(builder, job, job.tokens, [normed], "gather for head", of=[product])
    builder.compute("language-model head", product, after=ready)


def head_backward(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """Loss over a sharded vocabulary: an all-reduce of maxima and sums of exponentials, two fp32 numbers per token."""
    ready: list[int] = []
    if job.plan.tp > 1:
        ready = [builder.collective("all_reduce", "tp", 8 * job.tokens, "softmax sums")]
    lost = builder.compute("loss", layer.loss(job.tokens), after=ready)
    head_ = (layer.head(job.tokens),)
    name, summed = "language-model head backward", "sum d head"
    column_gradients(builder, job, head_, job.model.hidden, name, summed, behind=lost)
    builder.compute("final norm backward", layer.norm_backward(residual_tokens(job)))


def embed_backward(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """Gradients of rows are added at their owners."""
    ready = gather_rows(builder, job, job.tokens, [], "gather d embedding")
    builder.compute("embedding backward", layer.embedding(job.tokens), after=ready)


def backward_layer(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    """The forward mirrored.

    With late residuals, a norm's gradient waits for the sum of the layer before (its kernel represents that layer's)
    while products continue; with parallel residuals (side by side), one sum and one norm take both gradients.
    """
    tokens, residual = job.tokens, residual_of(job.plan)
    builder.part = "mlp backward"
    if travels(job, layer):
        shared = partial(shared_experts_backward, builder, job, layer) if layer.ffn else None
        normed = [expert.backward(builder, job, layer, shared)]
    else:
        normed = mlp_backward(builder, job, layer)
    builder.part = "attention backward"
    own = residual_tokens(job)
    down = [gradient for product in layer.down_projections(own) for gradient in builder.gradients(product)]
    again, norm = norm_gradients(job, layer, own, gathered=layer.model.latent is None)
    entered = *layer.latent_norms(own, backward=True), *down, *norm
    before = [builder.compute("attention norm backward", *entered)] if residual.late else normed
    product, projections = layer.output(tokens), layer.projections(tokens)
    ready = gather_rows(builder, job, tokens, before, "gather d attention", of=[product])
    heads = recomputed_heads(job, layer, tokens)
    # Latents were gathered into what a rank keeps, norms' outputs may be computed again.
    kept = layer.model.latent is not None and keeps_gathered_inputs(job)
    if heads and not kept and gathers_inputs_again(job):
        ready += gather_rows(builder, job, tokens, [], "gather latents again", layer.entry_width, of=projections)
    projected = builder.compute("output projection backward", *builder.gradients(product), *heads, after=ready)
    attended = method_of(job.plan).backward(builder, job, layer, position, projected)
    summed = column_gradients(
        builder,
        job,
        projections,
        layer.entry_width,
        "QKV backward",
        "sum d attention",
        layer.rope(tokens, backward=True),
        sums=residual.sums_attention or residual.sums_mlp,
        behind=attended,
        again=again,
        whole=kept,
    )
    if residual.late:
        builder.after_previous_layer(before[0], summed[0], "d attention")
        return [*normed, *summed]
    return [builder.compute("norm backward", *entered, after=summed)]


def mlp_backward(builder: ProgramBuilder, job: Job, layer: LayerShard) -> list[int]:
    """Backward of the MLP, or of local experts; returns the dependencies of its input's gradient."""
    tokens, residual = job.tokens, residual_of(job.plan)
    entering, leaving, between = mlp_products(job, layer)
    # Rows of experts stand beside the gathered input of their router.
    rows = layer.composition.experts and not layer.ffn
    again, norm = norm_gradients(job, layer, residual_tokens(job), gathered=not rows)
    before = [builder.compute("MLP norm backward", *norm)] if residual.late else []
    ready = gather_rows(builder, job, tokens, before, "gather d MLP", of=leaving)
    d_down = [gradient for product in leaving for gradient in builder.gradients(product)]
    down = builder.compute("down projection backward", *d_down, *between, after=ready)
    last = (layer.add(tokens),) if residual.side_by_side else ()
    summed = column_gradients(
        builder,
        job,
        entering,
        job.model.hidden,
        "gate and up backward",
        "sum d MLP",
        after_products=last,
        sums=residual.sums_mlp and not residual.side_by_side,
        behind=down,
        again=again,
        whole=rows,
    )
    if residual.late:
        builder.after_previous_layer(before[0], summed[0], "d MLP")
    if residual.late or residual.side_by_side:
        return summed
    return [builder.compute("norm backward", *norm, after=summed)]


def travels(job: Job, layer: LayerShard) -> bool:
    """Whether the layer's tokens go to experts on other ranks."""
    return layer.composition.experts and tokens_leave(job)


def mlp_products(job: Job, layer: LayerShard) -> tuple[Sequence[Gemm], Sequence[Gemm], Sequence[Operator]]:
    """Products at the MLP's input, those at its output, and the backward of what is between."""
    tokens = job.tokens
    if layer.composition.experts:
        return *expert.local_products(job, layer, tokens), expert.local_activation_backward(job, layer, tokens)
    between = *recomputed_kernels(job, layer.activation(tokens)), layer.activation_backward(tokens)
    return (layer.gate_up(tokens),), (layer.down(tokens),), between


def norm_gradients(
    job: Job, layer: LayerShard, tokens: int, *, gathered: bool
) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """The kernels that compute a norm's output again before it is ``gathered`` again, and those of its backward."""
    again, back = recomputed_kernels(job, layer.norm(tokens)), layer.norm_backward(tokens)
    return (again, (back,)) if gathered and gathers_inputs_again(job) else ((), (*again, back))


def shared_experts(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    """Experts that all tokens visit, split by columns like a dense MLP."""
    tokens = job.tokens
    products = layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens)
    ready = gather_rows(builder, job, tokens, after, "gather for shared experts", of=products)
    multiplied = builder.compute("shared experts", *products, after=ready)
    return [reduce_rows(builder, job, tokens, multiplied, "sum shared experts")]


def shared_experts_backward(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    tokens = job.tokens
    product, entering = layer.down(tokens), (layer.gate_up(tokens),)
    ready = gather_rows(builder, job, tokens, after, "gather d shared experts", of=[product])
    d_down = expert.sent_before(job, builder.gradients(product))
    between = *recomputed_kernels(job, layer.activation(tokens)), layer.activation_backward(tokens)
    down = builder.compute("shared experts' down backward", *d_down, *between, after=ready)
    return column_gradients(
        builder,
        job,
        entering,
        job.model.hidden,
        "shared experts' gate and up backward",
        "sum d shared experts",
        behind=down,
        whole=job.plan.hiding.shared_beside,
    )


def layer_weights(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """Weight gradients of all products, deferred by a zero-bubble schedule; those of column-split products behind the
    others, beside which their inputs are gathered again."""
    tokens = job.tokens
    row_split, column_split = [layer.output(tokens)], list(layer.projections(tokens))
    later: tuple[Operator, ...] = ()
    if layer.composition.experts:
        later = expert.weight_gradients(builder, job, layer, tokens)
    else:
        row_split.append(layer.down(tokens))
        column_split.append(layer.gate_up(tokens))
    own = [gradients(product)[1] for product in layer.down_projections(residual_tokens(job))]
    first = *own, *(gradients(product)[1] for product in row_split), *later
    last = [gradients(product)[1] for product in column_split]
    if not gathers_inputs_again(job):
        builder.compute("weight gradients", *own, *last, *first[len(own) :])
        return
    ready = gather_rows(builder, job, tokens, [], "gather again for QKV", layer.entry_width, of=column_split)
    if layer.ffn and not (layer.composition.experts and job.plan.hiding.shared_beside):
        ready = gather_rows(builder, job, tokens, ready, "gather again for MLP", of=column_split)
    builder.compute("weight gradients", *first)
    builder.compute("weight gradients of column-split products", *last, after=ready)


def groups(plan: Plan) -> Mapping[str, Mapping[str, int]]:
    """Groups of neighbours on ``tp`` that share contexts, and groups of a plan's features."""
    share = context(plan)
    groups: dict[str, Mapping[str, int]] = {}
    if share.axis in ("dcp", "kvp"):
        groups[share.axis] = {"tp": share.ranks}
    for feature in features_of(plan):
        groups |= feature.groups(plan)
    return groups


def assumptions(plan: Plan) -> Iterator[str]:
    """How ranks of ``tp`` sum, for plans that do not state it."""
    if plan.tp > 1 and not plan.overlap:
        if plan.sequence_regions:
            yield "Gathers and sums around tensor-parallel layers are exposed (`overlap`)."
        else:
            keys = "`overlap`, `sequence_regions`"
            yield f"Tensor-parallel all-reduces are exposed and sequence regions are off ({keys})."


def check(job: Job) -> Refusal:
    plan = job.plan
    refused_key = check_groups(job)
    if refused_key is not None:
        return refused_key
    if job.step.serves and job.token_shards == 1:
        for key in ("sequence_regions", "overlap"):
            if getattr(plan, key) and plan.tp > 1:
                return key, f"true beside tp is not built for a {job.step.title}; leave it out"
        return None
    if plan.sequence_regions and job.tokens % plan.tp:
        return "sequence_regions", f"{job.tokens} tokens a rank are not a multiple of tp = {plan.tp}"
    if plan.overlap is True and plan.tp > 1 and job.tokens % plan.overlap_chunks:
        return "overlap_chunks", f"{plan.overlap_chunks} does not divide {job.tokens} tokens a rank"
    return refused(job, method_of(plan))


def received(job: Job, in_switch: bool) -> tuple[Received, ...]:
    """Bytes of two all-reduces of n·h over ``tp``, 2(T−1)/T each (1 with ``in_switch``: an adding switch returns the
    sum), and of the context method's exchange.

    Less if latents are gathered instead of rows, or if tokens go to experts without shared ones.
    """
    plan, model, moved = job.plan, job.model, []
    if plan.tp > 1:
        share = 1.0 if in_switch else 2.0 * (plan.tp - 1) / plan.tp
        thinnest = min(set(model.blocks), key=model.common_matrix_parameters)
        layer = job.layer(plan.tp, thinnest)
        entering = min(layer.entry_width, model.hidden) if plan.sequence_regions else model.hidden
        residual = residual_of(plan)
        reduced = 0.5 * (entering + model.hidden) * residual.sums_attention
        if (layer.ffn or plan.ep == 1) and not (thinnest.experts and job.sums_over_experts):
            reduced += model.hidden * residual.sums_mlp
        moved.append(Received("tp", share * job.tokens * reduced * job.activation_bytes))
    if job.sums_over_experts and all(block.experts for block in model.blocks):
        summed = job.tokens * model.hidden * job.activation_bytes
        moved.append(Received("ep", 2.0 * (plan.ep - 1) / plan.ep * summed))
    shared = exchanged_bytes(job)
    if shared:
        moved.append(Received(context(plan).axis, shared))
    if job.token_shards > 1:
        method = method_of(plan)
        moved.append(Received("sp", method.received_bytes(job), method.distinct))
    return tuple(moved)


def variants(plan: Plan) -> Iterator[Mapping[str, Any]]:
    """With and without sequence regions, with and without overlap."""
    overlaps = (None, True) if plan.tp > 1 or method_of(plan).can_overlap else (None,)
    for regions, overlap in itertools.product((False, True) if plan.tp > 1 else (False,), overlaps):
        yield {"sequence_regions": regions, "overlap": overlap}


def choices(plan: Plan) -> tuple[Choice, ...]:
    return method_of(plan).choices(plan) if plan.sp > 1 else ()


def head_shards(job: Job) -> int:
    """Ranks that divide the heads during attention."""
    return job.plan.tp * (method_of(job.plan).head_shards(job.plan) if job.step.shards_tokens else 1)


def buffers(job: Job) -> Iterator[Buffer]:
    """Other shards' tokens or contexts, and sums in flight beside a layer."""
    late = residual_of(job.plan).in_flight * job.tokens * job.model.hidden * job.activation_bytes
    if late:
        yield Buffer("workspace", late, Lifetime.LAYER)
    if job.token_shards > 1 or not job.step.serves:
        yield from method_of(job.plan).buffers(job)
    if job.step.serves and (context(job.plan).ranks > 1 or prefilled(job.rows)):
        yield from exchange_buffers(job)


#: Keys of steps with sequences of unequal length.
LENGTH_OPTIONS = (
    Option(
        "dynamic_sp",
        StrictBool,
        None,
        "sp: auto; long sequences are shared by 2, 4, 8, ... ranks of dp",
        SearchRule(called="sp", of=of_lengths, values=lambda model, work: ["auto too"]),
    ),
    Option(
        "padded",
        StrictBool,
        None,
        "sequences of unequal length are padded to the longest of the step",
        SearchRule(why_not="is more work", of=of_lengths),
    ),
    Option(
        "rank_tokens",
        PositiveCount,
        None,
        "tokens per rank and micro-batch; default: the longest sequence over all its ranks",
        SearchRule(of=of_lengths, values=lambda model, work: ["one, two and four times the least"]),
    ),
    Option(
        "deal",
        BATCH_ASSIGNMENTS,
        None,
        "what is balanced between replicas; default: work",
        SearchRule(
            of=of_lengths, values=lambda model, work: BATCH_ASSIGNMENTS.names(), ways=ways_to_deal, kernels=True
        ),
    ),
    Option(
        OFFLOAD_FROM,
        PositiveCount,
        None,
        "shortest sequence, in tokens, whose offload_layers are offloaded; default: any",
        SearchRule(of=of_lengths, values=lambda model, work: ["the longest that fits, beside offload_layers"]),
    ),
)
OPTIONS = (
    *SERVING_OPTIONS,
    *LENGTH_OPTIONS,
)


SCHEME = SCHEMES.register(
    Scheme(
        name="tensor",
        summary="tensor parallelism, and sequence shards beside it",
        axes=("tp", "sp"),
        token_axis="sp",
        shards=lambda job: job.plan.tp,
        embed=embed,
        layer=forward_layer,
        head=head,
        layer_backward=backward_layer,
        head_backward=head_backward,
        embed_backward=embed_backward,
        layer_weights=layer_weights,
        residency=Residency(
            weight_shards=lambda job: job.plan.tp,
            compute_shards=lambda job: job.plan.tp,
            buffers=buffers,
            logit_shards=lambda job: job.plan.tp,
        ),
        whole=WholeTokens(embed, serve, head_served, attends_alone),
        context=context,
        tensor_ranks=lambda job: job.plan.tp,
        groups=groups,
        received=received,
        check=check,
        head_shards=head_shards,
        overlaps=lambda plan: plan.sp > 1 and method_of(plan).overlaps,
        by_position=lambda plan: method_of(plan).by_position,
        variants=variants,
        serving_variants=serving_variants,
        choices=choices,
        options=OPTIONS,
        usual=True,
        unequal=True,
        assumptions=assumptions,
    )
)
