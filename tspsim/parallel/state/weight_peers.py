"""Weights in neighbours' memory: ``weight_peers: p`` beside ``offload_weights: n`` (EnergonAI's peer memory pooling, Du
et al. 2022, arXiv 2209.02341; abstract read).

p neighbouring replicas with the same weights keep those n layers of every chunk together, 1/p of each, and every rank
gathers the others' parts ahead of use over the links between GPUs, instead of copying from the host. Room, buffers and
waits are those of ``weight_offload``. With W bytes of a layer per rank, C of its kernels and g layers between two
offloaded ones, a gather of (1 - 1/p)·W over b hides if

    (1 - 1/p)·W/b ≤ g·C.

EnergonAI borrows the memory of idle GPUs; here the neighbours work too, so that the saving is (1 - 1/p) of those layers
on all of them.
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
from ..search_rule import SearchRule, serves

OPTION = Option(
    WEIGHT_PEERS,
    Annotated[int, Field(ge=2, le=65536)],
    None,
    "with offload_weights: number of neighbouring replicas that keep those layers together, instead of the hosts",
    SearchRule(why_not="tp divides weights with less on the way", of=serves),
)


def peers(plan: Plan) -> int:
    """Replicas that keep layers together; 0: offloaded layers are on hosts."""
    return int(plan.options.get(WEIGHT_PEERS, 0)) if plan.offload_weights else 0


def kept(plan: Plan) -> float:
    """Share of an offloaded layer that a rank keeps itself."""
    return 1.0 / peers(plan) if peers(plan) else 0.0


def buffers(plan: Plan, sizes: Iterable[float]) -> Iterator[Buffer]:
    """A rank's own parts of offloaded layers with the given bytes."""
    if peers(plan):
        yield Buffer("weights_for_neighbours", kept(plan) * sum(sizes), Lifetime.STEP)


def check(job: Job) -> Refusal:
    """Why the plan does not fit."""
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
