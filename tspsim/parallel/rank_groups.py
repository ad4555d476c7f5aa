"""Groups of ranks: which hold the same weights, which of them divide state, and sizes of groups along an axis."""

from __future__ import annotations

from math import prod

from .job import Job
from .plan import WEIGHT_LEVELS, WEIGHT_SHARD


def replica_axis(job: Job) -> str:
    """The axis of ranks that hold the same weights and sum gradients: replicas and sequence shards."""
    return "dp+sp" if job.plan.sp > 1 else "dp"


def expert_ranks(job: Job) -> int:
    """Ranks that one copy of a layer's routed experts is spread over: ``ep``, or without it ``tp`` by columns, or both
    if only ranks of ``tp`` serve.

    An engine loads its weights once, so this holds for all its steps: folded ranks hold all experts of their group
    whatever a step's form, even if each multiplies a part of their columns.
    """
    if job.plan.ep > 1 and (job.scheme.folds or not job.replicates_tokens or job.sums_over_experts):
        return job.plan.ep
    return job.plan.tp


def expert_copies(job: Job) -> int:
    """Ranks of a pipeline stage that hold the same routed experts."""
    return prod(job.plan.degree(axis) for axis in job.plan.expert_axes) // expert_ranks(job)


def expert_state_shards(job: Job) -> int:
    """Ranks of these that divide state: all, or those of one shard group."""
    plan = job.plan
    if plan.shard_group is None:
        return expert_copies(job)
    experts, shards = plan.expert_parts or {}, plan.shard_parts or {}
    inner = [axis for axis in plan.expert_axes if axis not in shards]
    here = prod(plan.degree(axis) // experts[axis] for axis in inner) if plan.ep > 1 else own_copies(job)
    return here * prod(max(1, shards[axis] // experts.get(axis, 1)) for axis in shards)


def own_copies(job: Job) -> int:
    """Ranks on a scheme's own axes that hold the same experts without expert groups: all but tensor-parallel ranks,
    which divide experts by columns."""
    return 1 if job.scheme.usual else prod(job.plan.degree(axis) for axis in job.scheme.axes)


def expert_axis(job: Job) -> str:
    """The axis of ranks that hold the same experts: ``edp``, or without expert groups all with the same weights."""
    if job.plan.ep > 1:
        return "edp"
    return replica_axis(job) if job.scheme.usual else "+".join(("dp", *job.scheme.axes))


def ranks_along(job: Job, axis: str) -> int:
    """Ranks of a group along an axis, or along several joined by ``+``."""
    if axis in job.plan.degrees and axis not in job.plan.groups:
        return job.plan.degree(axis)
    group = job.plan.shard_group or job.plan.secondary_shard
    sizes = {"edp": expert_copies(job), "shard": group or job.copies}
    sizes["replicate"] = job.copies // sizes["shard"]
    sizes["expert shard"] = expert_state_shards(job)
    sizes |= {name: prod(parts.values()) for name, parts in job.plan.groups.items()}
    sizes[WEIGHT_LEVELS] = sizes["shard"] // sizes.get(WEIGHT_SHARD, 1)
    sizes["expert replicate"] = expert_copies(job) // sizes["expert shard"]
    return prod(sizes[part] if part in sizes else job.plan.degree(part) for part in axis.split("+"))
