"""The planner's answer and its JSON: the best plans, bounds on the others, and the best elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ...base.display import ShownPlans
from ...base.units import percent
from ...scenario import Scenario
from ...step.description import describe_cluster, describe_model, provenance
from ...step.question import Question
from ...step.result import SCHEMA_VERSION, PlanResult
from ...step.statements import defaults_in_words
from ..ceiling import searched_under_the_ceiling
from .limit import Limits as KeptLimits
from .limit import limit_texts
from .limits import FittingEnds, LeanPlan
from .scheme_map import Cell, Side
from .searches import at_nodes
from .sensitivity import Sensitivity
from .simulated_plan import SimulatedPlan
from .space import Space
from .why import StepPart
from .workers import scenario_of

#: The best plan is explained and compared if no other can beat it by more than this share.
PROVEN = 0.02


@dataclass(frozen=True)
class StatedPlan:
    """A plan of the scenario itself, at the same batch."""

    name: str
    result: PlanResult | None
    error: str = ""


@dataclass(frozen=True)
class Lead:
    """The ratio of the best rate to the runner-up's, its 90 % range with common errors cancelled, and the probability
    that it is above 1."""

    ratio: float
    low: float
    high: float
    probability: float

    @property
    def close(self) -> bool:
        """Whether the runner-up may be as fast."""
        return self.low <= 1.0


@dataclass(repr=False)
class Planned(ShownPlans):
    """The planner's answer for a step."""

    scenario: Scenario
    question: Question
    #: Sequences of a step, the same for every plan.
    batch: int
    objective: str
    top: int
    #: The limits that plans had to keep.
    kept: KeptLimits = field(default_factory=KeptLimits)
    #: The best plans, best first. ``next_bound_s`` bounds every plan that was not simulated.
    best: tuple[SimulatedPlan, ...] = ()
    next_bound_s: float = math.inf
    #: The share by which a plan that was not simulated may be better than the best; 0: none can.
    gap: float = 0.0
    stated: tuple[StatedPlan, ...] = ()
    #: Plans that no other simulated one beats in rate, tokens per dollar and free memory.
    front: tuple[SimulatedPlan, ...] = ()
    why: tuple[StepPart, ...] = ()
    rival: str = ""
    ahead: Lead | None = None
    sensitivity: tuple[Sensitivity, ...] = ()
    limits: FittingEnds | None = None
    scheme_map: tuple[Cell, ...] = ()
    simulated: int = 0
    bounded: int = 0
    complete: bool = True
    interrupted: bool = False

    @property
    def enough(self) -> bool:
        """Whether the search proves that no plan is better by more than :data:`PROVEN`."""
        return self.gap <= PROVEN and (self.complete or self.gap > 0.0)

    @property
    def opening(self) -> str:
        """A sentence if the search was interrupted, or has not proven its best plan."""
        sentences = ["Interrupted: the best plan so far."] if self.interrupted else []
        if not self.enough:
            far = f"another plan may be up to {percent(self.gap)} faster" if self.gap else "nothing is proven"
            remedy = "" if self.interrupted else "; give more with --budget"
            sentences.append(f"Not searched enough: {far}{remedy}.")
        return " ".join(sentences)

    @property
    def ceiling(self) -> tuple[str, ...]:
        """That rates are a ceiling, where no stack is stated; else empty."""
        return searched_under_the_ceiling(self.scenario)

    def shown_title(self) -> str:
        return self.scenario.name

    def shown_plans(self) -> Iterable[tuple[str, PlanResult]]:
        return [(plan.candidate.name, plan.result) for plan in self.best]

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        unequal = self.question.work.unequal
        return unequal.total if unequal.tokens else self.batch * self.scenario.workload.sequence

    @property
    def source_scenario(self) -> Scenario:
        """The scenario with only the best plan, and its sequences per replica."""
        return self.scenario_with(self.best[0])

    def scenario_with(self, plan: SimulatedPlan) -> Scenario:
        """The scenario with only one of the plans."""
        nodes = plan.result.gpus // self.question.cluster.gpus_per_node
        scenario = self.scenario
        if nodes != self.question.cluster.nodes:
            scenario = at_nodes(scenario, self.question.cluster, nodes)
        return scenario_of(scenario, plan.candidate)

    def with_questions(self) -> Planned:
        """The same answer, with each best plan's own scenario attached."""
        self.best = tuple(replace(plan, source_scenario=self.scenario_with(plan)) for plan in self.best)
        return self

    @property
    def searched(self) -> Mapping[str, tuple[str, ...]]:
        """Keys that were searched beside degrees, and the values tried where not all were."""
        return self._space.searched()

    @property
    def left(self) -> Mapping[str, tuple[str, ...]]:
        """Reasons why keys stayed as stated, each with these keys, or values of searched keys."""
        return self._space.left()

    @property
    def _space(self) -> Space:
        question = self.question
        return Space(question.model, question.work, question.cluster, self.batch)

    def to_json(self) -> dict[str, Any]:
        """The answer as plain data (docs/planner.md has its schema)."""
        return document(self)


def document(planned: Planned) -> dict[str, Any]:
    """One object: the question, the simulated plans, and under ``plan`` the planner's findings."""
    question = planned.question
    best = list(planned.best)
    front = [plan for plan in planned.front if plan not in best]
    return {
        "schema": SCHEMA_VERSION,
        "scenario": planned.scenario.to_dict() | {"model": describe_model(question.model)},
        "cluster": describe_cluster(question.cluster, question.device),
        "plan": {
            "opening": planned.opening,
            "objective": planned.objective,
            "kept_limits": [
                *limit_texts(planned.kept.limits),
                *([f"schemes={','.join(planned.kept.schemes)}"] if planned.kept.schemes else []),
            ],
            "batch_sequences": planned.batch,
            "tokens_per_step": planned.tokens,
            "best": [_entry(plan, planned) for plan in best],
            "front": [_entry(plan, planned) for plan in (*best, *front) if plan in planned.front],
            "stated": [
                {"name": plan.name, **({"error": plan.error} if plan.error else {}), **_rates(plan.result)}
                for plan in planned.stated
            ],
            "why": {
                "best": best[0].candidate.name,
                "other": planned.rival or None,
                "ratio": None if planned.ahead is None else vars(planned.ahead),
                "parts": [
                    {"part": part.name, "best_s": part.best_s, "other_s": part.other_s, "saved_s": part.saved_s}
                    for part in planned.why
                ],
            },
            "elsewhere": [
                {
                    "what": place.what,
                    "nodes": place.nodes,
                    "sequence": place.sequence,
                    "batch_sequences": place.batch,
                    "ranking": [{"plan": name, "step_time_s": step_s} for name, step_s in place.ranking],
                    "does_not_fit": list(place.unfit),
                }
                for place in planned.sensitivity
            ],
            "limits": _limits(planned),
            "map": [
                {
                    "sequence": cell.sequence,
                    "nodes": cell.nodes,
                    "batch_sequences": cell.batch,
                    "tsp": _side(cell.folded),
                    "other": _side(cell.other),
                    "proven": cell.proven,
                    "complete": cell.sure,
                }
                for cell in planned.scheme_map
            ],
            "search": {
                "searched": {name: list(values) for name, values in planned.searched.items()},
                "left": {reason: list(keys) for reason, keys in planned.left.items()},
                "simulated": planned.simulated,
                "bounded": planned.bounded,
                "complete": planned.complete,
                "enough": planned.enough,
                "interrupted": planned.interrupted,
                "next_bound_s": planned.next_bound_s if planned.next_bound_s < math.inf else None,
                "gap": planned.gap,
            },
        },
        "provenance": [dict(row) for row in provenance(question)],
        "defaults": [
            *defaults_in_words(question, [simulated.candidate.plan for simulated in best]),
            *planned.ceiling,
        ],
    }


def _entry(plan: SimulatedPlan, planned: Planned) -> dict[str, Any]:
    """A plan's entry of the contract, with its keys in a scenario."""
    nodes = plan.result.gpus // planned.question.cluster.gpus_per_node
    return {
        **plan.result.to_json(),
        "keys": plan.candidate.keys,
        "sequences_per_replica": plan.candidate.job.work.sequences,
        "nodes": nodes,
        "bound_s": plan.bound_s,
        "headroom_bytes": plan.headroom_bytes,
    }


def _side(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {"plan": side.plan, "step_time_s": side.step_s, "least_step_time_s": side.least_s}


def _rates(result: PlanResult | None) -> dict[str, Any]:
    if result is None or not result.ran:
        return {}
    return {
        "tokens_per_s": result.tokens_per_s,
        "step_time_s": result.step_time_s,
        "mfu": result.mfu,
        "memory_peak_bytes": result.memory.peak_bytes,
    }


def _limits(planned: Planned) -> dict[str, Any] | None:
    if planned.limits is None:
        return None

    def limit(end: tuple[int, LeanPlan] | None) -> dict[str, Any] | None:
        if end is None:
            return None
        value, lean = end
        return {"value": value, "plan": lean.name, "memory_peak_bytes": lean.bytes}

    every = planned.limits
    return {
        "longest_sequence": limit(every.longest_sequence),
        "largest_batch_sequences": limit(every.largest_batch),
        "fewest_nodes": limit(every.fewest_nodes),
    }
