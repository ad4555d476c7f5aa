"""Weights of a layer that tensor parallelism does not divide, for every step and pass.

A rank has projections to latents, indexers and routers whole, and one head of K and V where ranks are more than heads.
Norms are counted as divided: they are a few hundredths of a per mille. A folded scheme divides every matrix and gathers
it where it is needed, so its ranks keep none of them whole.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...model import Block
from ...model.parts import WeightClass
from ..job import Job


def whole_on_every_rank(job: Job, block: Block) -> Mapping[WeightClass, int]:
    """Elements of a layer that each tensor-parallel rank has whole, by class; routed experts have none."""
    if job.scheme.folds:
        return {}
    whole = {WeightClass.ATTENTION: job.layer(1, block).down_weights}
    return {**whole, WeightClass.SHARED: job.model.router_parameters} if block.experts else whole


def beyond_even_share(job: Job, weight_shards: int, block: Block) -> Mapping[WeightClass, float]:
    """Elements of a layer on a rank beyond ``1/weight_shards`` of them, by class."""
    if weight_shards == 1:
        return {}
    more = {part: count - count / weight_shards for part, count in whole_on_every_rank(job, block).items()}
    more[WeightClass.ATTENTION] = more.get(WeightClass.ATTENTION, 0.0) + repeated_heads(job, weight_shards, block)
    return more


def repeated_heads(job: Job, weight_shards: int, block: Block) -> float:
    """Elements of a rank's projections to K and V beyond an even share, which more ranks than heads repeat."""
    share = job.scheme.context(job.plan)
    if job.scheme.folds or share.projected != share.own:
        return 0.0
    layer = job.layer(weight_shards, block)
    divided = job.model.attention_of(block).matrix_parameters(job.model, block) - layer.down_weights
    return max(0.0, layer.attention_weights - divided / weight_shards)
