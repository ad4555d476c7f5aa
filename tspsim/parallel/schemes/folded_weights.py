"""Weights of a layer that move under TSP, and how many of them are trained.

A rank owns 1/D of every matrix. What heads and FFN columns divide moves shard by shard; what all ranks need whole
(down projections to latents, and the half of an adapter that its weights' cut does not divide) is gathered. Of frozen
weights only the adapters' gradients return.
"""

from __future__ import annotations

from typing import NamedTuple

from ...model.layer import LayerShard
from ...model.parts import WeightClass
from ..adapters import ELEMENT_BYTES, Halves
from ..job import Job

#: Groups of heads whose weights a rank holds at once. Without the third, a group's weights could only depart after the
#: output projection of the group before last, and the next step's projection would wait for them.
ATTENTION_BUFFERS = 3


class WeightLoad(NamedTuple):
    """A part of a layer: bytes of a rank's shard and of what is gathered whole, and their trained elements."""

    shard_bytes: float
    whole_bytes: float
    trained_in_shard: float
    trained_in_whole: float


def attention(job: Job, layer: LayerShard) -> WeightLoad:
    """[Wq, Wk, Wv, Wo] of a group of heads, with their adapters."""
    adapters = job.work.adapters
    beside = adapters.attention(layer) if adapters else None
    return _load(job, layer.attention_weights, layer.down_weights, beside, WeightClass.ATTENTION)


def mlp(job: Job, layer: LayerShard) -> WeightLoad:
    """[gate, up, down] of a rank's columns, dense or of shared experts; empty if a layer has neither."""
    adapters = job.work.adapters
    part = WeightClass.SHARED if layer.composition.experts else WeightClass.DENSE
    return _load(job, layer.mlp_weights, 0, adapters.mlp(layer) if adapters else None, part)


def _load(job: Job, shard: int, whole: int, beside: Halves | None, part: WeightClass) -> WeightLoad:
    if beside is None:
        element = job.work.formats.weight_bytes(part) if job.step.serves else job.weight_bytes
        return WeightLoad(shard * element, whole * element, shard, whole)
    return WeightLoad(
        shard * job.weight_bytes + beside.split * ELEMENT_BYTES,
        whole * job.weight_bytes + beside.whole * ELEMENT_BYTES,
        beside.split,
        beside.whole,
    )
