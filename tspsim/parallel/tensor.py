"""Tensor parallelism (Megatron), alone or beside sequence shards: a tp × sp mesh.

QKV and gate/up are split by columns, output and down projection by rows; after each of the two an all-reduce of
B·S/Σ·h over ``tp``, or with sequence regions a reduce-scatter and an all-gather of the same bytes around the norm
(Shoeybi et al. 2019, §3; Korthikanti et al. 2022, §4.2). The backward mirrors it: gradients of the column-split
inputs are summed. Overlapped, tokens are cut into ``overlap_chunks`` and a chunk is reduced while the next is
multiplied (Flux, Comet, asynchronous TP); in the backward the sum runs beside the weights' gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..model.layer import LayerShard, gradients
from ..operators import Gemm, Operator
from . import sequence
from .memory import Residency
from .plan import Job
from .script import Script
from .step import Scheme


def embed(script: Script, job: Job, layer: LayerShard) -> None:
    """Every rank looks up the rows it owns; the sum over ``tp`` completes them."""
    looked_up = script.compute("embedding lookup", layer.embedding(job.tokens))
    reduce_rows(script, job, job.tokens, looked_up, "sum embedding")


def forward_layer(script: Script, job: Job, layer: LayerShard, position: int) -> list[int]:
    plan = job.plan
    chunks = plan.overlap_chunks if plan.overlap and plan.tp > 1 else 1
    tokens = job.tokens // chunks
    script.part = "attention"
    entering = list(column_products(script, job, layer, tokens, [[]] * chunks, "QKV"))
    attended = attend(script, job, layer, position, entering[-1][1])
    reduced = []
    for _ in range(chunks):
        projected = script.compute("output projection", layer.output(tokens), after=[attended])
        reduced.append([reduce_rows(script, job, tokens, projected, "sum attention")])
    script.part = "mlp"
    leaving = [
        reduce_rows(script, job, tokens, multiplied, "sum MLP")
        for _, multiplied in column_products(script, job, layer, tokens, reduced, "MLP")
    ]
    if not script.recomputing:
        for (consumer, _), producer in zip(entering, leaving, strict=True):
            script.after_previous_layer(consumer, producer)
    return leaving


def head(script: Script, job: Job, layer: LayerShard) -> None:
    normed = script.compute("final norm", layer.norm(residual_tokens(job)))
    ready = gather_rows(script, job, job.tokens, [normed], "gather for head")
    script.compute("language-model head", layer.head(job.tokens), after=ready)


def head_backward(script: Script, job: Job, layer: LayerShard) -> None:
    """Loss over a sharded vocabulary: maxima and sums of exponentials meet, two fp32 numbers a token."""
    ready: list[int] = []
    if job.plan.tp > 1:
        ready = [script.collective("all_reduce", "tp", 8 * job.tokens, "softmax sums")]
    script.compute("loss", layer.loss(job.tokens), after=ready)
    column_gradients(script, job, layer.head(job.tokens), "language-model head backward", "sum d head")
    script.compute("final norm backward", layer.norm_backward(residual_tokens(job)))


def embed_backward(script: Script, job: Job, layer: LayerShard) -> None:
    """Rows' gradients are added where the rows are."""
    script.compute("embedding backward", layer.embedding(job.tokens))


def backward_layer(script: Script, job: Job, layer: LayerShard, position: int) -> list[int]:
    tokens = job.tokens
    script.part = "mlp backward"
    ready = gather_rows(script, job, tokens, [], "gather d MLP")
    d_down = script.gradients(layer.down(tokens))
    script.compute("down projection backward", *d_down, layer.activation_backward(tokens), after=ready)
    summed = column_gradients(script, job, layer.gate_up(tokens), "gate and up backward", "sum d MLP")
    normed = script.compute("norm backward", layer.norm_backward(residual_tokens(job)), after=summed)
    script.part = "attention backward"
    ready = gather_rows(script, job, tokens, [normed], "gather d attention")
    projected = script.compute("output projection backward", *script.gradients(layer.output(tokens)), after=ready)
    attend_backward(script, job, layer, position, projected)
    summed = column_gradients(script, job, layer.qkv(tokens), "QKV backward", "sum d attention", layer.rope(tokens))
    return [script.compute("norm backward", layer.norm_backward(residual_tokens(job)), after=summed)]


def attend(script: Script, job: Job, layer: LayerShard, position: int, after: int) -> int:
    exchange = sequence.EXCHANGES[job.plan.exchange].forward if job.plan.sp > 1 else sequence.attend_local
    return exchange(script, job, layer, position, after)


def attend_backward(script: Script, job: Job, layer: LayerShard, position: int, after: int) -> int:
    exchange = sequence.EXCHANGES[job.plan.exchange].backward if job.plan.sp > 1 else sequence.attend_local_backward
    return exchange(script, job, layer, position, after)


def column_products(
    script: Script, job: Job, layer: LayerShard, tokens: int, waits: Sequence[list[int]], name: str
) -> Iterator[tuple[int, int]]:
    """Add and norm, then the column-split products (QKV, or the whole MLP up to its row-split one), chunk by chunk.

    With sequence regions a chunk is normed and gathered while the one before is multiplied. Yields the first and
    last instruction of every chunk as the caller takes them, so that what follows a chunk is issued before the next.
    """
    products: tuple[Operator, ...] = (
        (layer.qkv(tokens), layer.rope(tokens))
        if name == "QKV"
        else (layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens))
    )
    if not job.plan.sequence_regions or job.plan.tp == 1:
        for wait in waits:
            both = script.compute(f"norm, {name}", layer.norm(tokens), *products, after=wait)
            yield both, both
        return
    normed: list[int] = []
    gathered: list[list[int]] = []
    for chunk in range(len(waits)):
        while len(normed) < min(chunk + 2, len(waits)):
            normed.append(script.compute("norm", layer.norm(tokens // job.plan.tp), after=waits[len(normed)]))
            gathered.append(gather_rows(script, job, tokens, normed[-1:], f"gather for {name}"))
        yield normed[chunk], script.compute(name, *products, after=gathered[chunk])


def column_gradients(script: Script, job: Job, product: Gemm, name: str, sum_name: str, *before: Operator) -> list[int]:
    """Gradients of a column-split product and the sum of its input's; returns what the input's gradient waits for."""
    d_input, *d_weight = script.gradients(product)
    if job.plan.tp == 1:
        return [script.compute(name, *before, d_input, *d_weight)]
    multiplied = script.compute(f"{name}, input", *before, d_input)
    if not d_weight or job.plan.overlap:
        summed = reduce_rows(script, job, job.tokens, multiplied, sum_name)
        if d_weight:
            script.compute(f"{name}, weight", *d_weight)
        return [summed]
    both = script.compute(f"{name}, weight", *d_weight)
    return [reduce_rows(script, job, job.tokens, both, sum_name)]


def layer_weights(script: Script, job: Job, layer: LayerShard) -> None:
    """The four products' weight gradients, put off by a zero-bubble schedule."""
    products = layer.qkv(job.tokens), layer.output(job.tokens), layer.gate_up(job.tokens), layer.down(job.tokens)
    script.compute("weight gradients", *(gradients(product)[1] for product in products))


def reduce_rows(script: Script, job: Job, tokens: int, after: int, name: str) -> int:
    """Sum partial rows over ``tp``: everywhere, or with sequence regions each rank its own 1/T of the tokens."""
    if job.plan.tp == 1:
        return after
    size = tokens * job.model.hidden * job.activation_bytes
    kind = "reduce_scatter" if job.plan.sequence_regions else "all_reduce"
    return script.collective(kind, "tp", size, name, after=[after])


def gather_rows(script: Script, job: Job, tokens: int, after: list[int], name: str) -> list[int]:
    """With sequence regions: every rank's 1/T of the tokens to all. Returns what the whole rows wait for."""
    if job.plan.tp == 1 or not job.plan.sequence_regions:
        return after
    size = tokens * job.model.hidden * job.activation_bytes
    return [script.collective("all_gather", "tp", size, name, after=after, stream="gather rows")]


def residual_tokens(job: Job) -> int:
    """Tokens of the residual stream on this rank: with sequence regions its 1/T."""
    return job.tokens // (job.plan.tp if job.plan.sequence_regions else 1)


SCHEME = Scheme(
    name="tensor and sequence",
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
        gathered_context=sequence.gathered_context,
        in_flight_weights=lambda job: 0.0,
    ),
)
