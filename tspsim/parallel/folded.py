"""TSP: tensor and sequence parallelism folded onto one axis (Zyphra).

Each of D ranks owns 1/D of every weight matrix and 1/D of the tokens. Nothing is all-reduced: weights come to the
tokens. Attention runs in ``head_groups`` groups of heads: the ranks that own a group broadcast their packed
[Wq, Wk, Wv, Wo] shards, every rank projects its own tokens with them, K and V of the group are all-gathered, and each
rank attends its queries over the whole context and adds A·Wo to its local output. The MLP's packed [gate, up, down]
shards come by a :mod:`~tspsim.parallel.transport` and are multiplied piece by piece.

As published, there are D groups, one a rank, and the MLP's shards hop round a ring. Both are choices: the same bytes
over more links, in larger pieces (docs/schedules.md).

Overlapped, weights move on streams of their own and K, V on another beside compute, as far ahead as buffers allow, over
the border of a layer as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..model import Block
from ..model.layer import LayerShard, gradients
from ..operators import MemoryBound, Operator
from ..steps import STEPS, Step
from . import expert, expert_serving, folded_choice, folded_tables, folded_weights
from .builder import ProgramBuilder
from .choice import Option
from .context.attention import (
    attend_by_blocks,
    attention_backward,
    context_bytes,
    expand,
    latent_bytes,
    own_segments,
    slice_segments,
)
from .decode.sharing import refused_exchange
from .folded_form import AXIS, form_of
from .job import Job
from .ledger import Buffer, Lifetime
from .memory import Residency
from .partition import local_segments
from .pipeline import Refusal
from .recompute import cheap_again, heads_again
from .registries import DECODE_EXCHANGES, DECODE_FORMS, SCHEMES
from .sampling import sampled_head
from .scheme import Received, Scheme, WholeTokens
from .transport import BUFFERS, Arrivals, piece_of, transport_of
from .unpacked import unpacked


def forward_layer(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    builder.part = "attention"
    overlap = job.plan.overlap is not False
    attended = (attention_overlapped if overlap else attention_in_turn)(builder, job, layer, position)
    builder.part = "mlp"

    def mlp(after: list[int]) -> list[int]:
        return [(mlp_overlapped if overlap else mlp_in_turn)(builder, job, layer, after[0])]

    if job.step.serves:
        return served_mlp(builder, job, layer, [attended], mlp)
    if not layer.kind.experts:
        return mlp([attended])
    return [expert.forward(builder, job, layer, [attended], mlp if layer.ffn else None)]


def served_mlp(
    builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int], mlp: expert.Shared
) -> list[int]:
    """The MLP of a rank's own tokens in a serving step; routed experts are all here, or on the ranks of ``ep``."""
    if not layer.kind.experts:
        return mlp(after)
    shared = mlp if layer.ffn else None
    if job.plan.ep > 1:
        return expert_serving.serve(builder, job, layer, after, shared)
    routed = expert.routed_forward(job, job.tokens)
    done = [builder.compute("norm, experts", layer.norm(job.tokens), *routed, after=after)]
    return shared(done) if shared else done


def backward_layer(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    """Derived, not published: the MLP's weights come again, unless they stayed, and their gradients go home; then every
    group of heads once more, dK and dV reduce-scattered, and the attention weights' gradients reduced to their owners
    in one reduce-scatter. With full recomputation the attention's weights are still here from the forward.
    """
    builder.part = "mlp backward"
    if layer.kind.experts:

        def shared(after: list[int]) -> list[int]:
            return [mlp_backward(builder, job, layer)]

        expert.backward(builder, job, layer, shared if layer.ffn else None)
    else:
        mlp_backward(builder, job, layer)
        again = cheap_again(job, layer.norm(job.tokens))
        builder.compute("norm backward", *again, layer.norm_backward(job.tokens))
    builder.part = "attention backward"
    return [attention_part_backward(builder, job, layer, position)]


# --- attention ----------------------------------------------------------------------------------------------


def group_of(job: Job, layer: LayerShard) -> LayerShard:
    """What of a layer is attended at once: one group of heads."""
    return replace(layer, shards=job.plan.attended_groups)


def attention_overlapped(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> int:
    """Groups of heads, software-pipelined by one: QKV of group r+1 is multiplied before attention of group r, so that
    the gather of r+1 runs beside it. Returns the last instruction."""
    groups, tokens, group = job.plan.attended_groups, job.tokens, group_of(job, layer)
    ahead = min(folded_weights.ATTENTION_BUFFERS, groups)
    if builder.recomputing:
        # A layer that is repeated for its backward keeps its own weights; the next one's first arrive beside them.
        ahead = groups + (ahead if transport_of(job).keeps else 0)
    buffers = builder.buffers("attention weights", ahead, groups)
    gathered: list[tuple[int, list[int]]] = []
    attended: list[int] = []

    def project(step: int) -> None:
        moved = bring_weights(builder, job, group, step, [])
        buffers.fill(step, *moved)
        operators: tuple[Operator, ...] = (*group.projections(tokens), group.rope(tokens))
        if step == 0:
            builder.compute("norm", layer.norm(tokens), *layer.down_projections(tokens), after=whole)
        projected = builder.compute(f"QKV {step + 1}/{groups}", *operators, after=moved[-1:])
        gathered.append((projected, gather_context(builder, job, group, step, [projected])))

    whole = gather_attention_whole(builder, job, layer, [])
    project(0)
    for step in range(groups):
        if step + 1 < groups:
            project(step + 1)
        attended.append(attend(builder, job, group, position, step, *gathered[step]))
        if not builder.recomputing:
            buffers.used(step, attended[step])
    return attended[-1]


def attention_in_turn(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> int:
    """Nothing overlaps: every exchange is waited for before the next instruction."""
    groups, group = job.plan.attended_groups, group_of(job, layer)
    whole = gather_attention_whole(builder, job, layer, [])
    last = builder.compute("norm", layer.norm(job.tokens), *layer.down_projections(job.tokens), after=whole)
    for step in range(groups):
        moved = bring_weights(builder, job, group, step, [last])
        projected = builder.compute(
            f"QKV {step + 1}/{groups}", *group.projections(job.tokens), group.rope(job.tokens), after=moved[-1:]
        )
        gathered = gather_context(builder, job, group, step, [projected])
        last = attend(builder, job, group, position, step, projected, gathered)
    return last


def attention_part_backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> int:
    plan, tokens, work = job.plan, job.tokens, job.work
    groups, group = plan.attended_groups, group_of(job, layer)
    overlap = plan.overlap is not False
    kept = plan.recomputation == "full"
    # A repeated layer's weights are in the buffers that its forward filled.
    buffers = builder.buffers("attention weights", min(folded_weights.ATTENTION_BUFFERS, groups), groups)
    # Adapters are needed from the first group on, the projections to latents behind the last one.
    early = [] if kept or work.adapters is None else gather_attention_whole(builder, job, layer, [])
    reduced: list[int] = []
    last: list[int] = []

    def project(step: int) -> None:
        """dQ, dK and dV of a group through its QKV weights, once its dK and dV are whole."""
        nonlocal last
        last = [
            builder.compute(
                f"QKV {step + 1}/{groups} backward",
                group.rope(tokens),
                *(gradient for product in group.projections(tokens) for gradient in gradients(product)),
                after=[reduced[step]],
            )
        ]
        buffers.used(step, last[0])

    for step in range(groups):
        needed: list[int] = []
        if not kept:
            waits = [] if overlap else last
            moved = bring_weights(builder, job, group, step, waits)
            gathered = gather_context(builder, job, group, step, waits)
            buffers.fill(step, *moved, *gathered)
            needed = [*(() if step else early), moved[-1], gathered[-1]]
        reduced.append(attend_backward(builder, job, group, position, step, needed))
        if not overlap:
            project(step)
        elif step:
            project(step - 1)
    if overlap:
        project(groups - 1)
    if layer.down_weights:
        needed = early or ([] if kept else gather_attention_whole(builder, job, layer, last))
        d_down = [gradient for product in layer.down_projections(tokens) for gradient in gradients(product)]
        last = [builder.compute("latents backward", *d_down, after=needed)]
    load = folded_weights.attention(job, group)
    trained = groups * load.trained_in_shard + load.trained_in_whole
    if work.adapters is not None:
        trained += folded_weights.mlp(job, layer).trained_in_whole
    if trained:
        size = trained * work.optimizer.gradients
        name = "attention gradients to owners"
        summed = builder.collective("reduce_scatter", "tsp", size, name, after=last, stream="weight gradients")
        builder.exchanged_gradients = [summed]
    normed = *cheap_again(job, layer.norm(tokens)), layer.norm_backward(tokens)
    return builder.compute("norm backward", *normed, after=[] if overlap else builder.exchanged_gradients)


def gather_attention_whole(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    """What no head divides and every rank needs whole for its tokens: latent attention's projections to latents, and
    halves of adapters; and latents that are cached, where tokens are divided."""
    size = folded_weights.attention(job, layer).whole_bytes
    name = "projections to latents" if layer.down_weights else "adapters of attention"
    whole = [builder.collective("all_gather", "tsp", size, name, after=after, stream="weights")] if size else []
    cached = latent_bytes(job, layer) if job.token_shards > 1 else 0.0
    if cached:
        whole.append(builder.collective("all_gather", "tsp", cached, "cached latents", after=after, stream="weights"))
    return whole


def bring_weights(builder: ProgramBuilder, job: Job, group: LayerShard, step: int, after: list[int]) -> list[int]:
    """Weights of a group of heads: gathered, where every rank owns some of its heads, or from those that own it, one
    after the other."""
    plan, size = job.plan, folded_weights.attention(job, group).shard_bytes
    if transport_of(job).gathers_heads and owned_by_all(job):
        name = f"weights, group {step + 1}/{plan.attended_groups}"
        return [builder.collective("all_gather", "tsp", size, name, after=after, stream="weights")]
    owners = plan.tsp // plan.attended_groups
    return [
        builder.collective(
            "broadcast",
            "tsp",
            size / owners,
            f"weights {owner + 1}/{plan.tsp}",
            root=owner,
            after=after,
            stream="weights",
        )
        for owner in range(step * owners, (step + 1) * owners)
    ]


def owned_by_all(job: Job) -> bool:
    """Whether groups of heads can be chosen so that every rank owns as many heads, with their keys and values, of each:
    always with one group."""
    model, parts = job.model, job.plan.tsp * job.plan.attended_groups
    return job.plan.attended_groups == 1 or (model.heads % parts == 0 and model.kv_heads % parts == 0)


def slices_of(job: Job) -> int:
    """Slices of tokens in which K and V of a group of heads are gathered and attended."""
    return job.plan.overlap_chunks if job.plan.overlap_by == "blocks" and job.plan.overlap is not False else 1


def gather_context(builder: ProgramBuilder, job: Job, group: LayerShard, step: int, after: list[int]) -> list[int]:
    """K and V of a group of heads, in as many gathers as there are slices."""
    parts = slices_of(job)
    name = f"gather K,V {step + 1}/{job.plan.attended_groups}"
    size = context_bytes(job, group) / parts
    return [
        builder.collective("all_gather", "tsp", size, name, after=after, stream="context") for _ in range(parts)
    ]


def attend(
    builder: ProgramBuilder, job: Job, group: LayerShard, position: int, step: int, projected: int, gathered: list[int]
) -> int:
    """Local queries over the whole context with one group of heads, and its part of the output projection. By blocks
    the rank's own tokens are attended while the others' arrive."""
    work, plan = job.work, job.plan
    name, output = f"attention {step + 1}/{plan.attended_groups}", group.output(job.tokens)
    if len(gathered) == 1:
        shard = plan.partition, job.sequence, plan.tsp, position
        segments = local_segments(*shard, job.sequences, work.causal, job.cached)
        kernels = *expand(job, group), group.attention(segments, causal=work.causal), output
        return builder.compute(name, *kernels, after=gathered)
    return attend_by_blocks(builder, job, group, position, name, projected, gathered, output)


def attend_backward(
    builder: ProgramBuilder, job: Job, group: LayerShard, position: int, step: int, after: list[int]
) -> int:
    """dO of a group of heads, its attention's backward, and the sums of dK and dV that go to their owners; returns the
    last sum. By blocks a slice's sums travel while the next slice is worked on."""
    plan, work, tokens, parts = job.plan, job.work, job.tokens, slices_of(job)
    groups, size = plan.attended_groups, context_bytes(job, group) / parts
    name, summed = f"attention {step + 1}/{groups}", f"sum dK,dV {step + 1}/{groups}"
    before: list[Operator] = [*gradients(group.output(tokens)), *heads_again(job, group, tokens)]

    def home(last: int) -> int:
        return builder.collective("reduce_scatter", "tsp", size, summed, after=[last], stream="context")

    if parts == 1:
        shard = plan.partition, job.sequence, plan.tsp, position
        segments = local_segments(*shard, job.sequences, work.causal, job.cached)
        named = f"{name} backward"
        return home(attention_backward(builder, job, group, segments, work.causal, named, after, before=before))
    sums = builder.compute(f"{name} d output", *before, after=after)
    for part in range(parts):
        segments = slice_segments(job, position, part, parts)
        named = f"{name} slice {part + 1}/{parts} backward"
        sums = home(attention_backward(builder, job, group, segments, False, named))
    attention_backward(builder, job, group, *own_segments(job, position), f"{name} own block backward")
    return sums


# --- MLP ----------------------------------------------------------------------------------------------------


def keeps_mlp(job: Job) -> bool:
    """Whether the MLP's weights stay from a layer's repetition to its backward."""
    return job.training and job.plan.recomputation == "full" and transport_of(job).keeps


def mlp_overlapped(builder: ProgramBuilder, job: Job, layer: LayerShard, last: int) -> int:
    """The piece that is here is multiplied while the next one arrives in the other buffer."""
    transport, piece = transport_of(job), piece_of(job, layer)
    pieces = transport.pieces(job)
    kept = builder.recomputing and keeps_mlp(job)
    size = folded_weights.mlp(job, piece).shard_bytes
    needed = [last, *gather_mlp_whole(builder, job, layer, [])]
    arrivals = Arrivals(builder, job, size, pieces, "MLP weights", "MLP weights", kept=kept)
    applied = last
    for number in range(pieces):
        arrivals.set_out(number)
        applied = apply_mlp(builder, job, piece, number, [*([] if number else needed), *arrivals.of(number)])
        if not kept:
            arrivals.used(number, applied)
    return applied


def mlp_in_turn(builder: ProgramBuilder, job: Job, layer: LayerShard, last: int) -> int:
    transport, piece = transport_of(job), piece_of(job, layer)
    pieces = transport.pieces(job)
    waits = [last, *gather_mlp_whole(builder, job, layer, [last])]
    arrivals = Arrivals(builder, job, folded_weights.mlp(job, piece).shard_bytes, pieces, "MLP weights")
    for number in range(pieces):
        arrivals.bring(number, waits)
        waits = [apply_mlp(builder, job, piece, number, arrivals.of(number) or waits)]
    return waits[-1]


def mlp_backward(builder: ProgramBuilder, job: Job, layer: LayerShard) -> int:
    """Piece by piece: its columns' gradients, and its weights' gradient on the way home.

    Returns the last kernel.
    """
    transport, piece, tokens = transport_of(job), piece_of(job, layer), job.tokens
    pieces, load = transport.pieces(job), folded_weights.mlp(job, piece)
    gradient_bytes = load.trained_in_shard * job.work.optimizer.gradients
    overlap = job.plan.overlap is not False
    kept = keeps_mlp(job)
    whole = [] if job.plan.recomputation == "full" else gather_mlp_whole(builder, job, layer, [])
    # Of a repeated layer that keeps its weights the buffers are those its forward filled.
    pool = "MLP weights" if kept else "MLP weights, backward"
    arrivals = Arrivals(builder, job, load.shard_bytes, pieces, "MLP weights, backward,", pool, kept=kept)
    applied = -1
    waits: list[int] = []
    for number in range(pieces):
        if not kept and overlap:
            arrivals.set_out(number)
        elif not kept:
            arrivals.bring(number, waits)
        operators = (
            *gradients(piece.down(tokens)),
            *cheap_again(job, piece.activation(tokens)),
            piece.activation_backward(tokens),
            *gradients(piece.gate_up(tokens)),
        )
        if gradient_bytes and transport.adds:
            operators = (*operators, MemoryBound("add", 3.0 * gradient_bytes, name="add to travelling gradient"))
        needed = [*([] if number else whole), *arrivals.of(number)]
        applied = builder.compute(f"MLP {number + 1}/{pieces} backward", *operators, after=needed)
        arrivals.used(number, applied)
        waits = [applied]
        if gradient_bytes:
            home = transport.take_home(builder, job, number, gradient_bytes, "MLP gradients", [applied])
            if not overlap:
                waits = [builder.compute("gradients here", after=[home])]
    return applied


def gather_mlp_whole(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    """Halves of adapters that the MLP's columns do not divide."""
    size = folded_weights.mlp(job, layer).whole_bytes
    name = "adapters of the MLP"
    return [builder.collective("all_gather", "tsp", size, name, after=after, stream="weights")] if size else []


def apply_mlp(builder: ProgramBuilder, job: Job, piece: LayerShard, number: int, after: list[int]) -> int:
    operators = (piece.gate_up(job.tokens), piece.activation(job.tokens), piece.down(job.tokens))
    # Experts have had their norm before the router.
    norm = () if number or piece.kind.experts else (piece.norm(job.tokens),)
    return builder.compute(f"MLP {number + 1}/{transport_of(job).pieces(job)}", *norm, *operators, after=after)


# --- memory -------------------------------------------------------------------------------------------------


def buffers(job: Job) -> Iterator[Buffer]:
    """Both while a layer works."""
    if not splits(job):
        yield from form_of(job.plan).buffers(job)
        return
    yield Buffer("gathered_context", gathered_context(job), Lifetime.LAYER)
    yield from unpacked(job, job.layer(job.plan.attended_groups))
    yield Buffer("in_flight_weights", in_flight_weights(job), Lifetime.LAYER)


def gathered_context(job: Job) -> float:
    """K and V of groups of heads over the whole context.

    Forward: the group at work, and overlapped the one that arrives. Training: a group and its gradients; with full
    recomputation all groups of the layer whose forward was just repeated, so that its backward need not gather again.
    """
    groups = job.plan.attended_groups
    group = job.layer(groups)
    one = context_bytes(job, group)
    latents = latent_bytes(job, group)
    if job.training:
        return one * (1 + (groups if job.plan.recomputation == "full" else 1))
    return latents + one * (1 if job.plan.overlap is False else min(2, groups))


def in_flight_weights(job: Job) -> float:
    """Other ranks' weights in this rank's buffers, and gradients of them.

    Forward: the buffers of both pools. Training: all of one layer, from its recomputation to its backward, with fp32
    accumulators of the gradients of what is trained until those are reduced to their owners, and the buffers in which
    the next layer's first pieces arrive.
    """
    transport, ahead = transport_of(job), min(folded_weights.ATTENTION_BUFFERS, job.plan.attended_groups)

    def of_kind(block: Block) -> float:
        layer = job.layer(job.plan.tsp, block)
        group, piece = group_of(job, layer), piece_of(job, layer)
        attention, mlp = folded_weights.attention(job, group), folded_weights.mlp(job, piece)
        arriving = BUFFERS * transport.pools(job) * mlp.shard_bytes
        if not job.training:
            here = (1 if job.plan.overlap is False else ahead) * attention.shard_bytes
            return here + arriving + attention.whole_bytes
        if job.plan.overlap is not False and transport.keeps:
            arriving += ahead * attention.shard_bytes
        groups, pieces = job.plan.attended_groups, transport.pieces(job)
        here = groups * attention.shard_bytes + pieces * mlp.shard_bytes + attention.whole_bytes + mlp.whole_bytes
        trained = groups * attention.trained_in_shard + pieces * mlp.trained_in_shard
        return here + 4.0 * (trained + attention.trained_in_whole + mlp.trained_in_whole) + arriving

    return max(of_kind(block) for block in dict.fromkeys(job.model.blocks))


# --- what others ask ----------------------------------------------------------------------------------------


def splits(job: Job) -> bool:
    """Whether the ranks divide the tokens of a pass."""
    return not job.step.serves or job.token_shards > 1


def whole_ranks(job: Job) -> int:
    """All, where each has all tokens."""
    return 1 if splits(job) or form_of(job.plan).travels else job.plan.tsp


def served_head(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """Of a serving step: every rank multiplies its part of the vocabulary."""
    if splits(job):
        sampled_head(builder, job, layer, AXIS)
    else:
        form_of(job.plan).head(builder, job, layer)


#: Keys of steps that decode.
OPTIONS = (
    Option("decode_form", DECODE_FORMS, None, "what TSP's ranks do in a step that decodes"),
    Option("decode_exchange", DECODE_EXCHANGES, None, "how ranks that share contexts merge partial attention"),
)


def serving_variants(step: Step, keys: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Forms in which it decodes."""
    yield from ({},) if step.shards_tokens else ({"decode_form": name} for name in DECODE_FORMS)


def check(job: Job) -> Refusal:
    model, plan = job.model, job.plan
    if isinstance(plan.overlap, str):
        return "overlap", f"{plan.overlap} is of products that are summed over tp; tsp has none: use true or false"
    if plan.overlap_by == "blocks" and plan.overlap is not False and not job.work.stack.flash_attention:
        return "overlap_by", "blocks merge parts of attention, and the stack writes scores out; use heads"
    own = [option.name for option in OPTIONS if option.name in plan.options]
    if own and splits(job):
        decoding = ", ".join(each.name for each in STEPS.values() if each.serves and not each.shards_tokens)
        return own[0], f"is of steps that decode: {decoding}"
    if not splits(job):
        refused = form_of(plan).check(job)
        if refused is not None:
            return refused
    elif job.step.serves:
        refused = refused_exchange(job)
        if refused is not None:
            return refused
    if model.heads % plan.tsp:
        return "tsp", f"{plan.tsp} does not divide the {model.heads} attention heads of {model.name}"
    if plan.tsp % plan.attended_groups:
        return "head_groups", f"{plan.head_groups} groups must divide the {plan.tsp} ranks of tsp"
    # What the ranks do not divide at all is no matter of pieces.
    return transport_of(job).check(job) if model.ffn % plan.tsp == 0 else None


def received(job: Job, in_switch: bool) -> tuple[Received, ...]:
    """(D − 1)/D of a layer's matrices, and of K and V of the whole context; in decoding what the form says."""
    if not splits(job):
        return (Received("tsp", form_of(job.plan).received(job)),)
    model, away = job.model, (job.plan.tsp - 1) / job.plan.tsp
    thinnest = min(set(model.blocks), key=model.common_matrix_parameters)
    # Of the whole layer: groups of heads need not replicate keys and values, however many ranks there are.
    layer = job.layer(1, thinnest)
    weights = folded_weights.attention(job, layer).shard_bytes + folded_weights.mlp(job, layer).shard_bytes
    context = context_bytes(job, layer) + latent_bytes(job, layer)
    return (Received("tsp", away * (weights + context)),)


SCHEME = SCHEMES.register(
    Scheme(
        name="folded",
        summary="folded tensor and sequence parallelism",
        axes=("tsp",),
        token_axis="tsp",
        shards=lambda job: job.plan.tsp,
        embed=folded_tables.embed,
        layer=forward_layer,
        head=folded_tables.head,
        layer_backward=backward_layer,
        head_backward=folded_tables.head_backward,
        embed_backward=folded_tables.embed_backward,
        layer_weights=None,
        residency=Residency(
            weight_shards=lambda job: job.plan.tsp,
            compute_shards=lambda job: 1 if splits(job) else job.plan.tsp,
            buffers=buffers,
            logit_shards=lambda job: job.plan.tsp if job.step.serves else transport_of(job).head_pieces(job),
        ),
        received=received,
        check=check,
        head_shards=lambda job: job.plan.attended_groups if splits(job) else job.plan.tsp,
        overlaps=lambda plan: True,
        whole=WholeTokens(
            embed=lambda builder, job, layer: form_of(job.plan).embed(builder, job, layer),
            layer=lambda builder, job, layer, position: form_of(job.plan).layer(builder, job, layer, position),
            head=served_head,
        ),
        context=lambda plan: form_of(plan).share(plan),
        whole_ranks=whole_ranks,
        options=OPTIONS,
        serving_variants=serving_variants,
        choices=lambda plan: (folded_choice.CHOICE,),
        published={"tsp_schedule": "published"},
        alone="folds tp and sp onto one axis",
        folds=True,
        assumption="TSP's broadcasts, gathers and hops run beside compute (`overlap`); how its weights travel and how "
        "many heads it attends at once is chosen for the machine (`tsp_schedule: published` is the text word by word).",
        unexplained="The published 2.0–2.6 times of TSP over TP+SP: docs/published-tsp.md gives the part that volumes, "
        "links and overlap explain.",
    )
)
