"""Searches of one scenario's plans, on its own cluster and on other numbers of its nodes, at any length and batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...base.errors import InputError
from ...hardware import Costs
from ...network import Cluster
from ...parallel import Captured
from ...scenario import ClusterInline, Scenario
from ...scenario.cluster import Island
from ...step.paths import Effort, LowerBound
from ...step.question import Question, look_up
from ...step.result import PlanResult
from ..query import Library
from .branch import Search
from .candidate import Candidate
from .clock import NEVER, Deadline
from .space import Space


def at_nodes(scenario: Scenario, cluster: Cluster, nodes: int) -> Scenario:
    """The scenario on another number of the same nodes. Raises InputError where these are not known."""
    if isinstance(scenario.cluster, ClusterInline):
        inline, measured = scenario.cluster.model_copy(update={"nodes": nodes}), scenario.cluster.measured
        if measured is not None:
            if nodes > len(measured.rows):
                raise InputError(f"{len(measured.rows)} nodes were measured, not {nodes}", key="cluster.measured")
            inline = inline.model_copy(update={"measured": measured.of_nodes(nodes) if nodes > 1 else None})
        if inline.topology is not None:
            raise InputError(f"the file has {cluster.nodes} nodes, not {nodes}", key="cluster.topology")
        if inline.islands:
            inline = inline.model_copy(update={"islands": of_nodes(inline.islands, nodes)})
    else:
        if cluster.fabric is None and nodes > 1:
            raise InputError(f"{cluster.name} has no fabric for {nodes} nodes", key="cluster")
        inline = ClusterInline(
            node=cluster.node.name,
            nodes=nodes,
            fabric=cluster.fabric.name if cluster.fabric is not None else None,
            oversubscription=cluster.oversubscription if cluster.fabric is not None else None,
            library=cluster.node.collectives.default_library,
        )
    return scenario.model_copy(update={"cluster": inline})


def one_draw(scenario: Scenario) -> Scenario:
    """The scenario with only the first draw of its fabric's paths: a search compares plans on one machine."""
    cluster = scenario.cluster
    if not isinstance(cluster, ClusterInline) or cluster.routing is None:
        return scenario
    first = replace(cluster.routing, seeds=1)
    return scenario.model_copy(update={"cluster": cluster.model_copy(update={"routing": first})})


def of_nodes(islands: Sequence[Island], nodes: int) -> tuple[Island, ...]:
    """The first nodes of islands. Raises InputError where there are too few."""
    kept, left = [], nodes
    for island in islands:
        here = min(island.nodes, left)
        left -= here
        kept += [island.model_copy(update={"nodes": here})] if here else []
    if left:
        raise InputError(f"islands have {nodes - left} nodes, not {nodes}", key="cluster.islands")
    return tuple(kept)


class Searches:
    """Builds searches; they share look-ups and prices.

    Parameters
    ----------
    scenario
        The scenario of cluster and workload.
    library
        Memoizing look-ups.
    simulate
        Simulates plans of a scenario.
    effort
        Counts the work of all searches.

    Raises
    ------
    InputError
        The scenario is wrong.
    """

    def __init__(
        self,
        scenario: Scenario,
        library: Library,
        simulate: Callable[[Scenario, Sequence[Candidate]], list[PlanResult | None]],
        effort: Effort | None = None,
    ) -> None:
        self.scenario, self.library, self.simulate = one_draw(scenario), library, simulate
        self.effort = effort or Effort()
        self.question = self.look_up(self.scenario)
        self.costs = Costs(self.question.device)

    def look_up(self, scenario: Scenario) -> Question:
        """Resolves all names of a scenario; plans are checked one by one later."""
        any_plan, workload = type(scenario.plans[0])(name="any"), scenario.workload
        if workload.lengths is not None:
            return self._unequal(scenario)
        if workload.global_batch is not None:  # the placeholder need not divide it
            workload = workload.with_sequences(1)
        bare = scenario.model_copy(update={"plans": (any_plan,), "workload": workload})
        return look_up(bare, self.library.lookups)

    def _unequal(self, scenario: Scenario) -> Question:
        """The same with sequences of unequal length: with a plan that can hold them, shared or whole."""
        plan_type = type(scenario.plans[0])
        shared, whole = (
            scenario.model_copy(update={"plans": (plan_type.model_validate({"name": "any"} | keys),)})
            for keys in ({"sp": "auto"}, {})
        )
        try:
            return look_up(shared, self.library.lookups)
        except InputError:
            return look_up(whole, self.library.lookups)

    def resized(self, nodes: int) -> Scenario:
        """The scenario on ``nodes`` nodes. Raises InputError where they have no fabric."""
        cluster = self.question.cluster
        return self.scenario if nodes == cluster.nodes else at_nodes(self.scenario, cluster, nodes)

    def search(self, nodes: int, batch: int, sequence: int | None = None, *, deadline: Deadline = NEVER) -> Search:
        """A search on ``nodes`` nodes. ``sequence`` replaces the scenario's own; ``batch`` is in sequences."""
        scenario = self.resized(nodes)
        if sequence is not None and sequence != scenario.workload.sequence:
            workload = scenario.workload.model_copy(update={"sequence": sequence})
            scenario = scenario.model_copy(update={"workload": workload})
        question = self.question if scenario is self.scenario else self.look_up(scenario)
        return Search(
            self.space(question, batch),
            self._bounds(question),
            question.device.visible_memory_bytes,
            lambda candidates: self.simulate(scenario, candidates),
            deadline,
        )

    def space(self, question: Question, batch: int) -> Space:
        return Space(question.model, question.work, question.cluster, batch, self.effort)

    def _bounds(self, question: Question) -> LowerBound:
        work, device = question.work, question.device
        captured = Captured.WHOLE if work.step.serves else Captured.NOTHING
        return LowerBound(
            question.cluster,
            work.stack.cost(self.costs, device, captured),
            max(device.peak_flops_per_s.values()),
            work.stack.slowdown(device),
            effort=self.effort,
        )
