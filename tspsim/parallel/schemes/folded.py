"""TSP: tensor and sequence parallelism folded onto one axis (Zyphra).

Each of D ranks owns 1/D of every weight matrix and 1/D of the tokens. Nothing is all-reduced: weights move to the
tokens. Attention runs in ``head_groups`` groups of heads: the owners of a group broadcast their packed [Wq, Wk, Wv, Wo]
shards, every rank projects its own tokens, K and V of the group are all-gathered, and each rank attends its queries
over the whole context and adds A·Wo to its local output. The MLP's packed [gate, up, down] shards arrive by a
:mod:`~tspsim.parallel.schemes.transport` and are multiplied piece by piece.

As published, there are D groups, one per rank, and the MLP's shards hop around a ring. Both are choices here: the same
bytes over more links, in larger pieces (docs/schedules.md).

With overlap, weights and K, V move on streams of their own beside compute, as far ahead as buffers allow, across layers
too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...model import Block
from ...model.layer import LayerShard
from ...steps import STEPS, Step
from ..builder import ProgramBuilder
from ..context.attention import context_bytes, latent_bytes
from ..context.method import in_parts_refused
from ..context.selected import selects
from ..decode import exchange, index_exchange
from ..decode.layer import sampled_head
from ..decode.sharing import refused_exchange
from ..experts import expert, expert_serving
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import Refusal
from ..recompute import recomputed_kernels
from ..registries import Option
from ..residency import Residency
from ..scheme import SCHEMES, Received, Scheme, WholeTokens
from ..search_rule import SearchRule, decodes
from ..unpacked import unpacked
from . import folded_choice, folded_tables, folded_weights
from .folded_attention import attention_in_turn, attention_overlapped, attention_part_backward, group_of
from .folded_form import AXIS, DECODE_FORMS, form_of
from .folded_mlp import mlp_backward, mlp_in_turn, mlp_overlapped
from .transport import BUFFERS, piece_of, transport_of


def forward_layer(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    builder.part = "attention"
    overlap = job.plan.overlap is not False
    attended = (attention_overlapped if overlap else attention_in_turn)(builder, job, layer, position)
    builder.part = "mlp"

    def mlp(after: list[int]) -> list[int]:
        return [(mlp_overlapped if overlap else mlp_in_turn)(builder, job, layer, after[0])]

    if job.step.serves:
        return served_mlp(builder, job, layer, [attended], mlp)
    if not layer.composition.experts:
        return mlp([attended])
    return [expert.forward(builder, job, layer, [attended], mlp if layer.ffn else None)]


def served_mlp(builder: ProgramBuilder, job: Job, layer: LayerShard, after: list[int], mlp: expert.Shared) -> list[int]:
    """The MLP of a rank's own tokens in a serving step; routed experts are all local, or on the ranks of ``ep``."""
    if not layer.composition.experts:
        return mlp(after)
    shared = mlp if layer.ffn else None
    if job.plan.ep > 1:
        return expert_serving.serve(builder, job, layer, after, shared)
    routed = expert.routed_forward(job, job.tokens)
    done = [builder.compute("norm, experts", layer.norm(job.tokens), *routed, after=after)]
    return shared(done) if shared else done


def backward_layer(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    """Derived, not published. The MLP's weights arrive again unless they stayed, and their gradients return to the
    owners; then each group of heads again, dK and dV are reduce-scattered, and the attention weights' gradients are
    reduced to their owners in one reduce-scatter. With full recomputation the forward's attention weights are still
    here.
    """
    builder.part = "mlp backward"
    if layer.composition.experts:

        def shared(after: list[int]) -> list[int]:
            return [mlp_backward(builder, job, layer)]

        expert.backward(builder, job, layer, shared if layer.ffn else None)
    else:
        mlp_backward(builder, job, layer)
        again = recomputed_kernels(job, layer.norm(job.tokens))
        builder.compute("norm backward", *again, layer.norm_backward(job.tokens))
    builder.part = "attention backward"
    return [attention_part_backward(builder, job, layer, position)]


# --- memory -------------------------------------------------------------------------------------------------


def buffers(job: Job) -> Iterator[Buffer]:
    """Gathered context and arriving weights while a layer runs."""
    if not splits(job):
        yield from form_of(job.plan).buffers(job)
        return
    yield Buffer("gathered_context", gathered_context(job), Lifetime.LAYER)
    yield from unpacked(job, job.layer(job.plan.attended_groups))
    yield Buffer("in_flight_weights", in_flight_weights(job), Lifetime.LAYER)


def gathered_context(job: Job) -> float:
    """Bytes of K and V of groups of heads over the whole context.

    Forward: the group at work, and with overlap the arriving one. Training: a group and its gradients; with full
    recomputation all groups of the layer, so that its backward need not gather again.
    """
    groups = job.plan.attended_groups
    group = job.layer(groups)
    if selects(group):  # all heads share latents and index keys
        return max(context_bytes(job, job.layer(groups, block)) for block in job.model.distinct)
    every = [job.layer(groups, block) for block in job.model.distinct] if job.step.serves else [group]
    one = max(context_bytes(job, member) for member in every)
    latents = max(latent_bytes(job, member) for member in every)
    if job.training:
        return one * (1 + (groups if job.plan.recomputation == "full" else 1))
    return latents + one * (1 if job.plan.overlap is False else min(2, groups))


def in_flight_weights(job: Job) -> float:
    """Bytes of other ranks' weights in this rank's buffers, and of their gradients.

    Forward: the buffers of both pools. Training: all of one layer from its recomputation to its backward, fp32
    accumulators of trained weights' gradients until they are reduced to their owners, and the buffers for the next
    layer's first pieces.
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


# --- contract of the scheme ---------------------------------------------------------------------------------


def splits(job: Job) -> bool:
    """Whether the ranks divide the tokens of a pass."""
    return not job.step.serves or job.token_shards > 1


def tensor_ranks(job: Job) -> int:
    """Ranks that divide heads and columns while each has all tokens; 1 if tokens are divided."""
    return 1 if splits(job) or form_of(job.plan).travels else job.plan.tsp


def served_head(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """The LM head of a serving step: every rank multiplies its part of the vocabulary."""
    if splits(job):
        sampled_head(builder, job, layer, AXIS)
    else:
        form_of(job.plan).head(builder, job, layer)


#: Keys of decode steps.
OPTIONS = (
    Option("decode_form", DECODE_FORMS, None, "schedule of TSP's ranks in a decode step", SearchRule(of=decodes)),
    exchange.OPTION,
    index_exchange.OPTION,
)


def serving_variants(step: Step, keys: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The decode forms, for steps that decode."""
    yield from ({},) if step.shards_tokens else ({"decode_form": name} for name in DECODE_FORMS)


def check(job: Job) -> Refusal:
    model, plan = job.model, job.plan
    if isinstance(plan.overlap, str):
        return "overlap", f"{plan.overlap} is of products that are summed over tp; tsp has none: use true or false"
    if plan.overlap_by == "blocks" and plan.overlap is not False and not job.work.stack.flash_attention:
        return "overlap_by", "blocks merge parts of attention, and the stack writes scores out; use heads"
    own = [option.name for option in OPTIONS if option.name in plan.options]
    if own and splits(job):
        decoding = ", ".join(step.name for step in STEPS.values() if step.serves and not step.shards_tokens)
        return own[0], f"is of steps that decode: {decoding}"
    if not splits(job):
        refused = form_of(plan).check(job)
        if refused is not None:
            return refused
    elif job.step.serves:
        refused = refused_exchange(job)
        if refused is not None:
            return refused
        if plan.overlap_by == "blocks":
            parts = in_parts_refused(job)
            if parts is not None:
                return parts
    if model.heads % plan.tsp:
        return "tsp", f"{plan.tsp} does not divide the {model.heads} attention heads of {model.name}"
    if plan.tsp % plan.attended_groups:
        return "head_groups", f"{plan.head_groups} groups must divide the {plan.tsp} ranks of tsp"
    # If the ranks do not divide the columns, pieces are not the problem.
    return transport_of(job).check(job) if model.ffn % plan.tsp == 0 else None


def received(job: Job, in_switch: bool) -> tuple[Received, ...]:
    """(D − 1)/D of a layer's matrices, and of K and V of the whole context; in decode steps, what the form states."""
    if not splits(job):
        return (Received("tsp", form_of(job.plan).received(job)),)
    model, away = job.model, (job.plan.tsp - 1) / job.plan.tsp

    def moved(block: Block) -> float:
        # Of the whole layer: groups of heads need no replicated keys and values, however many ranks there are.
        layer = job.layer(1, block)
        weights = folded_weights.attention(job, layer).shard_bytes + folded_weights.mlp(job, layer).shard_bytes
        return weights + context_bytes(job, layer) + latent_bytes(job, layer)

    return (Received("tsp", away * min(moved(block) for block in model.distinct)),)


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
        tensor_ranks=tensor_ranks,
        options=OPTIONS,
        serving_variants=serving_variants,
        choices=lambda plan: (folded_choice.CHOICE,),
        published={"tsp_schedule": "published"},
        alone="folds tp and sp onto one axis",
        folds=True,
        assumption="TSP's broadcasts, gathers and hops run beside compute (`overlap`); how its weights travel and how "
        "many heads it attends at once is chosen for the machine (`tsp_schedule: published` is the text word by word).",
        unexplained="The published 2.0–2.6 times of TSP over TP+SP: `tspsim docs published-tsp.md` gives the part that "
        "volumes, links and overlap explain.",
    )
)
