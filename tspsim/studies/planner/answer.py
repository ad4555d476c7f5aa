"""What the planner answers: the best plans, what is known about the others, where the best are not; and its JSON."""

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
from .found import Found
from .limit import Limits as KeptLimits
from .limit import limit_texts
from .limits import FittingEnds, Lean
from .scheme_map import Cell, Side
from .searches import at_nodes
from .sensitivity import Sensitivity
from .space import Space
from .why import StepPart
from .workers import scenario_of

#: A best plan that no other can beat by more than this share is one to explain and to compare with.
PROVEN = 0.02


@dataclass(frozen=True)
class StatedPlan:
    """A plan of the scenario itself, at the same batch."""

    name: str
    result: PlanResult | None
    error: str = ""


@dataclass(frozen=True)
class Ahead:
    """Rate of the best over that of the runner-up, where it lies nine times of ten as their errors go together, and how
    likely it is above 1."""

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
    """What the planner found."""

    scenario: Scenario
    question: Question
    #: Sequences of a step, the same for every plan.
    batch: int
    objective: str
    top: int
    #: The limits that plans had to keep.
    kept: KeptLimits = field(default_factory=KeptLimits)
    #: The best plans, best first; ``next_bound`` says what those that were not simulated cannot undercut.
    best: tuple[Found, ...] = ()
    next_bound_s: float = math.inf
    #: By what share a plan that was searched and not simulated may be better than the best; 0: none can.
    gap: float = 0.0
    stated: tuple[StatedPlan, ...] = ()
    #: Plans that no other simulated one beats in rate, tokens a dollar and memory left.
    front: tuple[Found, ...] = ()
    why: tuple[StepPart, ...] = ()
    rival: str = ""
    ahead: Ahead | None = None
    sensitivity: tuple[Sensitivity, ...] = ()
    limits: FittingEnds | None = None
    scheme_map: tuple[Cell, ...] = ()
    simulated: int = 0
    bounded: int = 0
    complete: bool = True
    interrupted: bool = False

    @property
    def enough(self) -> bool:
        """Whether it is proven that no plan of those searched is better by more than :data:`PROVEN`."""
        return self.gap <= PROVEN and (self.complete or self.gap > 0.0)

    @property
    def opening(self) -> str:
        """That the search was interrupted, or has not shown that its best plan is the best."""
        told = ["Interrupted: the best plan so far."] if self.interrupted else []
        if not self.enough:
            far = f"another plan may be up to {percent(self.gap)} faster" if self.gap else "nothing is proven"
            remedy = "" if self.interrupted else "; give more with --budget"
            told.append(f"Not searched enough: {far}{remedy}.")
        return " ".join(told)

    @property
    def ceiling(self) -> tuple[str, ...]:
        """That rates are a ceiling, where no stack is stated; else empty."""
        return searched_under_the_ceiling(self.scenario)

    def shown_title(self) -> str:
        return self.scenario.name

    def shown_plans(self) -> Iterable[tuple[str, PlanResult]]:
        return [(found.candidate.name, found.result) for found in self.best]

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        unequal = self.question.work.unequal
        return unequal.total if unequal.tokens else self.batch * self.scenario.workload.sequence

    @property
    def asked(self) -> Scenario:
        """The scenario with the best plan alone, and the sequences that a replica then has."""
        return self.asked_of(self.best[0])

    def asked_of(self, found: Found) -> Scenario:
        """The scenario with one of the plans alone."""
        nodes = found.result.gpus // self.question.cluster.gpus_per_node
        scenario = self.scenario
        if nodes != self.question.cluster.nodes:
            scenario = at_nodes(scenario, self.question.cluster, nodes)
        return scenario_of(scenario, found.candidate)

    def with_questions(self) -> Planned:
        """The same, whose best plans know the scenarios that ask for them."""
        self.best = tuple(replace(found, asked=self.asked_of(found)) for found in self.best)
        return self

    @property
    def searched(self) -> Mapping[str, tuple[str, ...]]:
        """Keys that were chosen, beside degrees, and of some the values that were looked at."""
        return self._space.searched()

    @property
    def left(self) -> Mapping[str, tuple[str, ...]]:
        """Why other keys were left as they are stated → these keys, or values of keys that were searched."""
        return self._space.left()

    @property
    def _space(self) -> Space:
        question = self.question
        return Space(question.model, question.work, question.cluster, self.batch)

    def to_json(self) -> dict[str, Any]:
        """The answer as plain data (docs/planner.md has its schema)."""
        return document(self)


def document(planned: Planned) -> dict[str, Any]:
    """One object: the question, the plans that were simulated, and under ``plan`` what the planner says about them."""
    question = planned.question
    best = list(planned.best)
    front = [found for found in planned.front if found not in best]
    return {
        "schema": SCHEMA_VERSION,
        "scenario": planned.scenario.to_dict() | {"model": describe_model(question.model)},
        "cluster": describe_cluster(question.cluster, question.device),
        "plan": {
            "opening": planned.opening,
            "objective": planned.objective,
            "kept_limits": [
                *limit_texts(planned.kept.each),
                *([f"schemes={','.join(planned.kept.schemes)}"] if planned.kept.schemes else []),
            ],
            "batch_sequences": planned.batch,
            "tokens_per_step": planned.tokens,
            "best": [_entry(found, planned) for found in best],
            "front": [_entry(found, planned) for found in (*best, *front) if found in planned.front],
            "stated": [
                {"name": each.name, **({"error": each.error} if each.error else {}), **_rates(each.result)}
                for each in planned.stated
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
                    "what": each.what,
                    "nodes": each.nodes,
                    "sequence": each.sequence,
                    "batch_sequences": each.batch,
                    "ranking": [{"plan": name, "step_time_s": step_s} for name, step_s in each.ranking],
                    "does_not_fit": list(each.unfit),
                }
                for each in planned.sensitivity
            ],
            "limits": _limits(planned),
            "map": [
                {
                    "sequence": each.sequence,
                    "nodes": each.nodes,
                    "batch_sequences": each.batch,
                    "tsp": _side(each.folded),
                    "other": _side(each.other),
                    "proven": each.proven,
                    "complete": each.sure,
                }
                for each in planned.scheme_map
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
        "defaults": [*defaults_in_words(question, [found.candidate.plan for found in best]), *planned.ceiling],
    }


def _entry(found: Found, planned: Planned) -> dict[str, Any]:
    """A plan's entry of the contract, with the keys that ask for it again."""
    nodes = found.result.gpus // planned.question.cluster.gpus_per_node
    return {
        **found.result.to_json(),
        "keys": found.candidate.keys,
        "sequences_per_replica": found.candidate.job.work.sequences,
        "nodes": nodes,
        "bound_s": found.bound_s,
        "headroom_bytes": found.headroom_bytes,
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

    def limit(found: tuple[int, Lean] | None) -> dict[str, Any] | None:
        if found is None:
            return None
        value, lean = found
        return {"value": value, "plan": lean.name, "memory_peak_bytes": lean.bytes}

    every = planned.limits
    return {
        "longest_sequence": limit(every.longest_sequence),
        "largest_batch_sequences": limit(every.largest_batch),
        "fewest_nodes": limit(every.fewest_nodes),
    }
