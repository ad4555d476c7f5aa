"""What a search over plans tries of keys whose objects a plan itself holds: who balances experts, how their tokens
travel, the order of a pipeline, and what is made again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..model import Architecture
from .balance import BALANCES, Balance, ExpertBalance
from .dispatch import DISPATCHES, OVERLAPS, ExpertDispatch
from .job import Job
from .pipeline import NO_EXPERTS, ORDERS
from .recomputed import ATTENTION, CHEAP, FULL, KEPT
from .sought import SOUGHT, Sought, of_lengths, serves, sought_objects, spreads_experts, trains, with_experts
from .work import Work

# --- balance of experts -----------------------------------------------------------------------------------------


def uneven(model: Architecture, work: Work) -> bool:
    """Experts of a model get unequal loads; of equal ones there is nothing to balance."""
    return model.experts is not None and work.routing.load != "balanced"


def policies(work: Work) -> list[ExpertBalance]:
    """Those that a step can follow."""
    step = work.step
    return [
        policy
        for policy in BALANCES.values()
        if (policy.trains or not step.trains) and (policy.serves or not step.serves)
    ]


def ways_to_balance(job: Job) -> Iterator[Balance]:
    """Every policy with its options at their defaults, where loads of several ranks differ and experts are whole: those
    under which the busiest rank gets less."""
    plan = job.plan
    if not (uneven(job.model, job.work) and plan.ep > 1 and plan.expert_shards is None):
        return
    busiest = job.expert_loads.busiest_rank_load
    for policy in policies(job.work):
        if not policy.why_not and policy.name != plan.expert_balance.policy:
            other = replace(job, plan=replace(plan, expert_balance=Balance(policy.name)))
            if other.expert_loads.busiest_rank_load < busiest:
                yield Balance(policy.name)


SOUGHT.register(
    sought_objects(
        "expert_balance",
        policies,
        while_serving=False,
        of=uneven,
        ways=ways_to_balance,
        kernels=True,
        used=lambda job: job.plan.ep > 1,
    )
)


# --- how their tokens travel ------------------------------------------------------------------------------------


def ways_to_dispatch(job: Job) -> Iterator[str]:
    """Every way that trains, where tokens travel; a serving step's are spread with its experts."""
    plan = job.plan
    if plan.ep > 1 and plan.expert_shards != 0 and not job.step.serves:
        others = (other for other in DISPATCHES.values() if other != plan.dispatch)
        yield from (other.name for other in others if other.trains and other.searched)


def ways_to_hide(job: Job) -> Iterator[str]:
    """Shared experts where there are any; of training another micro-batch, of a serving step its other half."""
    plan, experts = job.plan, job.model.experts
    if experts is None or plan.ep == 1 or plan.expert_shards == 0:
        return
    several = job.training and job.micro_batches > 1
    for overlap in OVERLAPS.values():
        alone = not (overlap.micro_batches or overlap.halves)
        fits = bool(experts.shared_width) if alone else (overlap.halves == job.step.serves and plan.expert_pieces == 1)
        if overlap != plan.hiding and fits and overlap.shared_beside and (several or not overlap.micro_batches):
            yield overlap.name


def _dispatches(work: Work) -> list[ExpertDispatch]:
    return [dispatch for dispatch in DISPATCHES.values() if dispatch.trains or work.step.serves]


def hides(job: Job) -> bool:
    """Exchanges are hidden, or a schedule that would hide them runs all the same."""
    turns = job.plan.hiding.micro_batches or job.plan.hiding.halves
    return spreads_experts(job) or (turns and (job.model.experts is not None or job.plan.pp > 1))


SOUGHT.register(
    sought_objects(
        "expert_dispatch", _dispatches, of=with_experts, ways=ways_to_dispatch, kernels=True, used=spreads_experts
    )
)
SOUGHT.register(
    Sought(
        "expert_overlap",
        while_serving=False,
        used=hides,
        of=with_experts,
        values=lambda model, work: [
            overlap.name
            for overlap in OVERLAPS.values()
            if not (overlap.halves and not work.step.serves) and not (overlap.micro_batches and not work.step.trains)
        ],
        ways=ways_to_hide,
    )
)


# --- pipelines, and what is made again --------------------------------------------------------------------------

SOUGHT.register(Sought("micro_batch", of=lambda model, work: not of_lengths(model, work) and not serves(model, work)))
SOUGHT.register(
    Sought(
        "schedule",
        of=trains,
        used=lambda job: job.plan.pp > 1,
        values=lambda model, work: [
            order.name
            for order in ORDERS.values()
            if order.searched and (model.experts is not None or not order.for_experts)
        ],
        left=lambda model, work: {
            order.name: order.why_not or NO_EXPERTS
            for order in ORDERS.values()
            if order.why_not or (order.for_experts and model.experts is None)
        },
    )
)
SOUGHT.register(Sought("vpp", of=lambda model, work: not serves(model, work)))
SOUGHT.register(Sought("accumulation", why_not="a pipeline that empties more often is never faster"))
SOUGHT.register(Sought("stage_layers", why_not="layers are spread as evenly as can be"))
SOUGHT.register(
    Sought(
        "recomputation",
        of=trains,
        values=lambda model, work: (KEPT, ATTENTION, CHEAP, FULL, "the fewest layers in full"),
    )
)
