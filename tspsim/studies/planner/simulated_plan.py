"""A simulated plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...scenario import Scenario
from ...step.result import PlanResult
from .candidate import Candidate


@dataclass(frozen=True)
class SimulatedPlan:
    """A simulated plan, and the bound it was chosen by."""

    candidate: Candidate
    result: PlanResult
    bound_s: float
    #: The scenario with only this plan, once an answer names it.
    source_scenario: Scenario | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def step_s(self) -> float:
        return self.result.step_time_s

    @property
    def headroom_bytes(self) -> float:
        return self.result.memory.capacity_bytes - self.result.memory.peak_bytes

    @property
    def rank(self) -> tuple[float, tuple[int, ...], str]:
        """Faster first; of equals the simpler."""
        return self.step_s, self.candidate.order, self.candidate.name
