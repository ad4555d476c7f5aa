"""What goes with pieces of exchanges with experts (Tutel's degree) and with sliced or gathered experts (its r)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import Experts
from .balance import BUSIEST
from .pipeline import Refusal

if TYPE_CHECKING:
    from .plan import Job


def check(job: Job) -> Refusal:
    """The key that does not go with the others, and why."""
    plan, experts = job.plan, job.model.experts
    own = {"expert_pieces": plan.expert_pieces > 1, "expert_shards": plan.expert_shards is not None}
    key = next((key for key, stated in own.items() if stated), None)
    if key is None:
        return None
    value = getattr(plan, key)
    if experts is None:
        return key, f"{value} is of experts, but {job.model.name} has none; leave it out"
    if plan.ep == 1 or job.step.serves:
        return key, f"{value} is of experts over ep > 1 ranks, in a forward or in training; leave it out"
    if own["expert_pieces"] and (plan.expert_shards == 0 or plan.hiding.micro_batches):
        beside = "expert_shards: 0" if plan.expert_shards == 0 else "expert_overlap: micro_batches"
        return "expert_pieces", f"{plan.expert_pieces} are pieces of tokens that travel and wait; leave out {beside}"
    return check_shards(job, experts) if own["expert_shards"] else None


def check_shards(job: Job, experts: Experts) -> Refusal:
    """Whether ``ep`` ranks can share the experts so."""
    plan, count, ranks, shards = job.plan, experts.count, job.plan.ep, job.plan.expert_shards
    if count % ranks and (ranks % count or experts.width % (ranks // count)):
        slices = f"nor makes slices of their {experts.width} columns"
        return "ep", f"{ranks} does not divide the {count} experts of {job.model.name}, {slices}"
    if plan.expert_balance.policy != BUSIEST.policy:
        return "expert_shards", "gathers or cuts experts where they are; leave expert_balance out beside it"
    if job.work.adapters is not None:
        return "expert_shards", f"{shards} is not built beside adapters; leave it out"
    if shards and plan.expert_owners % shards:
        divisors = [str(each) for each in range(1, plan.expert_owners + 1) if plan.expert_owners % each == 0]
        allowed = ", ".join(["0", *divisors])
        return "expert_shards", f"{shards} does not divide the {plan.expert_owners} ranks of an expert; use {allowed}"
    return None


def check_dispatch(job: Job, experts: Experts) -> Refusal:
    """What a way to experts needs of the routing, and of the ranks that tokens may be on."""
    plan, routing = job.plan, job.work.routing
    if routing.transitions and len(routing.transitions) != experts.count:
        found = f"{len(routing.transitions)} rows of routing.transitions, but {experts.count} experts"
        return "expert_dispatch", f"{found} of {job.model.name}"
    if plan.ep == 1 or not job.step.serves or job.replicates_tokens:
        return None
    wrong = plan.dispatch.check(routing, experts, plan.ep)
    if wrong is not None:
        return "expert_dispatch", f"{plan.expert_dispatch} {wrong}"
    if plan.dispatch.everywhere and (plan.ep > plan.dp or not job.scheme.usual or plan.tp * plan.sp > 1):
        return "expert_dispatch", f"{plan.expert_dispatch} is of attention replicas: ep over dp, tp and sp at 1"
    return None
