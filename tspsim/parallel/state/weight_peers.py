"""Weights in neighbours' memory (EnergonAI's peer memory pooling, Du et al. 2022, arXiv 2209.02341; its abstract was
read): ``weight_peers: p`` beside ``offload_weights: n``.

p neighbouring replicas, which hold the same weights, keep those n layers of every chunk among them, a p-th of each,
and every rank gathers the others' parts ahead of use over the links between GPUs, where ``offload_weights`` alone
copies from the host. Room, buffers and waits are the same (``weight_offload``). With W bytes of a
layer on a rank, C its kernels and g layers from one that comes to the next, a gather of (1 - 1/p)·W over b hides where

    (1 - 1/p)·W/b ≤ g·C.

EnergonAI borrows the memory of GPUs that run nothing; here the neighbours work as well, so that what is saved is
(1 - 1/p) of those layers on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field

from ..feature import FEATURES, Feature
from ..job import Job
from ..ledger import Buffer, Lifetime
from ..pipeline import Refusal
from ..plan import WEIGHT_PEERS, Plan
from ..registries import Option
from ..sought import Sought, serves

OPTION = Option(
    WEIGHT_PEERS,
    Annotated[int, Field(ge=2, le=65536)],
    None,
    "with offload_weights: neighbouring replicas that keep those layers among them, instead of the hosts",
    Sought(why_not="tp divides weights with less on the way", of=serves),
)


def peers(plan: Plan) -> int:
    """Replicas that keep layers among them; 0: what is away is at the host."""
    return int(plan.options.get(WEIGHT_PEERS, 0)) if plan.offload_weights else 0


def kept(plan: Plan) -> float:
    """Part of a layer that is away which a rank keeps itself."""
    return 1.0 / peers(plan) if peers(plan) else 0.0


def buffers(plan: Plan, sizes: Iterable[float]) -> Iterator[Buffer]:
    """A rank's own parts of layers that are away, of so many bytes each."""
    if peers(plan):
        yield Buffer("weights_for_neighbours", kept(plan) * sum(sizes), Lifetime.STEP)


def check(job: Job) -> Refusal:
    """What it needs."""
    plan, ranks = job.plan, job.plan.options[WEIGHT_PEERS]
    if not plan.offload_weights:
        return WEIGHT_PEERS, f"{ranks} keep the layers of offload_weights; state how many these are"
    if job.training:
        return WEIGHT_PEERS, "is of steps that keep weights as they are; training divides them by zero: 3"
    if plan.dp % ranks:
        return WEIGHT_PEERS, f"{ranks} does not divide the {plan.dp} replicas"
    if plan.ep > 1:
        return WEIGHT_PEERS, f"beside ep {plan.ep}, whose replicas hold different experts, is not built; leave one out"
    return None


FEATURES.register(
    Feature(
        WEIGHT_PEERS,
        "weights of some layers in neighbours' memory",
        options=(OPTION,),
        scheme="tensor",
        check=check,
        groups=lambda plan: {WEIGHT_PEERS: {"dp": peers(plan)}} if peers(plan) else {},
    )
)
