"""A context method and a scheme that nobody in the package has heard of, each one object.

``announce``: every sequence shard broadcasts its K and V in turn, in some parts. ``whole``: D ranks divide tokens and
weights; a layer's weights come to every rank in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator

from tspsim.base.units import PositiveCount
from tspsim.model.layer import LayerShard, gradients
from tspsim.parallel import Choice, ContextMethod, Job, Option, Plan, Received, Residency, Scheme
from tspsim.parallel.builder import ProgramBuilder
from tspsim.parallel.context.attention import attention_backward, others_context
from tspsim.parallel.ledger import Buffer, Lifetime
from tspsim.parallel.partition import local_segments
from tspsim.parallel.search_rule import SearchRule

# --- a context method -------------------------------------------------------------------------------------------


def announce(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    plan, work, parts = job.plan, job.work, job.plan.options["announced_parts"]
    size = 2 * job.tokens * layer.kv_width * job.activation_bytes / parts
    for owner in range(plan.sp):
        for _ in range(parts):
            after = builder.collective(
                "broadcast", "sp", size, "announce K,V", root=owner, after=[after], stream="context"
            )
    segments = local_segments(plan.partition, work.sequence, plan.sp, position, job.sequences, work.causal)
    return builder.compute("attention", layer.attention(segments, causal=work.causal), after=[after])


def announce_backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int, after: int) -> int:
    plan, work = job.plan, job.work
    segments = local_segments(plan.partition, work.sequence, plan.sp, position, job.sequences, work.causal)
    attended = attention_backward(builder, job, layer, segments, work.causal, "attention backward", [after])
    size = 2 * job.group_tokens * layer.kv_width * job.activation_bytes
    home = builder.collective("reduce_scatter", "sp", size, "sum dK,dV", after=[attended], stream="context")
    return builder.compute("dK,dV here", after=[home])


PARTS = Choice(
    switches=("announced_parts",),
    first=("announced_parts",),
    options=lambda job, mesh: iter([{"announced_parts": 1}, {"announced_parts": 2}]),
    word=lambda plan: f"a{plan.options['announced_parts']}",
    sentence=lambda plan: f"K and V announced in {plan.options['announced_parts']} parts",
)

ANNOUNCE = ContextMethod(
    name="announce",
    summary="every shard broadcasts its K and V in turn",
    forward=announce,
    backward=announce_backward,
    received_bytes=others_context,
    buffers=lambda job: [Buffer("gathered_context", others_context(job) * (1 + job.training), Lifetime.LAYER)],
    choices=lambda plan: (PARTS,),
    options=(
        Option(
            "announced_parts",
            PositiveCount,
            1,
            "broadcasts a shard's K and V are cut into",
            SearchRule(why_not="chosen for the machine"),
        ),
    ),
)

# --- a scheme ---------------------------------------------------------------------------------------------------


def bring(builder: ProgramBuilder, layer_bytes: float, name: str, after: list[int]) -> int:
    return builder.collective("all_gather", "wp", layer_bytes, name, after=after, stream="weights")


def weights_of(job: Job, layer: LayerShard) -> float:
    return (layer.attention_weights + layer.mlp_weights) * job.weight_bytes


def segments_of(job: Job, position: int) -> tuple[tuple[int, int], ...]:
    plan, work = job.plan, job.work
    return local_segments(plan.partition, work.sequence, plan.token_shards, position, job.sequences, work.causal)


def context_of(job: Job, layer: LayerShard) -> float:
    return 2 * job.group_tokens * layer.kv_width * job.activation_bytes


def embed(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    builder.compute("embedding lookup", layer.embedding(job.tokens))


def forward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    tokens = job.tokens
    builder.part = "attention"
    here = bring(builder, weights_of(job, layer), "weights", [])
    operators = (layer.norm(tokens), *layer.projections(tokens), layer.rope(tokens))
    projected = builder.compute("QKV", *operators, after=[here])
    seen = builder.collective(
        "all_gather", "wp", context_of(job, layer), "gather K,V", after=[projected], stream="context"
    )
    attention = layer.attention(segments_of(job, position), causal=job.work.causal)
    builder.compute("attention", attention, layer.output(tokens), after=[seen])
    builder.part = "mlp"
    mlp = (layer.norm(tokens), layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens))
    return [builder.compute("MLP", *mlp)]


def head(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    builder.compute("head", layer.norm(job.tokens), layer.head(job.tokens))


def head_backward(builder: ProgramBuilder, job: Job, layer: LayerShard) -> None:
    builder.compute("head backward", layer.loss(job.tokens), *gradients(layer.head(job.tokens)))


def backward(builder: ProgramBuilder, job: Job, layer: LayerShard, position: int) -> list[int]:
    tokens = job.tokens
    builder.part = "mlp backward"
    here = bring(builder, weights_of(job, layer), "weights, backward", [])
    middle = (*gradients(layer.down(tokens)), layer.activation_backward(tokens), *gradients(layer.gate_up(tokens)))
    builder.compute("MLP backward", *middle, after=[here])
    builder.part = "attention backward"
    attention = layer.attention(segments_of(job, position), causal=job.work.causal, direction="backward")
    attended = builder.compute("attention backward", *gradients(layer.output(tokens)), attention)
    size = context_of(job, layer)
    home = builder.collective("reduce_scatter", "wp", size, "sum dK,dV", after=[attended], stream="context")
    products = (each for product in layer.projections(tokens) for each in gradients(product))
    last = builder.compute("QKV backward", layer.rope(tokens), *products, layer.norm_backward(tokens), after=[home])
    size = (layer.attention_weights + layer.mlp_weights) * job.work.optimizer.gradients
    summed = builder.collective("reduce_scatter", "wp", size, "gradients", after=[last], stream="weight gradients")
    builder.exchanged_gradients = [summed]
    return [last]


def whole_layer(job: Job) -> LayerShard:
    return LayerShard(job.model, 1, job.work.precision, job.activation_bytes)


def received(job: Job, in_switch: bool) -> tuple[Received, ...]:
    layer, ranks = whole_layer(job), job.plan.degree("wp")
    away = (ranks - 1) / ranks
    return (Received("wp", away * (weights_of(job, layer) + context_of(job, layer))),)


def kept(job: Job) -> Iterator[Buffer]:
    yield Buffer("gathered_context", context_of(job, whole_layer(job)), Lifetime.LAYER)
    yield Buffer("in_flight_weights", weights_of(job, whole_layer(job)), Lifetime.LAYER)


def ranks_of(plan: Plan) -> int:
    return plan.degree("wp")


WHOLE = Scheme(
    name="whole",
    summary="weights come to the tokens a layer at a time",
    axes=("wp",),
    token_axis="wp",
    shards=lambda job: 1,
    embed=embed,
    layer=forward,
    head=head,
    layer_backward=backward,
    head_backward=head_backward,
    embed_backward=embed,
    layer_weights=None,
    residency=Residency(
        weight_shards=lambda job: ranks_of(job.plan),
        compute_shards=lambda job: 1,
        buffers=kept,
    ),
    received=received,
    assumption="The weights of WP come before a layer begins (`wp`).",
)
