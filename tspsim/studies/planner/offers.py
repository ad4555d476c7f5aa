"""The best plans of a step on every offer: one planner per offer, each with the whole budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...base.display import Progress, ShownPlans
from ...base.errors import InfeasibleError, InputError
from ...scenario import Scenario
from ...step.result import SCHEMA_VERSION, PlanResult
from ..purchase.offers import expand
from .answer import Planned, document
from .planner import Planner
from .simulated_plan import SimulatedPlan

#: Builds the planner of one offer's scenario, with its progress callback.
Make = Callable[[Scenario, Progress | None], Planner]


@dataclass(frozen=True)
class OfferAnswer:
    """One offer with its answer; ``error``: why it has none."""

    name: str
    planned: Planned | None
    error: str = ""


@dataclass(frozen=True, repr=False)
class OffersPlanned(ShownPlans):
    """The answers of all offers, in their order."""

    scenario: Scenario
    offers: tuple[OfferAnswer, ...]
    interrupted: bool = False

    def shown_title(self) -> str:
        return self.scenario.name

    def shown_plans(self) -> Iterable[tuple[str, PlanResult]]:
        return [(f"{offer}: {name}", plan) for offer, planned in self.answered for name, plan in planned.shown_plans()]

    @property
    def opening(self) -> str:
        return " ".join(f"{name}: {planned.opening}" for name, planned in self.answered if planned.opening)

    @property
    def answered(self) -> list[tuple[str, Planned]]:
        """Offers that have plans."""
        return [(offer.name, offer.planned) for offer in self.offers if offer.planned is not None]

    @property
    def best(self) -> tuple[SimulatedPlan, ...]:
        """The best plan of every offer, most tokens/s first."""
        every = [planned.best[0] for _, planned in self.answered]
        return tuple(sorted(every, key=lambda plan: -plan.result.tokens_per_s))

    @property
    def source_scenario(self) -> Scenario:
        """The scenario with the best plan of every offer, each on its own offer. Raises InputError where batches
        differ."""
        batches = {planned.batch for _, planned in self.answered}
        if len(batches) > 1:
            sizes = " and ".join(f"{batch:,}" for batch in sorted(batches))
            raise InputError(
                f"offers have {sizes} sequences a step; state global_batch for one scenario with all of them",
                key="workload",
            )
        plans = {
            planned.source_scenario.plans[0].name: planned.source_scenario.plans[0] for _, planned in self.answered
        }
        own = {name: planned.source_scenario.plans[0].name for name, planned in self.answered}
        offers = [
            offer.model_copy(update={"plans": (own[offer.name],)})
            for offer in self.scenario.offers
            if offer.name in own
        ]
        workload = self.scenario.workload.model_copy(update={"global_batch": batches.pop(), "sequences_per_replica": 1})
        workload.model_fields_set.discard("sequences_per_replica")  # a field that is not stated is not written
        return self.scenario.model_copy(
            update={"workload": workload, "plans": tuple(plans.values()), "offers": tuple(offers)}
        )

    def to_json(self) -> dict[str, Any]:
        """One object per offer, as :func:`~.answer.document` has it; ``error`` where it has no plan."""
        entries = [
            {"name": offer.name, **(document(offer.planned) if offer.planned is not None else {"error": offer.error})}
            for offer in self.offers
        ]
        return {"schema": SCHEMA_VERSION, "scenario": self.scenario.to_dict(), "offers": entries}


class OffersPlanner:
    """Plans every offer of a scenario.

    Parameters
    ----------
    scenario
        With offers; its stated plans count for the offers that name them.
    make
        Builds the planner of one offer.
    progress
        Called with the progress of the whole search.
    """

    def __init__(self, scenario: Scenario, make: Make, progress: Progress | None = None) -> None:
        self.scenario, self.make, self.progress = scenario, make, progress

    def run(self) -> OffersPlanned:
        """Every offer and its plans; Ctrl-C ends with the finished offers.

        Raises
        ------
        InfeasibleError
            No plan fits any offer, or keeps the limits.
        """
        offers: list[OfferAnswer] = []
        interrupted, scenarios = False, expand(self.scenario)
        for number, scenario in enumerate(scenarios):
            try:
                part_progress = part_of(self.progress, scenario.name, number, len(scenarios))
                planned = self.make(scenario, part_progress).run()
                offers.append(OfferAnswer(scenario.name, planned))
                interrupted = planned.interrupted
            except InfeasibleError as error:
                offers.append(OfferAnswer(scenario.name, None, str(error)))
            except KeyboardInterrupt:
                interrupted = True
            if interrupted:
                break
        if not any(offer.planned for offer in offers):
            if interrupted:
                raise KeyboardInterrupt
            raise InfeasibleError("; ".join(f"{offer.name}: {offer.error}" for offer in offers))
        return OffersPlanned(self.scenario, tuple(offers), interrupted)


def part_of(progress: Progress | None, name: str, number: int, of: int) -> Progress | None:
    """Progress of task ``number`` of ``of``, as progress of all tasks."""
    if progress is None:
        return None
    return lambda words, share: progress(f"{name}: {words}", (number + share) / of)
