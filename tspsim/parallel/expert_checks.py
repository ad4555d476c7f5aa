"""Constraints of experts on a plan: ranks, dispatch, balance, pieces (Tutel's degree), slices (Tutel's r)."""

from __future__ import annotations

from ..model import Experts
from ..operators import element_bytes
from ..steps import STEPS
from .balance import BALANCES, BUSIEST
from .job import Job
from .pipeline import Refusal
from .plan import EXPERT_POOL


def check(job: Job) -> Refusal:
    """Check where experts are, and how tokens reach them."""
    model, plan, experts = job.model, job.plan, job.model.experts
    wrong = _pieces(job)
    if wrong is not None:
        return wrong
    if experts is None:
        if plan.ep > 1:
            return "ep", f"{plan.ep} spreads experts, but {model.name} has none; leave ep out"
        if plan.hiding.halves:
            problem = f"{plan.expert_overlap} hides exchanges with experts, but {model.name} has none; leave it out"
            return "expert_overlap", problem
        return None
    columns = job.scheme.shards(job)
    if experts.shared_width % columns:
        columns_of = f"the {experts.shared_width} columns of the shared experts of {model.name}"
        return job.scheme.axes[0], f"{columns} does not divide {columns_of}"
    wrong = _balance(job) or _dispatch(job, experts)
    if wrong is not None:
        return wrong
    if job.step.serves:
        return _serving_experts(job)
    if not plan.dispatch.trains or plan.hiding.halves:
        key, value = ("expert_dispatch", plan.expert_dispatch)
        if plan.hiding.halves:
            key, value = "expert_overlap", plan.expert_overlap
        return key, f"{value} is of {', '.join(step.name for step in STEPS.values() if step.serves)}"
    if plan.dispatch.eight_bits and element_bytes(job.work.precision) > element_bytes("mxfp8"):
        problem = f"{plan.expert_dispatch} sends what products in eight bits read"
        return "expert_dispatch", f"{problem}, and these are in {job.work.precision}"
    if plan.hiding.micro_batches and (plan.ep == 1 or plan.order.of_micro_batches is None):
        return "expert_overlap", "micro_batches hides exchanges of ep > 1 in 1f1b; use none"
    if plan.ep == 1:
        if experts.width % plan.tp:
            remedy = f"{plan.tp} does not divide the {experts.width} columns of an expert of {model.name}; set ep"
            return "tp", remedy
        return None
    if experts.count % plan.ep and plan.expert_shards is None:
        return "ep", f"{plan.ep} does not divide the {experts.count} experts of {model.name}"
    if plan.expert_parts is None:
        axes = [name for name in plan.expert_axes if plan.degree(name) > 1]
        ranks = " x ".join(f"{name} {plan.degree(name)}" for name in axes) or "1"
        return "ep", f"{plan.ep} ranks cannot be taken from {ranks}, the inner axes whole and the last in equal parts"
    if plan.tp > 1 and not plan.sequence_regions:
        return "ep", "beside tp needs sequence_regions: true, so that every rank sends its own tokens to experts"
    return None


def _balance(job: Job) -> Refusal:
    """A policy moves or copies whole experts between the ranks of a group."""
    model, plan, experts = job.model, job.plan, job.model.experts
    policy, balance = BALANCES.get(plan.expert_balance.policy), plan.expert_balance
    assert experts is not None
    if (job.training and not policy.trains) or (job.step.serves and not policy.serves):
        return "expert_balance", f"{policy.name} is not built for a {job.step.title}; use busiest"
    if plan.ep > 1 and (experts.count % plan.ep == 0 or (policy.slots is not None and plan.expert_shards is None)):
        wrong = policy.check(experts.count, plan.ep, balance.options)
        if wrong is not None:
            return "expert_balance", f"{wrong}, of {model.name} with ep {plan.ep}"
    return None


def _serving_experts(job: Job) -> Refusal:
    """Experts of a serving step: on the ranks of ``tp``, or over replicas that step together."""
    model, plan, experts = job.model, job.plan, job.model.experts
    assert experts is not None
    whole = job.tensor_ranks
    columns = max(1, whole // plan.ep) if job.replicates_tokens else whole if plan.ep == 1 else 1
    if experts.width % columns:
        return "tp", f"{columns} does not divide the {experts.width} columns of an expert; set ep"
    if experts.count % plan.ep and BALANCES.get(plan.expert_balance.policy).slots is None:
        copies = ", ".join(policy.name for policy in BALANCES.values() if policy.slots is not None)
        problem = f"{plan.ep} does not divide the {experts.count} experts of {model.name}"
        return "ep", f"{problem}; use a divisor of that, or copies of experts (expert_balance: {copies})"
    if plan.ep > 1 and not job.scheme.usual and job.plan.token_shards % plan.ep:
        key, ranks = plan.token_axis, plan.token_shards
        return "ep", f"{plan.ep} ranks are not a part of {key} = {ranks}; use a divisor of that"
    if plan.expert_parts is None or (job.scheme.usual and plan.ep > plan.tp and plan.ep % plan.tp):
        shards = f" x sp {plan.sp}" if plan.sp > 1 else ""
        return "ep", f"{plan.ep} ranks cannot be taken from tp {plan.tp}{shards} x dp {plan.dp}, tp whole"
    if plan.hiding.micro_batches:
        return "expert_overlap", "micro_batches hides exchanges behind a backward; use two_batches"
    if plan.hiding.halves and (job.replicates_tokens or plan.ep == 1) and EXPERT_POOL not in plan.options:
        return "expert_overlap", "two_batches hides exchanges with experts of other replicas; set ep"
    if plan.hiding.halves and any(batch.sequences < 2 for batch in job.forwards):
        return "expert_overlap", "two_batches needs two sequences in every pass"
    return None


def _pieces(job: Job) -> Refusal:
    """Why pieces or slices of experts do not fit; None if they do."""
    plan, experts = job.plan, job.model.experts
    own = {"expert_pieces": plan.expert_pieces > 1, "expert_shards": plan.expert_shards is not None}
    key = next((key for key, stated in own.items() if stated), None)
    if key is None:
        return None
    value = getattr(plan, key)
    if experts is None:
        return key, f"{value} is of experts, but {job.model.name} has none; leave it out"
    if plan.ep == 1 or (job.step.serves and (own["expert_shards"] or job.replicates_tokens)):
        steps = "" if own["expert_pieces"] else ", in a forward or in training"
        return key, f"{value} is of experts over ep > 1 ranks that tokens travel to{steps}; leave it out"
    if own["expert_pieces"] and (plan.expert_shards == 0 or plan.hiding.micro_batches or plan.hiding.halves):
        beside = "expert_shards: 0" if plan.expert_shards == 0 else f"expert_overlap: {plan.expert_overlap}"
        return "expert_pieces", f"{plan.expert_pieces} are pieces of tokens that travel and wait; leave out {beside}"
    return _shards(job, experts) if own["expert_shards"] else None


def _shards(job: Job, experts: Experts) -> Refusal:
    """Why ``ep`` ranks cannot share the experts in slices; None if they can."""
    plan, count, ranks, shards = job.plan, experts.count, job.plan.ep, job.plan.expert_shards
    if count % ranks and (ranks % count or experts.width % (ranks // count)):
        slices = f"nor makes slices of their {experts.width} columns"
        return "ep", f"{ranks} does not divide the {count} experts of {job.model.name}, {slices}"
    if plan.expert_balance.policy != BUSIEST.policy:
        return "expert_shards", "gathers or cuts experts where they are; leave expert_balance out beside it"
    if job.work.adapters is not None:
        return "expert_shards", f"{shards} is not built beside adapters; leave it out"
    if shards and plan.expert_owners % shards:
        divisors = [str(count) for count in range(1, plan.expert_owners + 1) if plan.expert_owners % count == 0]
        allowed = ", ".join(["0", *divisors])
        return "expert_shards", f"{shards} does not divide the {plan.expert_owners} ranks of an expert; use {allowed}"
    return None


def _dispatch(job: Job, experts: Experts) -> Refusal:
    """What a dispatch needs of the routing, and of the ranks that tokens may be on."""
    plan, routing = job.plan, job.work.routing
    if routing.transitions and len(routing.transitions) != experts.count:
        problem = f"{len(routing.transitions)} rows of routing.transitions, but {experts.count} experts"
        return "expert_dispatch", f"{problem} of {job.model.name}"
    if plan.ep == 1 or not job.step.serves or job.replicates_tokens:
        return None
    wrong = plan.dispatch.check(routing, experts, plan.ep)
    if wrong is not None:
        return "expert_dispatch", f"{plan.expert_dispatch} {wrong}"
    if plan.dispatch.everywhere and (plan.ep > plan.dp or not job.scheme.usual or plan.tp * plan.sp > 1):
        return "expert_dispatch", f"{plan.expert_dispatch} is of attention replicas: ep over dp, tp and sp at 1"
    return None
