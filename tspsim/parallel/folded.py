"""TSP: tensor and sequence parallelism folded onto one axis (Zyphra).

Each of D ranks owns 1/D of every weight matrix and 1/D of the tokens. Attention runs in D steps: rank r broadcasts
its packed [Wq, Wk, Wv, Wo] shard, every rank projects its own tokens with it, K and V of that head bucket are
all-gathered, and each rank attends its queries over the whole context and adds A·Wo to its local output. The MLP's
packed [gate, up, down] shards travel a ring of D−1 hops; each rank applies the shard that is here. Nothing is
all-reduced (physics: §1 of docs/schedules.md).

Overlapped, weights move on one stream and K, V on another beside compute. A rank holds at most three attention
shards (the one in use, the next one, the one arriving) and two MLP shards.
"""

from __future__ import annotations

from ..model.layer import LayerShard, gradients
from ..operators import MemoryBound, Operator
from . import expert
from .memory import Residency
from .partition import local_segments
from .plan import Job
from .recompute import cheap_again, heads_again
from .script import Script
from .step import Scheme

#: Attention shards a rank holds at once: without the third, a shard could only start on its way when the one
#: before last is done with its output projection, and the projection of the next step would wait for it.
ATTENTION_BUFFERS = 3
MLP_BUFFERS = 2


def forward_layer(script: Script, job: Job, layer: LayerShard, position: int) -> list[int]:
    script.part = "attention"
    overlap = job.plan.overlap is not False
    attended = (attention_overlapped if overlap else attention_in_turn)(script, job, layer, position)
    script.part = "mlp"

    def mlp(after: list[int]) -> list[int]:
        return [(mlp_overlapped if overlap else mlp_in_turn)(script, job, layer, after[0])]

    if not layer.kind.experts:
        return mlp([attended])
    return [expert.forward(script, job, layer, [attended], mlp if layer.ffn else None)]


def backward_layer(script: Script, job: Job, layer: LayerShard, position: int) -> list[int]:
    """Derived, not published: MLP shards circulate again and their gradients travel behind them to the owner; then
    every head bucket once more, dK and dV reduce-scattered, and the attention weights' gradients reduced to their
    owners in one reduce-scatter. With full recomputation the bucket's weights are still here from the forward.
    """
    script.part = "mlp backward"
    if layer.kind.experts:

        def shared(after: list[int]) -> list[int]:
            return [mlp_backward(script, job, layer)]

        expert.backward(script, job, layer, shared if layer.ffn else None)
    else:
        mlp_backward(script, job, layer)
        again = cheap_again(job, layer.norm(job.tokens))
        script.compute("norm backward", *again, layer.norm_backward(job.tokens))
    script.part = "attention backward"
    return [attention_backward(script, job, layer, position)]


def attention_overlapped(script: Script, job: Job, layer: LayerShard, position: int) -> int:
    """D steps, software-pipelined by one: QKV of step r+1 is multiplied before attention of step r, so that the
    gather of r+1 runs beside it. Returns the last instruction."""
    shards, tokens = job.plan.tsp, job.tokens
    moved: list[int] = []
    projected: list[int] = []
    gathered: list[int] = []
    attended: list[int] = []

    def project(step: int) -> None:
        # While a layer is repeated for its backward all its shards are kept: there is no buffer to wait for.
        reused = step >= ATTENTION_BUFFERS and not script.recomputing
        buffer_free = [attended[step - ATTENTION_BUFFERS]] if reused else []
        moved.append(broadcast_weights(script, job, layer, step, buffer_free))
        operators: tuple[Operator, ...] = (*layer.projections(tokens), layer.rope(tokens))
        if step == 0:
            script.compute("norm", layer.norm(tokens), *layer.down_projections(tokens), after=down)
        projected.append(script.compute(f"QKV {step + 1}/{shards}", *operators, after=[moved[step]]))
        gathered.append(gather_context(script, job, layer, step, [projected[step]]))

    down = gather_down_projections(script, job, layer, [])
    project(0)
    for step in range(shards):
        if step + 1 < shards:
            project(step + 1)
        attended.append(attend(script, job, layer, position, step, gathered[step]))
    if script.recomputing:
        return attended[-1]
    # The buffers of a layer's first shards are those of the layer before's last ones.
    for step in range(min(ATTENTION_BUFFERS, shards)):
        if shards - ATTENTION_BUFFERS + step >= 0:
            last_user = attended[shards - ATTENTION_BUFFERS + step]
            script.after_previous_layer(moved[step], last_user, f"attention buffer {step}")
    return attended[-1]


def attention_in_turn(script: Script, job: Job, layer: LayerShard, position: int) -> int:
    """Nothing overlaps: every exchange is waited for before the next instruction."""
    down = gather_down_projections(script, job, layer, [])
    last = script.compute("norm", layer.norm(job.tokens), *layer.down_projections(job.tokens), after=down)
    for step in range(job.plan.tsp):
        moved = broadcast_weights(script, job, layer, step, [last])
        projected = script.compute(
            f"QKV {step + 1}/{job.plan.tsp}", *layer.projections(job.tokens), layer.rope(job.tokens), after=[moved]
        )
        last = attend(script, job, layer, position, step, gather_context(script, job, layer, step, [projected]))
    return last


def mlp_overlapped(script: Script, job: Job, layer: LayerShard, last: int) -> int:
    """The shard that is here is multiplied while the next one arrives in the other buffer."""
    shards = job.plan.tsp
    arrived: list[int] = []
    applied: list[int] = []
    for hop in range(shards):
        if hop + 1 < shards:
            # Hop h fills the buffer that step h−1 of the ring has finished with.
            waits = applied[hop - 1 : hop] if hop else []
            arrived.append(ring_weights(script, job, layer, hop, waits))
        applied.append(apply_mlp(script, job, layer, hop, arrived[hop - 1 : hop] if hop else [last]))
    if not script.recomputing:
        script.after_previous_layer(arrived[0], applied[-1], "MLP buffer")
    return applied[-1]


def mlp_in_turn(script: Script, job: Job, layer: LayerShard, last: int) -> int:
    for hop in range(job.plan.tsp):
        if hop:
            last = ring_weights(script, job, layer, hop - 1, [last])
        last = apply_mlp(script, job, layer, hop, [last])
    return last


def mlp_backward(script: Script, job: Job, layer: LayerShard) -> int:
    """Hop by hop: the shard's columns again, their gradients, and the shard's gradient one step behind its weights.

    Returns the last kernel.
    """
    shards, tokens = job.plan.tsp, job.tokens
    sizes = layer.mlp_weights * job.weight_bytes, layer.mlp_weights * job.work.optimizer.gradients
    overlap = job.plan.overlap is not False
    arrived: list[int] = []
    applied: list[int] = []
    for hop in range(shards):
        waits = arrived[hop - 1 : hop] if hop else []
        if overlap and hop + 1 < shards:
            arrived.append(
                script.ring_hop(
                    "tsp",
                    sizes[0],
                    f"MLP weights hop {hop + 1} backward",
                    after=[*waits, *applied[hop - 1 : hop]],
                    stream="weights",
                )
            )
        operators = (
            *gradients(layer.down(tokens)),
            *cheap_again(job, layer.activation(tokens)),
            layer.activation_backward(tokens),
            *gradients(layer.gate_up(tokens)),
            MemoryBound("add", 3.0 * sizes[1], name="add to travelling gradient"),
        )
        applied.append(script.compute(f"MLP {hop + 1}/{shards} backward", *operators, after=waits))
        sent = script.ring_hop(
            "tsp", sizes[1], f"MLP gradients hop {hop + 1}", after=[applied[-1]], stream="weight gradients"
        )
        if not overlap:
            here = script.compute("gradients here", after=[sent])
            if hop + 1 < shards:
                arrived.append(
                    script.ring_hop(
                        "tsp", sizes[0], f"MLP weights hop {hop + 1} backward", after=[here], stream="weights"
                    )
                )
    return applied[-1]


def attention_backward(script: Script, job: Job, layer: LayerShard, position: int) -> int:
    shards, tokens, work = job.plan.tsp, job.tokens, job.work
    overlap = job.plan.overlap is not False
    segments = local_segments(job.plan.partition, work.sequence, shards, position, job.sequences, work.causal)
    again = heads_again(job, layer, tokens)
    if job.plan.recomputation == "selective":
        again = (layer.attention(segments, causal=work.causal),)
    kernel = layer.attention(segments, causal=work.causal, direction="backward")
    context = 2 * job.group_tokens * layer.kv_width * job.activation_bytes
    here: list[int] = []
    reduced: list[int] = []
    last: list[int] = []

    def project(step: int) -> None:
        """dQ, dK and dV of a bucket through its QKV weights, once its dK and dV are whole."""
        nonlocal last
        last = [
            script.compute(
                f"QKV {step + 1}/{shards} backward",
                layer.rope(tokens),
                *(gradient for product in layer.projections(tokens) for gradient in gradients(product)),
                after=[reduced[step]],
            )
        ]

    for step in range(shards):
        waits = (
            last
            if not overlap
            else here[step - ATTENTION_BUFFERS : step - ATTENTION_BUFFERS + 1]
            if step >= ATTENTION_BUFFERS
            else []
        )
        needed = []
        if job.plan.recomputation != "full":
            needed = [
                broadcast_weights(script, job, layer, step, waits),
                gather_context(script, job, layer, step, waits),
            ]
        here.append(
            script.compute(
                f"attention {step + 1}/{shards} backward",
                *gradients(layer.output(tokens)),
                *again,
                kernel,
                after=needed,
            )
        )
        reduced.append(
            script.collective(
                "reduce_scatter",
                "tsp",
                context,
                f"sum dK,dV {step + 1}/{shards}",
                after=[here[-1]],
                stream="context",
            )
        )
        if not overlap:
            project(step)
        elif step:
            project(step - 1)
    if overlap:
        project(shards - 1)
    if layer.down_weights:
        needed = gather_down_projections(script, job, layer, last) if job.plan.recomputation != "full" else []
        d_down = [gradient for product in layer.down_projections(tokens) for gradient in gradients(product)]
        last = [script.compute("latents backward", *d_down, after=needed)]
    size = (shards * layer.attention_weights + layer.down_weights) * work.optimizer.gradients
    summed = script.collective(
        "reduce_scatter", "tsp", size, "attention gradients to owners", after=last, stream="weight gradients"
    )
    script.exchanged_gradients = [summed]
    normed = *cheap_again(job, layer.norm(tokens)), layer.norm_backward(tokens)
    return script.compute("norm backward", *normed, after=[] if overlap else [summed])


def gather_down_projections(script: Script, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    """Latent attention's projections to latents, which no head divides: every rank needs them whole for its tokens."""
    if not layer.down_weights:
        return []
    size = layer.down_weights * job.weight_bytes
    return [script.collective("all_gather", "tsp", size, "projections to latents", after=after, stream="weights")]


def broadcast_weights(script: Script, job: Job, layer: LayerShard, step: int, after: list[int]) -> int:
    return script.collective(
        "broadcast",
        "tsp",
        layer.attention_weights * job.weight_bytes,
        f"weights {step + 1}/{job.plan.tsp}",
        root=step,
        after=after,
        stream="weights",
    )


def gather_context(script: Script, job: Job, layer: LayerShard, step: int, after: list[int]) -> int:
    size = 2 * job.group_tokens * layer.kv_width * job.activation_bytes
    return script.collective(
        "all_gather", "tsp", size, f"gather K,V {step + 1}/{job.plan.tsp}", after=after, stream="context"
    )


def attend(script: Script, job: Job, layer: LayerShard, position: int, step: int, after: int) -> int:
    """Local queries over the whole context with one head bucket, and its part of the output projection."""
    work = job.work
    segments = local_segments(job.plan.partition, work.sequence, job.plan.tsp, position, job.sequences, work.causal)
    return script.compute(
        f"attention {step + 1}/{job.plan.tsp}",
        layer.attention(segments, causal=work.causal),
        layer.output(job.tokens),
        after=[after],
    )


def ring_weights(script: Script, job: Job, layer: LayerShard, hop: int, after: list[int]) -> int:
    size = layer.mlp_weights * job.weight_bytes
    return script.ring_hop("tsp", size, f"MLP weights hop {hop + 1}", after=after, stream="weights")


def apply_mlp(script: Script, job: Job, layer: LayerShard, hop: int, after: list[int]) -> int:
    operators = (layer.gate_up(job.tokens), layer.activation(job.tokens), layer.down(job.tokens))
    # Experts have had their norm before the router.
    norm = () if hop or layer.kind.experts else (layer.norm(job.tokens),)
    return script.compute(f"MLP {hop + 1}/{job.plan.tsp}", *norm, *operators, after=after)


def embed(script: Script, job: Job, layer: LayerShard) -> None:
    """Rows live with their owner: token numbers go there (four bytes each), rows come back, all-to-all."""
    asked = script.collective("all_gather", "tsp", 4 * job.group_tokens, "token numbers", stream="context")
    found = script.compute("embedding lookup", layer.embedding(job.tokens), after=[asked])
    size = job.tokens * job.model.hidden * job.activation_bytes
    rows = script.collective("all_to_all", "tsp", size, "embedding rows", after=[found], stream="context")
    script.compute("place rows", layer.embedding(job.tokens), after=[rows])


def embed_backward(script: Script, job: Job, layer: LayerShard) -> None:
    """Rows' gradients go to the rows' owners, all-to-all, and are added there."""
    size = job.tokens * job.model.hidden * job.activation_bytes
    home = script.collective("all_to_all", "tsp", size, "embedding gradients", stream="context")
    script.compute("embedding backward", layer.embedding(job.tokens), after=[home])


def head(script: Script, job: Job, layer: LayerShard) -> None:
    """The head's vocabulary shards travel the ring as the MLP's do."""
    script.compute("final norm", layer.norm(job.tokens))
    circulate_head(script, job, layer, "language-model head", layer.head(job.tokens))


def head_backward(script: Script, job: Job, layer: LayerShard) -> None:
    """Each shard's logits again with their loss and gradients; the weights' gradients travel one step behind."""
    product = layer.head(job.tokens)
    circulate_head(script, job, layer, "head backward", product, layer.loss(job.tokens), *gradients(product))
    script.compute("final norm backward", layer.norm_backward(job.tokens))


def circulate_head(script: Script, job: Job, layer: LayerShard, name: str, *operators: Operator) -> None:
    shards, backward = job.plan.tsp, len(operators) > 1
    elements = job.model.hidden * layer.vocab
    overlap = job.plan.overlap is not False
    arrived: list[int] = []
    applied: list[int] = []
    for hop in range(shards):
        here = arrived[-1:]
        if overlap and hop + 1 < shards:
            waits = [*here, *applied[-1:]]
            arrived.append(
                script.ring_hop(
                    "tsp",
                    elements * job.weight_bytes,
                    f"head weights hop {hop + 1}",
                    after=waits,
                    stream="weights",
                )
            )
        applied.append(script.compute(f"{name} {hop + 1}/{shards}", *operators, after=here))
        if backward:
            size = elements * job.work.optimizer.gradients
            script.ring_hop("tsp", size, f"head gradients hop {hop + 1}", after=applied[-1:], stream="weight gradients")
        if not overlap and hop + 1 < shards:
            arrived.append(
                script.ring_hop(
                    "tsp",
                    elements * job.weight_bytes,
                    f"head weights hop {hop + 1}",
                    after=applied[-1:],
                    stream="weights",
                )
            )


def gathered_context(job: Job, in_flight: int) -> float:
    """K and V of head buckets over the whole context.

    Forward: the bucket at work, and overlapped the one that arrives. Training: a bucket and its gradients; with full
    recomputation all buckets of the layer whose forward was just repeated, so that its backward need not gather again.
    """
    layer = LayerShard(job.model, job.plan.tsp, job.work.precision, job.activation_bytes)
    bucket = 2 * job.group_tokens * layer.kv_width * job.activation_bytes
    if job.training:
        return bucket * (1 + (job.plan.tsp if job.plan.recomputation == "full" else 1))
    return bucket * (1 if job.plan.overlap is False else 2)


def in_flight_weights(job: Job) -> float:
    """Other ranks' shards in this rank's buffers.

    Forward: the attention and MLP buffers beside the rank's own shard. Training: a layer's broadcast weights are kept
    from its recomputation to its backward, with fp32 accumulators of their gradients until those are reduced to
    their owners; two MLP shards are on the ring besides.
    """
    shards = job.plan.tsp
    kinds = [
        LayerShard(job.model, shards, job.work.precision, job.activation_bytes, block)
        for block in dict.fromkeys(job.model.blocks)
    ]
    layer = max(kinds, key=lambda kind: kind.mlp_weights)
    ring = MLP_BUFFERS * layer.mlp_weights * job.weight_bytes
    if job.training:
        whole = shards * (layer.attention_weights + layer.mlp_weights) + layer.down_weights
        return whole * (job.weight_bytes + 4.0) + ring
    buffers = 1 if job.plan.overlap is False else ATTENTION_BUFFERS
    return (buffers * layer.attention_weights + layer.down_weights) * job.weight_bytes + ring


SCHEME = Scheme(
    name="folded tensor and sequence (TSP)",
    shards=lambda job: job.plan.tsp,
    embed=embed,
    layer=forward_layer,
    head=head,
    layer_backward=backward_layer,
    head_backward=head_backward,
    embed_backward=embed_backward,
    layer_weights=None,
    residency=Residency(
        weight_shards=lambda job: job.plan.tsp,
        compute_shards=lambda job: 1,
        gathered_context=gathered_context,
        in_flight_weights=in_flight_weights,
    ),
)
