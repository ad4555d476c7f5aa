"""Slices of experts: where an expert's weights and its tokens meet (Tutel, Hwang et al. 2022, arXiv 2206.03382, §4.2).

W = ``ep`` ranks share E experts. With E < W each expert lies in g = W/E slices of its columns, one per rank; with E ≥ W
a rank keeps E/W whole experts, and g = 1. The layout is the same for every r (``expert_shards``), so a run may change r
from step to step:

    r = 0        tokens stay, and all experts are gathered for the layer: E·P·(W − 1)/W bytes per rank, P an expert's
    1 ≤ r ≤ g    an expert's slices are gathered among g/r ranks to 1/r of its columns, P/r·(1 − r/g) bytes; a token
    goes
                 to the r ranks that together have an expert's columns, k·r rows; sums meet at the token's rank
    r = g        no weights move

Few tokens and large experts favour r = g, many tokens r = 1 or 0. Gradients of gathered weights are scattered the same
way. Weights are prefetched into one buffer, when the layer before has freed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..model import Experts
from .builder import ProgramBuilder
from .job import Job
from .ledger import Buffer, Lifetime
from .plan import SLICES

#: Stream of gathered weights.
STREAM = "gathered experts"


def tokens_travel(job: Job) -> bool:
    """Whether tokens go to experts on other ranks."""
    return job.plan.ep > 1 and job.plan.expert_shards != 0


def sliced(job: Job) -> bool:
    """Whether an expert lies on several ranks."""
    return job.plan.expert_owners > 1


def copies(job: Job, experts: Experts) -> float:
    """Rows of a token in the dispatch: of sliced experts one to every rank with columns of one, otherwise the
    dispatch's copies."""
    plan = job.plan
    if sliced(job):
        return float(experts.topk * (plan.expert_shards or 1))
    return plan.dispatch.copies(plan.ep, experts)


def products(job: Job, experts: Experts) -> tuple[int, int, float]:
    """Experts that a rank multiplies, parts that divide their columns, and ranks whose tokens reach them.

    Each expert has the rows of one rank's tokens times the latter, over E/k. Where the ranks do not divide the experts,
    a rank multiplies as many as fill it, with fewer rows each.
    """
    plan = job.plan
    if plan.expert_shards == 0:
        return experts.count, 1, 1.0
    if sliced(job):
        return 1, plan.expert_shards or 1, plan.ep * (plan.expert_shards or 1) / plan.expert_owners
    local = -(-experts.count // plan.ep)
    return local, 1, experts.count / local


def weights(job: Job) -> float:
    """Parameters of a rank's gathered experts; 0: none are gathered."""
    plan, experts = job.plan, job.model.experts
    if experts is None or plan.expert_shards is None:
        return 0.0
    if plan.expert_shards == 0:
        return float(experts.count * job.model.expert_parameters)
    return job.model.expert_parameters / plan.expert_shards if plan.slice_group > 1 else 0.0


def gathering(job: Job) -> tuple[str, int]:
    """The axis of the ranks that gather experts, and their number."""
    return ("ep", job.plan.ep) if job.plan.expert_shards == 0 else (SLICES, job.plan.slice_group)


def gather(builder: ProgramBuilder, job: Job) -> list[int]:
    """Gather a layer's experts; returns the dependencies of their kernels."""
    if not weights(job):
        return []
    size, (axis, _) = weights(job) * job.weight_bytes, gathering(job)
    moved = builder.collective("all_gather", axis, size, "gather experts", stream=STREAM)
    builder.buffers(STREAM, 1, 1).fill(0, moved)
    return [moved]


def used(builder: ProgramBuilder, job: Job, by: int) -> None:
    """Free the gathered experts after ``by``."""
    if weights(job):
        builder.buffers(STREAM, 1, 1).used(0, by)


def scatter(builder: ProgramBuilder, job: Job, after: Sequence[int]) -> list[int]:
    """Reduce-scatter the gradients of gathered experts to their owners; returns the collective."""
    if not weights(job):
        return []
    size, (axis, _) = weights(job) * job.work.optimizer.gradients, gathering(job)
    return [builder.collective("reduce_scatter", axis, size, "scatter experts' gradients", after=after, stream=STREAM)]


def buffers(job: Job) -> Iterator[Buffer]:
    """Other ranks' weights for a layer, and while training the gradients of all gathered ones."""
    if weights(job):
        _, ranks = gathering(job)
        others = weights(job) * (1.0 - 1.0 / ranks) * job.weight_bytes
        summed = weights(job) * job.work.optimizer.gradients if job.training else 0.0
        yield Buffer("gathered_experts", others + summed, Lifetime.LAYER)
