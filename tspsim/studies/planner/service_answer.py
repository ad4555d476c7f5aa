"""The answer of a search for serving plans, for a step or for requests, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ...base.display import ShownPlans
from ...base.errors import InfeasibleError, InputError
from ...scenario import PlanSpec, Scenario
from ...step.description import describe_cluster, describe_model, provenance
from ...step.question import Question
from ...step.result import SCHEMA_VERSION, PlanResult
from ...step.statements import defaults_in_words


@dataclass(frozen=True)
class SimulatedService:
    """A simulated plan: its keys in a scenario, and the scenario with only this plan, under its load."""

    keys: Mapping[str, Any]
    result: PlanResult
    source_scenario: Scenario = field(repr=False)

    @property
    def name(self) -> str:
        return self.result.name

    def to_json(self) -> dict[str, Any]:
        """A plan's entry of the contract, with its keys in a scenario."""
        return self.result.to_json() | {"keys": dict(self.keys)}


Service = TypeVar("Service", bound=SimulatedService)


@dataclass(repr=False)
class ServicePlanned(ShownPlans, Generic[Service]):
    """The planner's answer for serving."""

    scenario: Scenario
    question: Question
    objective: str
    #: The keys that were searched.
    searched: tuple[str, ...]
    #: The best plans, best first, each once.
    best: tuple[Service, ...] = ()
    #: Plans that no other beats in rate and in latency.
    front: tuple[Service, ...] = ()
    stated: tuple[Service, ...] = ()
    #: Plans by name, with the reason.
    refused: tuple[tuple[str, str], ...] = ()
    simulated: int = 0
    bounded: int = 0
    #: False where time ran out.
    complete: bool = True
    interrupted: bool = False
    #: All simulated plans that may be the best.
    contenders: list[Service] = field(default_factory=list, repr=False)
    #: An error of a plan that the scenario states.
    wrong: InputError | None = field(default=None, repr=False)

    def shown_title(self) -> str:
        return self.scenario.name

    def shown_plans(self) -> Iterable[tuple[str, PlanResult]]:
        return [(service.name, service.result) for service in self.best]

    def plans_to_json(self) -> dict[str, Any]:
        """The limits, and the plans by list."""
        raise NotImplementedError

    def why_none(self) -> str:
        """The message where no plan was simulated."""
        return f"no plan fits; {self.refused[0][0]}: {self.refused[0][1]}" if self.refused else "no plan is legal"

    def check_any(self) -> None:
        """Raise InfeasibleError where no plan was simulated, or the error of a stated one; KeyboardInterrupt if the
        search was interrupted before."""
        if not self.contenders:
            raise KeyboardInterrupt if self.interrupted else self.wrong or InfeasibleError(self.why_none())

    def to_json(self) -> dict[str, Any]:
        """The answer as plain data (docs/planner.md)."""
        return {
            "schema": SCHEMA_VERSION,
            "scenario": self.scenario.to_dict() | {"model": describe_model(self.question.model)},
            "cluster": describe_cluster(self.question.cluster, self.question.device),
            "plan": {
                "objective": self.objective,
                **self.plans_to_json(),
                "refused": [{"name": name, "error": error} for name, error in self.refused],
                "search": {
                    "searched": list(self.searched),
                    "simulated": self.simulated,
                    "bounded": self.bounded,
                    "complete": self.complete,
                    "interrupted": self.interrupted,
                },
            },
            "provenance": [dict(row) for row in provenance(self.question)],
            "defaults": list(defaults_in_words(self.question, self.question.plans)),
        }


def stated_keys(plan: PlanSpec) -> dict[str, Any]:
    """The keys that a scenario states of a plan."""
    return {key: value for key, value in plan.model_dump(exclude_unset=True).items() if value is not None}
