"""Constraints of unequal sequences on a plan, and candidates of their own keys."""

from __future__ import annotations

from collections.abc import Iterator

from .feature import FEATURES, Feature
from .job import Job
from .lengths import BATCH_ASSIGNMENTS, OF_LENGTHS, OFFLOAD_FROM, WORK, assignment_notes, sequence_groups
from .pipeline import Refusal
from .scheme import SCHEMES


def check(job: Job) -> Refusal:
    """Refuse keys for unequal sequences without them, and what is not built beside them."""
    plan, own = job.plan, OF_LENGTHS
    if not job.unequal:
        stated = next((name for name in own if name in plan.options), None)
        if stated is not None:
            key = "sp" if stated == "dynamic_sp" else stated
            return key, "is of sequences of unequal length; state workload.lengths, or leave it out"
        return None
    if not job.scheme.unequal:
        can = " or ".join(axis for other in SCHEMES.values() if other.unequal for axis in other.axes)
        return job.scheme.axes[0], f"takes sequences of one length alone; use {can}"
    if plan.ep > 1:
        return "ep", f"{plan.ep} is not built beside workload.lengths; leave it out"
    if plan.pp > 1 and (plan.vpp > 1 or plan.order.splits_backward or plan.order.both_ways):
        key, value = ("vpp", plan.vpp) if plan.vpp > 1 else ("schedule", plan.schedule)
        return key, f"{value} beside workload.lengths is not built; use schedule: 1f1b"
    if OFFLOAD_FROM in plan.options and not plan.offload_layers:
        return OFFLOAD_FROM, "says which sequences' activations offload_layers sends; state that too"
    if plan.micro_batch is not None:
        return "micro_batch", "says how many sequences; of unequal ones state rank_tokens"
    if plan.overlap and plan.tp > 1:
        return "overlap", "of tp's sums is not built beside workload.lengths; leave it out"
    if plan.options.get("dynamic_sp") and plan.dp & (plan.dp - 1):
        return "sp", f"auto shares a sequence by 2, 4, 8, ... of dp = {plan.dp}, no power of two"
    if plan.zero >= 2 and len({len(packs) for packs in job.assignment.packs}) > 1:
        problem = f"{plan.zero} exchanges weights or gradients every micro-batch"
        return "zero", f"{problem}, of which replicas have unequal numbers; use 0 or 1"
    return None


def notes(job: Job) -> Iterator[str]:
    """Notes on the assignment of sequences."""
    if job.unequal:
        yield from assignment_notes(job.assignment, job.work.unequal, job.plan.token_shards)


FEATURES.register(
    Feature(
        "unequal sequences",
        "sequences of a step that differ in length",
        keys=("work.unequal", *OF_LENGTHS),
        first=True,
        check=check,
        notes=notes,
        groups=lambda plan: sequence_groups(plan.options, plan.dp),
    )
)


# --- candidates of a search -------------------------------------------------------------------------------------


def ways_to_deal(job: Job) -> Iterator[str]:
    """Assignments that balance something else, for several replicas; by like lengths if stages wait for each other."""
    if job.unequal and job.plan.dp > 1:
        yield from (
            deal.name for deal in BATCH_ASSIGNMENTS.values() if deal != WORK and (not deal.like or job.plan.pp > 1)
        )
