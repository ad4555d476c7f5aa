"""The best plans of a step on every offer: one planner each, each with the whole budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ...base.display import ShownPlans
from ...base.errors import InfeasibleError, InputError
from ...scenario import Scenario
from ...step.result import SCHEMA_VERSION, PlanResult
from ..purchase.offers import expand
from .answer import Planned, document
from .found import Found
from .planner import Planner

#: Called with a sentence and the share that is done.
Progress = Callable[[str, float], None]
#: Makes the planner of one offer's scenario, told how far it is.
Make = Callable[[Scenario, Progress | None], Planner]


@dataclass(frozen=True)
class Offered:
    """One offer with what was found for it; ``error``: why nothing was."""

    name: str
    planned: Planned | None
    error: str = ""


@dataclass(frozen=True, repr=False)
class OffersPlanned(ShownPlans):
    """What was found on every offer, in their order."""

    scenario: Scenario
    offers: tuple[Offered, ...]
    interrupted: bool = False

    def shown_title(self) -> str:
        return self.scenario.name

    def shown_plans(self) -> Iterable[tuple[str, PlanResult]]:
        return [(f"{offer}: {name}", plan) for offer, each in self.found for name, plan in each.shown_plans()]

    @property
    def opening(self) -> str:
        return " ".join(f"{name}: {planned.opening}" for name, planned in self.found if planned.opening)

    @property
    def found(self) -> list[tuple[str, Planned]]:
        """Offers that have plans."""
        return [(each.name, each.planned) for each in self.offers if each.planned is not None]

    @property
    def best(self) -> tuple[Found, ...]:
        """The best plan of every offer, most tokens/s first."""
        every = [planned.best[0] for _, planned in self.found]
        return tuple(sorted(every, key=lambda found: -found.result.tokens_per_s))

    @property
    def asked(self) -> Scenario:
        """The scenario with the best plan of every offer, each on its own; raises InputError where batches differ."""
        batches = {planned.batch for _, planned in self.found}
        if len(batches) > 1:
            told = " and ".join(f"{batch:,}" for batch in sorted(batches))
            raise InputError(
                f"offers have {told} sequences a step; state global_batch for one file of them all", key="workload"
            )
        plans = {planned.asked.plans[0].name: planned.asked.plans[0] for _, planned in self.found}
        own = {name: planned.asked.plans[0].name for name, planned in self.found}
        offers = [
            offer.model_copy(update={"plans": (own[offer.name],)})
            for offer in self.scenario.offers
            if offer.name in own
        ]
        workload = self.scenario.workload.model_copy(update={"global_batch": batches.pop(), "sequences_per_replica": 1})
        workload.model_fields_set.discard("sequences_per_replica")  # what is not stated is not written
        return self.scenario.model_copy(
            update={"workload": workload, "plans": tuple(plans.values()), "offers": tuple(offers)}
        )

    def to_json(self) -> dict[str, Any]:
        """One object an offer, as :func:`~.answer.document` has it; ``error`` where nothing was found."""
        entries = [
            {"name": each.name, **(document(each.planned) if each.planned is not None else {"error": each.error})}
            for each in self.offers
        ]
        return {"schema": SCHEMA_VERSION, "scenario": self.scenario.to_dict(), "offers": entries}


class OffersPlanner:
    """Asks and answers for every offer of a scenario.

    Parameters
    ----------
    scenario
        With offers; its plans are the stated ones of those that name them.
    make
        Makes the planner of one.
    progress
        Told how far all of it is.
    """

    def __init__(self, scenario: Scenario, make: Make, progress: Progress | None = None) -> None:
        self.scenario, self.make, self.progress = scenario, make, progress

    def run(self) -> OffersPlanned:
        """Every offer, and what there is to say about it; Ctrl-C ends with those that are done.

        Raises
        ------
        InfeasibleError
            No plan fits any of them, or keeps the limits.
        """
        found: list[Offered] = []
        interrupted, scenarios = False, expand(self.scenario)
        for number, scenario in enumerate(scenarios):
            try:
                told = part_of(self.progress, scenario.name, number, len(scenarios))
                planned = self.make(scenario, told).run()
                found.append(Offered(scenario.name, planned))
                interrupted = planned.interrupted
            except InfeasibleError as error:
                found.append(Offered(scenario.name, None, str(error)))
            except KeyboardInterrupt:
                interrupted = True
            if interrupted:
                break
        if not any(each.planned for each in found):
            if interrupted:
                raise KeyboardInterrupt
            raise InfeasibleError("; ".join(f"{each.name}: {each.error}" for each in found))
        return OffersPlanned(self.scenario, tuple(found), interrupted)


def part_of(progress: Progress | None, name: str, number: int, of: int) -> Progress | None:
    """The progress of task ``number`` of ``of``, as progress of them all."""
    if progress is None:
        return None
    return lambda words, share: progress(f"{name}: {words}", (number + share) / of)
