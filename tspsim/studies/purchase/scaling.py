"""Scaling curves: the best plan of an offer on fewer and more nodes.

*Weak*: every replica keeps its work; more nodes are more replicas. *Strong*: the work is always the offer's own step.
On fewer nodes a replica has more sequences. On more nodes than replicas need, the token axis of the plan's scheme
grows across nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...base.errors import InputError
from ...network import Cluster
from ...parallel import SCHEMES
from ...scenario import PlanSpec, Scenario
from .needs import at_nodes, step_of

WEAK_NODES = (1, 4, 16, 128, 2048)
#: Strong scaling covers these multiples of the offer's own size. Beyond them every rank has a coordinate of its own on
#: the token axis, which does not fold: 2,048 nodes take minutes, which is a task for a sweep.
STRONG_FACTORS = (0.5, 1, 2, 4)
#: The broadcasts of a folded axis grow with its square: longer axes are a task for sweeps.
LONGEST_FOLDED = 16
#: The largest machine on a curve: 2,048 nodes of eight.
MOST_GPUS = 2048 * 8


@dataclass(frozen=True)
class Trial:
    """One point to simulate. ``crosses``: a group other than dp is larger than a node."""

    curve: str
    nodes: int
    gpus: int
    crosses: bool
    scenario: Scenario


@dataclass(frozen=True)
class ScalingPoint:
    """One point of a curve: tokens/s, and its tokens/s/GPU over those of the curve's smallest machine."""

    nodes: int
    gpus: int
    crosses: bool
    tokens_per_s: float
    efficiency: float


def trials_of(scenario: Scenario, cluster: Cluster, plan: str) -> Iterator[Trial]:
    """The points of both curves."""
    if cluster.fabric is None:
        return
    chosen, per_node = scenario.plan(plan), cluster.gpus_per_node
    step = step_of(chosen, per_node)
    crosses = chosen.ranks_per_replica // chosen.pp > per_node
    replicas = cluster.gpus // chosen.ranks_per_replica
    sequences_each = scenario.workload.sequences_of(replicas, plan)
    for nodes in sorted({*WEAK_NODES, cluster.nodes}):
        if nodes % step == 0 and nodes * per_node <= MOST_GPUS:
            point = at_nodes(scenario, cluster, plan, nodes, sequences=sequences_each)
            yield Trial("weak", nodes, nodes * per_node, crosses, point)
    work = sequences_each * replicas
    for factor in STRONG_FACTORS:
        nodes = int(cluster.nodes * factor)
        if nodes < 1 or nodes % step or nodes * per_node > MOST_GPUS:
            continue
        replicas = nodes * per_node // chosen.ranks_per_replica
        grown, axis = chosen, SCHEMES.get(chosen.scheme).token_axis
        sequences, remainder = divmod(work, replicas)
        if replicas > work and replicas % work == 0:
            grown, sequences, remainder = wider(chosen, replicas // work), 1, 0
        if remainder or (folds(chosen) and grown.degree(axis) > max(chosen.degree(axis), LONGEST_FOLDED)):
            continue
        point = at_nodes(scenario, cluster, plan, nodes, sequences=sequences)
        try:
            grown.degrees(nodes * per_node)
        except InputError:
            continue
        size = grown.ranks_per_replica // grown.pp
        update = {"plans": (grown.model_copy(update={"dp": None}),)}
        yield Trial("strong", nodes, nodes * per_node, size > per_node, point.model_copy(update=update))


def wider(plan: PlanSpec, times: int) -> PlanSpec:
    """The plan with its token axis ``times`` as long."""
    axis = SCHEMES.get(plan.scheme).token_axis
    return plan.model_copy(update={axis: plan.degree(axis) * times})


def folds(plan: PlanSpec) -> bool:
    """Whether weights travel to the tokens (TSP)."""
    return SCHEMES.get(plan.scheme).folds


def curve(ran: Sequence[tuple[Trial, float]]) -> tuple[ScalingPoint, ...]:
    """Points of a curve, with their efficiency against the first."""
    first = ran[0][1] / ran[0][0].gpus if ran else 0.0
    return tuple(
        ScalingPoint(point.nodes, point.gpus, point.crosses, rate, rate / point.gpus / first) for point, rate in ran
    )
