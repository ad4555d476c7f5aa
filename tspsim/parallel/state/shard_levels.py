"""Sharding on three levels of links (Frontier's low-bandwidth partitioning, arXiv 2501.04266; abstract read): weights
among ``weight_shard`` neighbours, gradients among ``shard_group`` of them, the optimizer's state among all.

With ``zero: 3``, M bytes of weights, and w ≤ g ≤ N ranks on the levels (dies of a package, a node, all), a rank
receives per layer

    every forward, every backward    weights gathered among w                       M·(1 − 1/w)
    every backward                   gradients scattered among g                    M·(1 − 1/g)
    a step's last backward           the parts scattered across the groups          (M/g)·(1 − g/N)
    a step's first forward           updated weights gathered across the groups,    (M/g)·(1 − g/N)
                                     and inside them up to a part of w              M/w − M/g

so the traffic across groups is that of ZeRO 1, once per step whatever the number of micro-batches; ZeRO 3 moves all
weights three times in each. A rank keeps M/w of weights, 1/g of gradients and 1/N of the state: more than ZeRO 3, less
state than hybrid sharding, which divides all three among g. Without a faster link inside a package, w is g.
"""

from __future__ import annotations

from ...base.units import PositiveCount
from ..builder import ProgramBuilder
from ..feature import FEATURES, Feature
from ..job import Job
from ..parameter_group import ParameterGroup
from ..pipeline import Refusal
from ..plan import WEIGHT_LEVELS, WEIGHT_SHARD, Plan
from ..registries import Option
from ..search_rule import SearchRule, trains

OPTION = Option(
    WEIGHT_SHARD,
    PositiveCount,
    None,
    "with zero: 3 and shard_group, which then divides gradients alone: number of neighbours that divide weights; all "
    "ranks divide the optimizer's state (three levels)",
    SearchRule(why_not="pays with many micro-batches over thin links alone", of=trains),
)


def level(plan: Plan) -> int:
    """Ranks that divide weights; 0: no level of their own."""
    return int(plan.options.get(WEIGHT_SHARD, 0))


def weight_axis(held: ParameterGroup) -> str:
    """The axis of the ranks that divide weights."""
    return WEIGHT_SHARD if held.weights < held.shards else held.shard_axis


def refresh(builder: ProgramBuilder, held: ParameterGroup, size_bytes: float, name: str, after: list[int]) -> list[int]:
    """Gather ``size_bytes`` of weights that others updated, up to the part that a rank keeps; returns the dependencies
    of their gather."""
    last = after
    for axis, ranks, kept in (
        (held.sum_axis, held.copies // held.shards, held.shards),
        (WEIGHT_LEVELS, held.shards // held.weights, held.weights),
    ):
        if ranks > 1:
            last = [builder.collective("all_gather", axis, size_bytes / kept, name, after=last, stream="parameters")]
    return last


def check(job: Job) -> Refusal:
    """Why the plan does not fit."""
    plan, ranks = job.plan, level(job.plan)
    if plan.zero != 3 or not job.training or plan.shard_group is None:
        return WEIGHT_SHARD, f"{ranks} divide weights of training with zero: 3 and shard_group; state both"
    if plan.shard_group % ranks:
        return WEIGHT_SHARD, f"{ranks} does not divide shard_group = {plan.shard_group}, whose ranks divide gradients"
    if job.model.experts is not None or job.work.adapters is not None:
        return WEIGHT_SHARD, f"{ranks} is not built for models with experts, nor for adapters; leave it out"
    if plan.sp > 1:
        return WEIGHT_SHARD, f"{ranks} is not built beside sp; leave one out"
    return None


FEATURES.register(
    Feature(
        WEIGHT_SHARD,
        "weights divided on a level of links of their own",
        options=(OPTION,),
        scheme="tensor",
        check=check,
        groups=lambda plan: {WEIGHT_SHARD: {"dp": level(plan)}},
    )
)
