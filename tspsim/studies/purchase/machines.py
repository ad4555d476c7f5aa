"""The number of a scenario's own machines that its project needs, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ...base.units import digits
from ...scenario import Scenario
from ...step.question import look_up
from ...step.result import PlanResult, Result
from .costs import rates_of
from .service import asks, nearest_of, service_of


def machines_in_words(result: Result) -> Iterator[str]:
    """A sentence on the project's users and requests, where some are stated."""
    if result.source_scenario is not None:
        sentence = _machines(result.source_scenario.name, result.source_scenario, result.plans)
        yield from [sentence] if sentence else []


def machines_of(name: str, scenario: Scenario, plan: PlanResult) -> str:
    """The sentence for one plan of an offer; empty where the project has no users or requests."""
    return _machines(name, scenario, (plan,))


def _machines(name: str, scenario: Scenario, plans: tuple[PlanResult, ...]) -> str:
    project = scenario.project
    if project is None or not asks(scenario):
        return ""
    stated = [f"{project.users:,} users" if project.users else ""]
    stated += [f"{digits(project.requests)} requests/s" if project.requests else ""]
    demand = " and ".join(filter(None, stated))
    question = look_up(scenario)
    rates = rates_of(scenario, question.cluster, question.device)
    cluster = {"gpus": question.cluster.gpus, "nodes": question.cluster.nodes}
    result = Result({}, cluster, plans)
    service = service_of(scenario, result, rates)
    if service is None:
        return f"No number of these machines serves {demand} within the bounds ({nearest_of(scenario, result)})."
    return f"{demand} take, {service.in_words(name, rates.basis)}"
