"""The number of nodes for a rate or a deadline: estimated by proportion, then simulated until it holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ...base.errors import InputError
from ...base.units import compact
from ...network import Cluster
from ...scenario import MOST_NODES, ClusterInline, PlanSpec, Scenario
from ...scenario.project import Project
from ...step.result import PlanResult
from .checkpoints import CheckpointCost, CheckpointSchedule
from .likely import Likely
from .outcome import PurchaseOutcome

#: Simulates a scenario with one plan; None where the plan does not fit or run.
Ask = Callable[[Scenario], PlanResult | None]

MOST_GUESSES = 6


@dataclass(frozen=True)
class Need:
    """The smallest machine that is fast enough.

    ``tokens_per_s`` was simulated at ``nodes``, for ``scenario``. ``run`` is the project on it, if there is a token
    budget, and ``outcome`` its cost; ``day`` is the cost of one day.
    """

    nodes: int
    gpus: int
    tokens_per_s: float
    run: CheckpointSchedule | None
    scenario: Scenario = field(repr=False)
    cost: CheckpointCost
    outcome: PurchaseOutcome | None = None
    #: Ranges of the outcome's days and dollars.
    likely: Likely | None = None
    day: PurchaseOutcome | None = None
    #: Fewer nodes that would be enough if replicas shared a step's sequences evenly; else 0.
    uneven: int = 0

    @property
    def hint(self) -> str:
        """Why fewer nodes are not enough though their rate is; empty where that is not the case."""
        if not self.uneven:
            return ""
        return (
            f"{self.uneven:,} nodes should be enough, but their replicas do not share the "
            f"{self.scenario.workload.global_batch:,} sequences of a step evenly (`workload.global_batch`)"
        )


def at_nodes(scenario: Scenario, cluster: Cluster, plan: str, nodes: int, *, sequences: int | None = None) -> Scenario:
    """The scenario with one plan on another number of the same nodes, filled with its replicas.

    With fewer replicas than the plan's ``shard_group``, all of them share the state.
    """
    fabric = cluster.fabric.name if cluster.fabric is not None else None
    if isinstance(scenario.cluster, ClusterInline):
        inline = scenario.cluster.model_copy(update={"nodes": nodes, "faults": None})
    else:
        inline = ClusterInline(
            node=cluster.node.name, nodes=nodes, fabric=fabric, oversubscription=cluster.oversubscription,
            library=cluster.node.collectives.default_library,
        )  # fmt: skip
    workload = scenario.workload
    if sequences is not None:
        workload = workload.with_sequences(sequences)
    chosen = scenario.plan(plan)
    replicas = nodes * cluster.gpus_per_node // chosen.ranks_per_replica
    whole = chosen.shard_group is not None and chosen.shard_group > chosen.sp * replicas
    chosen = chosen.model_copy(update={"dp": None} | ({"shard_group": None} if whole else {}))
    return scenario.model_copy(update={"cluster": inline, "plans": (chosen,), "workload": workload})


def step_of(plan: PlanSpec, gpus_per_node: int) -> int:
    """The fewest nodes with a whole number of replicas."""
    return math.lcm(plan.ranks_per_replica, gpus_per_node) // gpus_per_node


def dividing(scenario: Scenario, plan: PlanSpec, gpus_per_node: int, nodes: int) -> int:
    """The fewest nodes, at least ``nodes``, whose replicas share a stated global batch evenly; above the limit where
    there is no such number."""
    batch, step = scenario.workload.global_batch, step_of(plan, gpus_per_node)
    if batch is None:
        return nodes
    return next(
        (
            count
            for count in range(nodes, MOST_NODES + 1, step)
            if batch % (count * gpus_per_node // plan.ranks_per_replica) == 0
        ),
        MOST_NODES + 1,
    )


def need(
    scenario: Scenario, cluster: Cluster, plan: str, tokens_per_s: float, ask: Ask, slack: float = 1.0
) -> Need | str | None:
    """The nodes that meet the project's rate and deadline, why no number does, or None: the project states neither.

    Parameters
    ----------
    tokens_per_s
        Rate of the plan on ``cluster``, the start of the estimate.
    slack
        The factor by which the prediction must exceed the requirement (:func:`.likely.slack_of`).
    """
    project = scenario.project or Project()
    if project.rate is None and project.deadline is None:
        return None
    alone = cluster.fabric is None and cluster.nodes == 1 and not _may_grow(scenario)
    per_node, step = tokens_per_s / cluster.nodes, step_of(scenario.plan(plan), cluster.gpus_per_node)
    rate = slack * (project.rate or 0.0)
    wanted = rate
    if project.deadline is not None and project.tokens is not None:
        wanted = max(wanted, slack * project.tokens / project.deadline)
    nodes = 0
    for _ in range(MOST_GUESSES):
        nodes = max(nodes + step if nodes else 0, step * math.ceil(wanted / per_node / step))
        if alone and nodes > 1:
            return f"takes {nodes:,} nodes, and one is stated without a fabric"
        fewest, nodes = nodes, dividing(scenario, scenario.plan(plan), cluster.gpus_per_node, nodes)
        if nodes > MOST_NODES:
            return _too_many(scenario, wanted)
        grown = at_nodes(scenario, cluster, plan, nodes)
        try:
            answer = ask(grown)
        except InputError as error:  # more than the fabric's switches can join
            return f"at {nodes:,} nodes: {error}"
        if answer is None:
            return f"{plan} does not run on {nodes:,} nodes"
        rate_here, cost = answer.tokens_per_s, CheckpointCost.of(answer, project.failures)
        run = cost.run(project.tokens, nodes, project.failures) if project.tokens is not None else None
        late = slack * run.elapsed_s / project.deadline if run is not None and project.deadline is not None else 0.0
        if rate_here >= rate and late <= 1.0:
            uneven = fewest if fewest < nodes else 0
            return Need(nodes, nodes * cluster.gpus_per_node, rate_here, run, grown, cost, uneven=uneven)
        per_node = rate_here / nodes
        wanted = max(rate, min(late, 2.0) * rate_here)
    return f"{plan} reaches {compact(rate_here)} tokens/s on {nodes:,} nodes, and more nodes help too little"


def _too_many(scenario: Scenario, wanted: float) -> str:
    """Why no number of nodes is enough."""
    batch = scenario.workload.global_batch
    shared = f" that share {batch:,} sequences a step evenly; state a larger global_batch" if batch is not None else ""
    return f"{compact(wanted)} tokens/s takes more than {MOST_NODES:,} nodes, or more than any{shared}"


def _may_grow(scenario: Scenario) -> bool:
    return isinstance(scenario.cluster, ClusterInline) and scenario.cluster.fabric is not None
