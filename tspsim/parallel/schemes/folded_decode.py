"""Decode forms: how ranks that own 1/D of every matrix and of the cache run a step with few tokens.

tree        every rank has all tokens: heads and columns are divided and summed as in tensor parallelism, contexts are
            divided by tokens, and partial attention is merged (:mod:`tspsim.parallel.decode`); mixed steps run so too
travel      the prefill's schedule: weights move to the tokens of a rank's own sequences
sequences   tensor parallelism's products, and whole contexts of a rank's own sequences: heads go to them and back
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...model import Block
from ...model.layer import LayerShard, ServingLayer
from ...operators import Gemm
from ...steps.load import round_robin
from ..builder import ProgramBuilder
from ..decode.exchange import Partial
from ..decode.index_exchange import index_exchange_of, refused_choice
from ..decode.layer import mlp as served_mlp
from ..decode.layer import project, sampled_head, serve_layer, sum_rows
from ..decode.sharing import exchange_buffers, exchanged_bytes, refused_exchange
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import Refusal
from ..registries import ContextShare, in_heads
from . import folded, folded_attention, folded_mlp, folded_tables, folded_weights
from .folded_form import AXIS, DECODE_FORMS, DecodeForm, form_of


def own_sequences(job: Job) -> Job:
    """The job with the sequences of the busiest rank."""
    load, ranks = job.work.load, job.plan.tsp
    rows = round_robin([(1, context, 1) for context in _contexts(job)], ranks)
    contexts = tuple(context for _, context, count in rows for _ in range(count))
    mine = replace(load, batch=len(contexts), contexts=contexts)
    return replace(job, work=replace(job.work, load=mine))


def _contexts(job: Job) -> list[int]:
    return [context for _, context, count in job.work.load.decoding() for _ in range(count)]


def embed_all(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """Every rank looks up the rows that it owns; a sum completes them."""
    looked_up = builder.compute("embedding lookup", layer.embedding(job.tokens))
    sum_rows(builder, job, AXIS, looked_up, "sum embedding")


# --- all tokens, parts of contexts ----------------------------------------------------------------------------


def tree_layer(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    return serve_layer(builder, job, layer, AXIS)


def summed_bytes(job: Job) -> float:
    """Bytes of two all-reduces of all tokens' rows, and of latents that ranks compute in parts."""
    away = (job.plan.tsp - 1) / job.plan.tsp
    rows = job.tokens * job.activation_bytes
    entering = min(entered_width(job, block) for block in job.model.distinct)
    return away * rows * (4 * job.model.hidden + entering)


def entered_width(job: Job, block: Block) -> int:
    """Elements per token that ranks compute in parts: latents, and an indexer's queries, key and weights."""
    layer = job.layer(1, block)
    assert isinstance(layer, ServingLayer)
    entering = layer.attention_kind.enter(layer, ((1, 0, 1),))
    return sum(operator.n for operator in entering if isinstance(operator, Gemm))


# --- all tokens, whole contexts of own sequences --------------------------------------------------------------


def sequences_layer(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    """Queries and new cache entries of a rank's heads go to the ranks of their sequences; outputs return."""
    assert isinstance(layer, ServingLayer)
    builder.part = "attention"
    kind, mine = layer.attention_kind, own_sequences(job)
    entered, projected = project(builder, job, layer, in_heads(job.plan.tsp), AXIS, [])
    there, back = dealt_bytes(job, layer)
    moved = builder.collective("all_to_all", AXIS, there, "queries to sequences", after=[projected])
    whole = replace(layer, shards=1)
    attended = builder.compute("attention", *kind.attend(whole, mine.rows), after=[moved])
    returned = builder.collective("all_to_all", AXIS, back, "outputs to heads", after=[attended])
    done = builder.compute("output projection", *kind.leave(layer, job.rows), after=[returned])
    reduced = sum_rows(builder, job, AXIS, done, "sum attention")
    _, leaving = served_mlp(builder, job, layer, AXIS, [reduced])
    for index, producer in enumerate(leaving):
        builder.after_previous_layer(entered, producer, f"tokens {index}")
    return leaving


def dealt_bytes(job: Job, layer: ServingLayer) -> tuple[float, float]:
    """Bytes of a rank before the all-to-all of queries with new entries, and before that of outputs."""
    ranks, mine = job.plan.tsp, own_sequences(job)
    every = Partial(in_heads(ranks), layer, job.rows, index_exchange_of(job.plan))
    kind, model = layer.attention_kind, layer.model
    use = kind.cache(model, layer.composition, layer.formats.cache)
    entries = every.tokens * kind.cache_elements(model, layer.composition) / ranks if use.heads > 1 else 0.0
    there = every.tokens * every.heads * every.query_width + entries
    back = mine.batch.tokens * model.heads * every.width
    return there * job.activation_bytes, back * job.activation_bytes


def dealt_received(job: Job) -> float:
    away = (job.plan.tsp - 1) / job.plan.tsp
    layers = [job.layer(job.plan.tsp, block) for block in dict.fromkeys(job.model.blocks)]
    moved = min(sum(map(round, dealt_bytes(job, layer))) for layer in layers if isinstance(layer, ServingLayer))
    return summed_bytes(job) + away * moved


def dealt_buffers(job: Job) -> Iterator[Buffer]:
    for block in dict.fromkeys(job.model.blocks):
        layer = job.layer(job.plan.tsp, block)
        assert isinstance(layer, ServingLayer)
        yield Buffer("partial_attention", 2 * sum(dealt_bytes(job, layer)), Lifetime.LAYER, block)


def check_sequences(job: Job) -> Refusal:
    """Why the plan does not fit: whole sequences are assigned to ranks, without prompts."""
    load, form = job.work.load, form_of(job.plan)
    if load.prompts:
        can = ", ".join(form.name for form in DECODE_FORMS.values() if form.share(job.plan).ranks > 1)
        return "decode_form", f"{form.name} is of steps that decode alone; with prompts use {can}"
    if job.plan.hiding.halves:
        return "expert_overlap", f"{job.plan.expert_overlap} cuts batches that {form.name} deals to ranks; use none"
    for block in dict.fromkeys(job.model.blocks):
        kind = job.model.attention_of(block)
        if not kind.divides_context:
            return "decode_form", f"{form.name} does not run attention of kind '{kind.name}'; use tp, pp or dp"
    return refused_choice(job)


# --- weights move to own sequences ----------------------------------------------------------------------------


def travel_layer(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    """The prefill's schedule over own sequences, whose keys and values no other rank needs."""
    mine = own_sequences(job)
    builder.part = "attention"
    attended = travel_attention(builder, mine, layer)
    builder.part = "mlp"

    def shared(after: list[int]) -> list[int]:
        multiply = folded_mlp.mlp_in_turn if job.plan.overlap is False else folded_mlp.mlp_overlapped
        return [multiply(builder, mine, layer, after[0])]

    return folded.served_mlp(builder, mine, layer, [attended], shared)


def travel_attention(builder: ProgramBuilder, mine: Job, layer: LayerShard) -> int:
    """For each group of heads: bring its weights, attend own sequences."""
    assert isinstance(layer, ServingLayer)
    groups, kind, overlap = mine.plan.attended_groups, layer.attention_kind, mine.plan.overlap is not False
    buffers = builder.buffers("attention weights", min(folded_weights.ATTENTION_BUFFERS, groups), groups)
    group = folded_attention.group_of(mine, layer)
    assert isinstance(group, ServingLayer)
    whole = folded_attention.gather_attention_whole(builder, mine, layer, [])
    entering = layer.norm(mine.tokens), *kind.enter(layer, mine.rows), *kind.select(layer, mine.rows)
    last = builder.compute("norm", *entering, after=whole)
    for step in range(groups):
        moved = folded_attention.bring_weights(builder, mine, group, step, [] if overlap else [last])
        if overlap:
            buffers.fill(step, *moved)
        attending = kind.attend_selected(group, mine.rows)
        operators = *kind.project(group, mine.rows), *attending, *kind.leave(group, mine.rows)
        last = builder.compute(f"attention {step + 1}/{groups}", *operators, after=moved[-1:])
        if overlap:
            buffers.used(step, last)
    return last


def embed_own(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """Rows of embeddings go from their owners to the ranks of the sequences."""
    folded_tables.look_up(builder, own_sequences(job), layer, job.tokens)


def head_of_own(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    """Gather all ranks' last tokens; every rank multiplies its part of the vocabulary."""
    size = job.head_tokens * job.model.hidden * job.activation_bytes
    builder.collective("all_gather", AXIS, size, "last tokens")
    sampled_head(builder, job, layer, AXIS)


def travelled(job: Job) -> float:
    """(D − 1)/D of the bytes of matrices, of the layer with fewest."""
    thinnest = min(set(job.model.blocks), key=job.model.common_matrix_parameters)
    layer = job.layer(1, thinnest)
    kept = folded_weights.attention(job, layer).shard_bytes + folded_weights.attention(job, layer).whole_bytes
    away = (job.plan.tsp - 1) / job.plan.tsp
    return away * (kept + folded_weights.mlp(job, layer).shard_bytes)


def travelling_buffers(job: Job) -> Iterator[Buffer]:
    """Other ranks' weights in this rank's buffers."""
    yield Buffer("in_flight_weights", folded.in_flight_weights(job), Lifetime.LAYER)


TREE = DECODE_FORMS.register(
    DecodeForm(
        name="tree",
        summary="all tokens on every rank, contexts by their tokens, partial attention merged",
        embed=embed_all,
        layer=tree_layer,
        head=lambda builder, job, layer: sampled_head(builder, job, layer, AXIS),
        share=lambda plan: ContextShare(
            AXIS, plan.tsp, plan.tsp, 1, plan.tsp, whole_keys=index_exchange_of(plan).whole
        ),
        received=lambda job: summed_bytes(job) + exchanged_bytes(job),
        buffers=exchange_buffers,
        check=refused_exchange,
    )
)
SEQUENCES = DECODE_FORMS.register(
    replace(
        TREE,
        name="sequences",
        summary="all tokens on every rank, whole contexts of its own sequences, heads sent there and back",
        layer=sequences_layer,
        share=lambda plan: replace(in_heads(1), sequences=plan.tsp),
        received=dealt_received,
        buffers=dealt_buffers,
        check=check_sequences,
    )
)
TRAVEL = DECODE_FORMS.register(
    replace(
        SEQUENCES,
        name="travel",
        summary="weights come to the tokens of a rank's own sequences, as in prefill",
        embed=embed_own,
        layer=travel_layer,
        head=head_of_own,
        received=travelled,
        buffers=travelling_buffers,
        travels=True,
    )
)
