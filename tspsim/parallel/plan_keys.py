"""Search rules that keys of every plan refer to (:mod:`tspsim.parallel.switches`): candidate values, values in words,
and whether a job uses the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..base.quick import replace
from ..model import Architecture
from .balance import BALANCES, Balance, ExpertBalance
from .dispatch import DISPATCHES, OVERLAPS, ExpertDispatch
from .pipeline import NO_EXPERTS, ORDERS
from .search_rule import SearchedJob, shares_tokens, spreads_experts
from .work import Work

# --- balance of experts -----------------------------------------------------------------------------------------


def uneven(model: Architecture, work: Work) -> bool:
    """Whether experts have unequal loads, which can be balanced."""
    return model.experts is not None and work.routing.load != "balanced"


def policies(work: Work) -> list[ExpertBalance]:
    """Balance policies for the step."""
    step = work.step
    return [
        policy
        for policy in BALANCES.values()
        if (policy.trains or not step.trains) and (policy.serves or not step.serves)
    ]


def ways_to_balance(job: SearchedJob) -> Iterator[Balance]:
    """Policies with default options that lower the busiest rank's load, if several ranks have whole experts."""
    plan = job.plan
    if not (uneven(job.model, job.work) and plan.ep > 1 and plan.expert_shards is None):
        return
    busiest = job.expert_loads.busiest_rank_load
    for policy in policies(job.work):
        if not policy.why_not and policy.name != plan.expert_balance.policy:
            other = replace(job, plan=replace(plan, expert_balance=Balance(policy.name)))
            if other.expert_loads.busiest_rank_load < busiest:
                yield Balance(policy.name)


# --- how their tokens travel, and where they meet ---------------------------------------------------------------


def ways_to_dispatch(job: SearchedJob) -> Iterator[str]:
    """Dispatches for training, if tokens move; those of a serving step are searched with its experts."""
    plan = job.plan
    if plan.ep > 1 and plan.expert_shards != 0 and not job.step.serves:
        others = (other for other in DISPATCHES.values() if other != plan.dispatch)
        yield from (other.name for other in others if other.trains and other.searched)


def ways_to_hide(job: SearchedJob) -> Iterator[str]:
    """Overlaps: shared experts if there are any; in training another micro-batch, in serving steps the other half."""
    plan, experts = job.plan, job.model.experts
    if experts is None or plan.ep == 1 or plan.expert_shards == 0:
        return
    several = job.training and job.micro_batches > 1
    for overlap in OVERLAPS.values():
        alone = not (overlap.micro_batches or overlap.halves)
        fits = bool(experts.shared_width) if alone else (overlap.halves == job.step.serves and plan.expert_pieces == 1)
        if overlap != plan.hiding and fits and overlap.shared_beside and (several or not overlap.micro_batches):
            yield overlap.name


def dispatches(work: Work) -> list[ExpertDispatch]:
    """Dispatches for the step."""
    return [dispatch for dispatch in DISPATCHES.values() if dispatch.trains or work.step.serves]


def overlaps(model: Architecture, work: Work) -> list[str]:
    """Overlaps of exchanges with experts for the step."""
    return [
        overlap.name
        for overlap in OVERLAPS.values()
        if not (overlap.halves and not work.step.serves) and not (overlap.micro_batches and not work.step.trains)
    ]


def hides(job: SearchedJob) -> bool:
    """Whether exchanges are hidden, or a schedule runs that would hide them."""
    turns = job.plan.hiding.micro_batches or job.plan.hiding.halves
    return spreads_experts(job) or (turns and (job.model.experts is not None or job.plan.pp > 1))


#: Pieces that are tried: finer ones multiply slower, and pay each exchange's latency once more.
PIECES = (2, 4)


def ways_to_cut(job: SearchedJob) -> Sequence[int]:
    """Numbers of pieces of dispatch, experts and combine, if tokens move and nothing else hides it."""
    plan = job.plan
    alone = not (plan.hiding.micro_batches or plan.hiding.halves)
    return PIECES if plan.ep > 1 and plan.expert_shards != 0 and alone and not job.replicates_tokens else ()


def ways_to_shard(job: SearchedJob) -> Iterator[int]:
    """0 (all experts gathered; once for all dispatches, since tokens stay), and the divisors of the ranks that keep an
    expert in slices."""
    plan, experts = job.plan, job.model.experts
    if experts is None or plan.ep == 1 or job.step.serves or plan.expert_balance.stated:
        return
    if plan.dispatch.name == type(plan).expert_dispatch and plan.expert_pieces == 1:
        yield 0
    if plan.expert_owners > 1:
        yield from (ranks for ranks in range(1, plan.expert_owners + 1) if plan.expert_owners % ranks == 0)


# --- sequences over ranks ---------------------------------------------------------------------------------------


def shared(job: SearchedJob) -> bool:
    """Whether several ranks share a sequence: all, or with ``sp: auto`` those of long sequences."""
    return job.plan.sp > 1 or (job.unequal and any(pack.ranks > 1 for packs in job.assignment.packs for pack in packs))


def folds(job: SearchedJob) -> bool:
    """Whether tensor and sequence parallelism are folded."""
    return bool(job.plan.tsp > 1)


def gathers_in_pieces(job: SearchedJob) -> bool:
    """Whether K and V are gathered in pieces."""
    own = job.plan.overlap is True and job.plan.exchange == "all_gather"
    return shares_tokens(job) and (job.plan.overlap is not False if job.scheme.folds else own)


def in_chunks(job: SearchedJob) -> bool:
    """Whether reductions, or gathers of K and V, are cut into chunks."""
    plan = job.plan
    if job.scheme.folds:
        return bool(plan.token_shards > 1 and plan.overlap is not False and plan.overlap_by == "blocks")
    return bool(plan.overlap is True and plan.tp * plan.sp > 1)


# --- pipelines --------------------------------------------------------------------------------------------------


def orders(model: Architecture, work: Work) -> list[str]:
    """Orders of micro-batches that are tried."""
    return [
        order.name
        for order in ORDERS.values()
        if order.searched and (model.experts is not None or not order.for_experts)
    ]


def orders_left(model: Architecture, work: Work) -> Mapping[str, str]:
    """Orders that are not tried, and why."""
    return {
        order.name: order.why_not or NO_EXPERTS
        for order in ORDERS.values()
        if order.why_not or (order.for_experts and model.experts is None)
    }
