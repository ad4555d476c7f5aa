"""What of a layer's weights travels under TSP, and how much of it is trained: sizes for :mod:`tspsim.parallel.folded`.

A rank owns 1/D of every matrix. What heads and FFN columns divide travels shard by shard; what all shards need whole
(projections to latents, and the half of an adapter that its weights' cut does not divide) is gathered. Of frozen
weights only the adapters' gradients come back.
"""

from __future__ import annotations

from typing import NamedTuple

from ..model.layer import LayerShard
from .adapters import ELEMENT_BYTES, Halves
from .plan import Job

#: Attention shards a rank holds at once: without the third, a shard could only start on its way when the one
#: before last is done with its output projection, and the projection of the next step would wait for it.
ATTENTION_BUFFERS = 3
MLP_BUFFERS = 2


class Load(NamedTuple):
    """One part of a layer: bytes of a rank's shard and of what is gathered whole; elements of them that are trained."""

    shard_bytes: float
    whole_bytes: float
    trained_in_shard: float
    trained_in_whole: float


def attention(job: Job, layer: LayerShard) -> Load:
    """[Wq, Wk, Wv, Wo] of a head bucket, with the adapters beside them."""
    adapters = job.work.adapters
    beside = adapters.attention(layer) if adapters else None
    return _load(job, layer.attention_weights, layer.down_weights, beside)


def mlp(job: Job, layer: LayerShard) -> Load:
    """[gate, up, down] of a rank's columns, dense or of shared experts; nothing where a layer has neither."""
    adapters = job.work.adapters
    return _load(job, layer.mlp_weights, 0, adapters.mlp(layer) if adapters else None)


def in_flight_weights(job: Job) -> float:
    """Other ranks' shards in this rank's buffers.

    Forward: the attention and MLP buffers beside the rank's own shard. Training: a layer's broadcast weights are kept
    from its recomputation to its backward, with fp32 accumulators of the gradients of what is trained until those are
    reduced to their owners; two MLP shards are on the ring besides.
    """
    shards = job.plan.tsp
    kinds = [
        LayerShard(job.model, shards, job.work.precision, job.activation_bytes, block)
        for block in dict.fromkeys(job.model.blocks)
    ]
    layer = max(kinds, key=lambda kind: kind.mlp_weights)
    bucket, columns = attention(job, layer), mlp(job, layer)
    ring = MLP_BUFFERS * columns.shard_bytes
    if job.training:
        here = shards * (bucket.shard_bytes + columns.shard_bytes) + bucket.whole_bytes + columns.whole_bytes
        trained = shards * (bucket.trained_in_shard + columns.trained_in_shard)
        return here + 4.0 * (trained + bucket.trained_in_whole + columns.trained_in_whole) + ring
    buffers = 1 if job.plan.overlap is False else ATTENTION_BUFFERS
    return buffers * bucket.shard_bytes + bucket.whole_bytes + ring


def _load(job: Job, shard: int, whole: int, beside: Halves | None) -> Load:
    if beside is None:
        return Load(shard * job.weight_bytes, whole * job.weight_bytes, shard, whole)
    return Load(
        shard * job.weight_bytes + beside.split * ELEMENT_BYTES,
        whole * job.weight_bytes + beside.whole * ELEMENT_BYTES,
        beside.split,
        beside.whole,
    )
