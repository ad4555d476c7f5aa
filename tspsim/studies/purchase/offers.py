"""A purchase as scenarios: one per offer, with the same work on other hardware."""

from __future__ import annotations

from collections.abc import Iterable

from ...scenario import Scenario
from ...scenario.project import Project


def expand(scenario: Scenario) -> list[Scenario]:
    """One scenario per offer, named after it; a scenario without offers stays itself."""
    if not scenario.offers:
        return [scenario]
    expanded = []
    for offer in scenario.offers:
        project = scenario.project
        if offer.fabric is not None:
            project = (project or Project()).model_copy(update={"fabric": offer.fabric})
        update = {
            "name": offer.name,
            "cluster": offer.cluster,
            "plans": tuple(plan for plan in scenario.plans if not offer.plans or plan.name in offer.plans),
            "prices": offer.prices or scenario.prices,
            "project": project,
            "offers": (),
        }
        expanded.append(scenario.model_copy(update=update))
    return expanded


def expand_all(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """:func:`expand` of each, in order."""
    return [offer for scenario in scenarios for offer in expand(scenario)]
