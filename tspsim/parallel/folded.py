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
from . import expert, folded_tables, travel
from .memory import Residency
from .partition import local_segments
from .plan import Job
from .recompute import cheap_again, heads_again
from .script import Script
from .step import Scheme
from .travel import ATTENTION_BUFFERS


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
            script.compute("norm", layer.norm(tokens), *layer.down_projections(tokens), after=whole)
        projected.append(script.compute(f"QKV {step + 1}/{shards}", *operators, after=[moved[step]]))
        gathered.append(gather_context(script, job, layer, step, [projected[step]]))

    whole = gather_attention_whole(script, job, layer, [])
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
    whole = gather_attention_whole(script, job, layer, [])
    last = script.compute("norm", layer.norm(job.tokens), *layer.down_projections(job.tokens), after=whole)
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
    whole = gather_mlp_whole(script, job, layer, [])
    arrived: list[int] = []
    applied: list[int] = []
    for hop in range(shards):
        if hop + 1 < shards:
            # Hop h fills the buffer that step h−1 of the ring has finished with.
            waits = applied[hop - 1 : hop] if hop else []
            arrived.append(ring_weights(script, job, layer, hop, waits))
        applied.append(apply_mlp(script, job, layer, hop, arrived[hop - 1 : hop] if hop else [last, *whole]))
    if not script.recomputing:
        script.after_previous_layer(arrived[0], applied[-1], "MLP buffer")
    return applied[-1]


def mlp_in_turn(script: Script, job: Job, layer: LayerShard, last: int) -> int:
    waits = [last, *gather_mlp_whole(script, job, layer, [last])]
    for hop in range(job.plan.tsp):
        if hop:
            waits = [ring_weights(script, job, layer, hop - 1, waits)]
        waits = [apply_mlp(script, job, layer, hop, waits)]
    return waits[-1]


def mlp_backward(script: Script, job: Job, layer: LayerShard) -> int:
    """Hop by hop: the shard's columns again, their gradients, and the shard's gradient one step behind its weights.

    Returns the last kernel.
    """
    shards, tokens = job.plan.tsp, job.tokens
    load = travel.mlp(job, layer)
    sizes = load.shard_bytes, load.trained_in_shard * job.work.optimizer.gradients
    overlap = job.plan.overlap is not False
    whole = [] if job.plan.recomputation == "full" else gather_mlp_whole(script, job, layer, [])
    arrived: list[int] = []
    applied: list[int] = []
    for hop in range(shards):
        waits = arrived[hop - 1 : hop] if hop else whole
        if overlap and hop + 1 < shards:
            arrived.append(
                script.ring_hop(
                    "tsp",
                    sizes[0],
                    f"MLP weights hop {hop + 1} backward",
                    after=[*arrived[hop - 1 : hop], *applied[hop - 1 : hop]],
                    stream="weights",
                )
            )
        operators = (
            *gradients(layer.down(tokens)),
            *cheap_again(job, layer.activation(tokens)),
            layer.activation_backward(tokens),
            *gradients(layer.gate_up(tokens)),
        )
        if sizes[1]:
            operators = (*operators, MemoryBound("add", 3.0 * sizes[1], name="add to travelling gradient"))
        applied.append(script.compute(f"MLP {hop + 1}/{shards} backward", *operators, after=waits))
        here = applied[-1]
        if sizes[1]:
            name = f"MLP gradients hop {hop + 1}"
            here = script.ring_hop("tsp", sizes[1], name, after=[here], stream="weight gradients")
        if not overlap:
            if sizes[1]:
                here = script.compute("gradients here", after=[here])
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
    kept = job.plan.recomputation == "full"
    # Adapters are needed from the first bucket on, the projections to latents behind the last one.
    early = [] if kept or work.adapters is None else gather_attention_whole(script, job, layer, [])
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
        if not kept:
            needed = [
                *(() if step else early),
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
        needed = early or ([] if kept else gather_attention_whole(script, job, layer, last))
        d_down = [gradient for product in layer.down_projections(tokens) for gradient in gradients(product)]
        last = [script.compute("latents backward", *d_down, after=needed)]
    load = travel.attention(job, layer)
    trained = shards * load.trained_in_shard + load.trained_in_whole
    if work.adapters is not None:
        trained += travel.mlp(job, layer).trained_in_whole
    if trained:
        size = trained * work.optimizer.gradients
        name = "attention gradients to owners"
        summed = script.collective("reduce_scatter", "tsp", size, name, after=last, stream="weight gradients")
        script.exchanged_gradients = [summed]
    normed = *cheap_again(job, layer.norm(tokens)), layer.norm_backward(tokens)
    return script.compute("norm backward", *normed, after=[] if overlap else script.exchanged_gradients)


def gather_attention_whole(script: Script, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    """What no head divides and every rank needs whole for its tokens: latent attention's projections to latents, and
    halves of adapters."""
    size = travel.attention(job, layer).whole_bytes
    name = "projections to latents" if layer.down_weights else "adapters of attention"
    return [script.collective("all_gather", "tsp", size, name, after=after, stream="weights")] if size else []


def gather_mlp_whole(script: Script, job: Job, layer: LayerShard, after: list[int]) -> list[int]:
    """Halves of adapters that the MLP's columns do not divide."""
    size = travel.mlp(job, layer).whole_bytes
    name = "adapters of the MLP"
    return [script.collective("all_gather", "tsp", size, name, after=after, stream="weights")] if size else []


def broadcast_weights(script: Script, job: Job, layer: LayerShard, step: int, after: list[int]) -> int:
    return script.collective(
        "broadcast",
        "tsp",
        travel.attention(job, layer).shard_bytes,
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
    size = travel.mlp(job, layer).shard_bytes
    return script.ring_hop("tsp", size, f"MLP weights hop {hop + 1}", after=after, stream="weights")


def apply_mlp(script: Script, job: Job, layer: LayerShard, hop: int, after: list[int]) -> int:
    operators = (layer.gate_up(job.tokens), layer.activation(job.tokens), layer.down(job.tokens))
    # Experts have had their norm before the router.
    norm = () if hop or layer.kind.experts else (layer.norm(job.tokens),)
    return script.compute(f"MLP {hop + 1}/{job.plan.tsp}", *norm, *operators, after=after)


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


SCHEME = Scheme(
    name="folded tensor and sequence (TSP)",
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
        compute_shards=lambda job: 1,
        gathered_context=gathered_context,
        in_flight_weights=travel.in_flight_weights,
    ),
)
