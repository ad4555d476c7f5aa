"""How many of a scenario's own machines its project takes, in words."""

from __future__ import annotations

from collections.abc import Iterator

from ...question import look_up
from ...result import Result
from ...units import digits
from .costs import rates_of
from .service import asks, nearest_of, service_of


def machines_in_words(result: Result) -> Iterator[str]:
    """A sentence on the project's users and requests, where some are stated."""
    scenario = result.asked
    if scenario is None or scenario.project is None or not asks(scenario):
        return
    project = scenario.project
    stated = [f"{project.users:,} users" if project.users else ""]
    stated += [f"{digits(project.requests)} requests/s" if project.requests else ""]
    demand = " and ".join(filter(None, stated))
    question = look_up(scenario)
    rates = rates_of(scenario, question.cluster, question.device)
    service = service_of(scenario, result, rates)
    if service is None:
        yield f"No number of these machines serves {demand} within the bounds ({nearest_of(scenario, result)})."
    else:
        yield f"{demand} take, {service.in_words(scenario.name, rates.basis)}"
