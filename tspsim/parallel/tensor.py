"""Tensor parallelism (Megatron), alone or beside sequence shards: a tp × sp mesh.

QKV and gate/up are split by columns, output and down projection by rows; after each of the two an all-reduce of
B·S/Σ·h over ``tp``, or with sequence regions a reduce-scatter and an all-gather of the same bytes around the norm
(Shoeybi et al. 2019, §3; Korthikanti et al. 2022, §4.2). Overlapped, tokens are cut into ``overlap_chunks`` and a
chunk is reduced while the next is multiplied (Flux, Comet, asynchronous TP).
"""

from __future__ import annotations

from ..model.layer import LayerShard
from ..program import Program
from . import sequence
from .memory import Residency
from .plan import Job
from .script import Script


def forward(job: Job, position: int) -> Program:
    """The forward program of the ranks at ``position`` on the sequence axis."""
    plan = job.plan
    layer = LayerShard(job.model, plan.tp, job.work.precision, job.activation_bytes)
    script = Script(f"sp{position}" if plan.sp > 1 else "all", plan)
    chunks = plan.overlap_chunks if plan.overlap and plan.tp > 1 else 1
    tokens = job.tokens // chunks
    exchange = sequence.EXCHANGES[plan.exchange] if plan.sp > 1 else sequence.attend_local

    if job.model.vocab:
        script.part = "embedding"
        looked_up = script.compute("embedding lookup", layer.embedding(job.tokens))
        reduce_rows(script, job, job.tokens, [looked_up], "sum embedding")
    script.begin_layers()
    script.part = "attention"
    entering = [norm_and_multiply(script, job, layer, tokens, None, "QKV") for _ in range(chunks)]
    projected = entering[-1][1]
    attended = exchange(script, job, layer, position, projected)
    reduced = [
        reduce_rows(script, job, tokens, [script.compute("output projection", layer.output(tokens), after=[attended])], "sum attention")
        for _ in range(chunks)
    ]
    script.part = "mlp"
    leaving = []
    for piece in reduced:
        _, multiplied = norm_and_multiply(script, job, layer, tokens, piece, "MLP")
        leaving.append(reduce_rows(script, job, tokens, [multiplied], "sum MLP"))
    for (consumer, _), producer in zip(entering, leaving, strict=True):
        script.after_previous_layer(consumer, producer)
    script.end_layers(job.model.layers)
    if job.model.vocab:
        script.part = "head"
        normed = script.compute("final norm", layer.norm(job.tokens // (plan.tp if plan.sequence_regions else 1)))
        ready = gather_rows(script, job, job.tokens, [normed], "gather for head")
        script.compute("language-model head", layer.head(job.tokens), after=[ready])
    return script.program()


def norm_and_multiply(
    script: Script, job: Job, layer: LayerShard, tokens: int, after: int | None, name: str
) -> tuple[int, int]:
    """Add and norm, then the column-parallel products (QKV, or the whole MLP up to its row-parallel one).

    Returns the first and the last instruction.
    """
    waits = [] if after is None else [after]
    products = (
        (layer.qkv(tokens), layer.rope(tokens))
        if name == "QKV"
        else (layer.gate_up(tokens), layer.activation(tokens), layer.down(tokens))
    )
    if not job.plan.sequence_regions or job.plan.tp == 1:
        both = script.compute(f"norm, {name}", layer.norm(tokens), *products, after=waits)
        return both, both
    normed = script.compute("norm", layer.norm(tokens // job.plan.tp), after=waits)
    gathered = gather_rows(script, job, tokens, [normed], f"gather for {name}")
    return normed, script.compute(name, *products, after=[gathered])


def reduce_rows(script: Script, job: Job, tokens: int, after: list[int], name: str) -> int:
    """Sum partial rows over ``tp``: everywhere, or with sequence regions each rank its own 1/T of the tokens."""
    if job.plan.tp == 1:
        return after[-1]
    size = tokens * job.model.hidden * job.activation_bytes
    kind = "reduce_scatter" if job.plan.sequence_regions else "all_reduce"
    return script.collective(kind, "tp", size, name, after=after)


def gather_rows(script: Script, job: Job, tokens: int, after: list[int], name: str) -> int:
    """With sequence regions: every rank's 1/T of the tokens to all."""
    if job.plan.tp == 1 or not job.plan.sequence_regions:
        return after[-1]
    size = tokens * job.model.hidden * job.activation_bytes
    return script.collective("all_gather", "tp", size, name, after=after)


RESIDENCY = Residency(
    weight_shards=lambda job: job.plan.tp,
    compute_shards=lambda job: job.plan.tp,
    gathered_context=sequence.gathered_context,
    in_flight_weights=lambda job: 0.0,
)
