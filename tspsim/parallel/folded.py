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

from ..model.layer import LayerShard
from ..program import Program
from .memory import Residency
from .partition import local_segments
from .plan import Job
from .script import Script

#: Attention shards a rank holds at once: without the third, a shard could only start on its way when the one
#: before last is done with its output projection, and the projection of the next step would wait for it.
ATTENTION_BUFFERS = 3
MLP_BUFFERS = 2


def forward(job: Job, position: int) -> Program:
    """The forward program of the rank at ``position`` on the folded axis."""
    script = Script(f"tsp{position}", job.plan)
    layer = LayerShard(job.model, job.plan.tsp, job.work.precision, job.activation_bytes)
    if job.model.vocab:
        embed(script, job, layer)
    script.begin_layers()
    script.part = "attention"
    if job.plan.overlap is False:
        last = attention_in_turn(script, job, layer, position)
        script.part = "mlp"
        mlp_in_turn(script, job, layer, last)
    else:
        freed = attention_overlapped(script, job, layer, position)
        script.part = "mlp"
        mlp_overlapped(script, job, layer, freed)
    script.end_layers(job.model.layers)
    if job.model.vocab:
        head(script, job, layer)
    return script.program()


def attention_overlapped(script: Script, job: Job, layer: LayerShard, position: int) -> int:
    """D steps, software-pipelined by one: QKV of step r+1 is multiplied before attention of step r, so that the
    gather of r+1 runs beside it. Returns the last instruction."""
    shards, tokens = job.plan.tsp, job.tokens
    moved: list[int] = []
    projected: list[int] = []
    gathered: list[int] = []
    attended: list[int] = []

    def project(step: int) -> None:
        buffer_free = attended[step - ATTENTION_BUFFERS : step - ATTENTION_BUFFERS + 1] if step >= ATTENTION_BUFFERS else []
        moved.append(broadcast_weights(script, job, layer, step, buffer_free))
        operators = (layer.qkv(tokens), layer.rope(tokens))
        if step == 0:
            script.compute("norm", layer.norm(tokens))
        projected.append(script.compute(f"QKV {step + 1}/{shards}", *operators, after=[moved[step]]))
        gathered.append(gather_context(script, job, layer, step, [projected[step]]))

    project(0)
    for step in range(shards):
        if step + 1 < shards:
            project(step + 1)
        attended.append(attend(script, job, layer, position, step, gathered[step]))
    # The buffers of a layer's first shards are those of the layer before's last ones.
    for step in range(min(ATTENTION_BUFFERS, shards)):
        if shards - ATTENTION_BUFFERS + step >= 0:
            script.after_previous_layer(moved[step], attended[shards - ATTENTION_BUFFERS + step])
    return attended[-1]


def attention_in_turn(script: Script, job: Job, layer: LayerShard, position: int) -> int:
    """Nothing overlaps: every exchange is waited for before the next instruction."""
    last = script.compute("norm", layer.norm(job.tokens))
    for step in range(job.plan.tsp):
        moved = broadcast_weights(script, job, layer, step, [last])
        projected = script.compute(
            f"QKV {step + 1}/{job.plan.tsp}", layer.qkv(job.tokens), layer.rope(job.tokens), after=[moved]
        )
        last = attend(script, job, layer, position, step, gather_context(script, job, layer, step, [projected]))
    return last


def mlp_overlapped(script: Script, job: Job, layer: LayerShard, attended: int) -> None:
    """The shard that is here is multiplied while the next one arrives in the other buffer."""
    shards = job.plan.tsp
    arrived: list[int] = []
    applied: list[int] = []
    for hop in range(shards):
        if hop + 1 < shards:
            # Hop h fills the buffer that step h−1 of the ring has finished with.
            waits = applied[hop - 1 : hop] if hop else []
            arrived.append(ring_weights(script, job, layer, hop, waits))
        applied.append(apply_mlp(script, job, layer, hop, arrived[hop - 1 : hop] if hop else [attended]))
    script.after_previous_layer(arrived[0], applied[-1])


def mlp_in_turn(script: Script, job: Job, layer: LayerShard, last: int) -> None:
    for hop in range(job.plan.tsp):
        if hop:
            last = ring_weights(script, job, layer, hop - 1, [last])
        last = apply_mlp(script, job, layer, hop, [last])


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
    size = 2 * job.work.tokens_per_replica * layer.kv_width * job.activation_bytes
    return script.collective("all_gather", "tsp", size, f"gather K,V {step + 1}/{job.plan.tsp}", after=after, stream="context")


def attend(script: Script, job: Job, layer: LayerShard, position: int, step: int, after: int) -> int:
    """Local queries over the whole context with one head bucket, and its part of the output projection."""
    work = job.work
    segments = local_segments(
        job.plan.partition, work.sequence, job.plan.tsp, position, work.sequences, work.causal
    )
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
    norm = () if hop else (layer.norm(job.tokens),)
    return script.compute(f"MLP {hop + 1}/{job.plan.tsp}", *norm, *operators, after=after)


def embed(script: Script, job: Job, layer: LayerShard) -> None:
    """Rows live with their owner: token numbers go there (four bytes each), rows come back, all-to-all."""
    script.part = "embedding"
    asked = script.collective("all_gather", "tsp", 4 * job.work.tokens_per_replica, "token numbers", stream="context")
    found = script.compute("embedding lookup", layer.embedding(job.tokens), after=[asked])
    size = job.tokens * job.model.hidden * job.activation_bytes
    rows = script.collective("all_to_all", "tsp", size, "embedding rows", after=[found], stream="context")
    script.compute("place rows", layer.embedding(job.tokens), after=[rows])


def head(script: Script, job: Job, layer: LayerShard) -> None:
    """The head's vocabulary shards travel the ring as the MLP's do."""
    script.part = "head"
    shards = job.plan.tsp
    size = job.model.hidden * -(-job.model.vocab // shards) * job.weight_bytes
    last = script.compute("final norm", layer.norm(job.tokens))
    arrived = last
    for hop in range(shards):
        here = arrived
        if hop + 1 < shards:
            waits = [here, last] if job.plan.overlap is not False else [last]
            arrived = script.ring_hop("tsp", size, f"head weights hop {hop + 1}", after=waits, stream="weights")
        last = script.compute(f"language-model head {hop + 1}/{shards}", layer.head(job.tokens), after=[here])


def gathered_context(job: Job) -> float:
    """K and V of one head bucket over the whole context; while training their gradients as well."""
    layer = LayerShard(job.model, job.plan.tsp, job.work.precision, job.activation_bytes)
    bucket = 2 * job.work.tokens_per_replica * layer.kv_width * job.activation_bytes
    if job.work.pass_ == "training":
        return 2 * bucket
    return bucket * (1 if job.plan.overlap is False else 2)


def in_flight_weights(job: Job) -> float:
    """Other ranks' shards in this rank's buffers.

    Forward: the attention and MLP buffers beside the rank's own shard. Training: a layer's broadcast weights are kept
    from its recomputation to its backward, with fp32 accumulators of their gradients until those are reduced to
    their owners; two MLP shards are on the ring besides.
    """
    shards = job.plan.tsp
    layer = LayerShard(job.model, shards, job.work.precision, job.activation_bytes)
    ring = MLP_BUFFERS * layer.mlp_weights * job.weight_bytes
    if job.work.pass_ == "training":
        whole = shards * (layer.attention_weights + layer.mlp_weights)
        return whole * (job.weight_bytes + 4.0) + ring
    buffers = 1 if job.plan.overlap is False else ATTENTION_BUFFERS
    return buffers * layer.attention_weights * job.weight_bytes + ring


RESIDENCY = Residency(
    weight_shards=lambda job: job.plan.tsp,
    compute_shards=lambda job: 1,
    gathered_context=gathered_context,
    in_flight_weights=in_flight_weights,
)
