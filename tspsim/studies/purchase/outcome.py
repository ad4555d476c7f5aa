"""The outcome of a run on a machine: days, GPU hours, dollars, energy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...fleet import FleetQuestion
from ...scenario import Scenario
from ...step.question import look_up
from ...step.result import Result
from .checkpoints import CheckpointCost, CheckpointSchedule
from .costs import OWNED, Rates, rates_of


@dataclass(frozen=True)
class PurchaseOutcome:
    """A run on an offer: its time, money by price basis, and energy (None: the power is unknown)."""

    run: CheckpointSchedule
    gpu_hours: float
    usd: Mapping[str, float]
    kwh: float | None

    @property
    def days(self) -> float:
        return self.run.elapsed_s / 86_400.0


def outcome_of(scenario: Scenario, gpus: int, rates: Rates, run: CheckpointSchedule) -> PurchaseOutcome:
    """The outcome of ``run`` at these rates. Electricity is added where the scenario states its price, but not to the
    ``owned`` basis, which includes it."""
    gpu_hours = gpus * run.elapsed_s / 3600.0
    kwh = None if rates.watts_per_gpu is None else gpu_hours * rates.watts_per_gpu / 1000.0
    electricity = scenario.prices.electricity
    extra = electricity * kwh if electricity is not None and kwh is not None else 0.0
    usd = {
        basis: gpu_hours * price + (extra if basis != OWNED else 0.0) for basis, price in rates.usd_per_gpu_hour.items()
    }
    return PurchaseOutcome(run, gpu_hours, usd, kwh)


def outcomes(scenario: Scenario, result: Result) -> dict[str, PurchaseOutcome]:
    """The outcome of the project's tokens on the scenario's own machine, for each plan that ran; empty without tokens,
    and for served requests."""
    project = scenario.project
    if project is None or project.tokens is None or scenario.traffic is not None or scenario.loop is not None:
        return {}
    question = look_up(scenario)
    rates = rates_of(scenario, question.cluster, question.device)
    by_plan = {}
    for plan in result.plans:
        if plan.ran:
            cost = CheckpointCost.of(plan, project.failures)
            run = cost.run(project.tokens, question.cluster.nodes, project.failures)
            by_plan[plan.name] = outcome_of(scenario, question.cluster.gpus, rates, run)
    return by_plan


def project_of(question: Scenario | FleetQuestion, answer: Any) -> dict[str, dict[str, Any]]:
    """Cost of a question's ``project`` on its own machine, for each plan that ran: ``days``, ``gpu_hours``, ``usd`` by
    basis, ``kwh``, and the ``run`` with its failures, as ``tspsim compare --json`` has them of offers. Empty where the
    question has no project.

    >>> import tspsim
    >>> work = {"model": "llama-3.1-8b", "pass": "forward", "sequence": "4Ki"}
    >>> asked = {"name": "a", "cluster": {"device": "h100"}, "workload": work, "plans": [{"name": "TP8", "tp": 8}]}
    >>> question = tspsim.load(asked | {"project": {"tokens": "1G"}})
    >>> sorted(project_of(question, tspsim.simulate(question))["TP8"])
    ['days', 'gpu_hours', 'kwh', 'run', 'usd']
    """
    if isinstance(question, FleetQuestion):
        return {}
    return {name: asdict(outcome) | {"days": outcome.days} for name, outcome in outcomes(question, answer).items()}
