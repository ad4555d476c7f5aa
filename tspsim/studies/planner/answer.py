"""What the planner answers: the best plans, what is known about the others, and where the best are not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...question import Question
from ...result import PlanResult
from ...scenario import Scenario
from .branch import Found
from .limits import Limits
from .scheme_map import Cell
from .sensitivity import Elsewhere
from .why import Part


@dataclass(frozen=True)
class Stated:
    """A plan of the scenario itself, at the same batch."""

    name: str
    result: PlanResult | None
    error: str = ""


@dataclass
class Planned:
    """What the planner found.

    Attributes
    ----------
    batch
        Sequences of a step, the same for every plan.
    best
        The best plans, best first; ``next_bound`` says what those that were not simulated cannot undercut.
    gap
        By what share a plan that was not simulated may be better than the best; 0: none can.
    front
        Plans that no other simulated one beats in rate, tokens a dollar and memory left.
    """

    scenario: Scenario
    question: Question
    batch: int
    objective: str
    top: int
    best: tuple[Found, ...] = ()
    next_bound_s: float = math.inf
    gap: float = 0.0
    stated: tuple[Stated, ...] = ()
    front: tuple[Found, ...] = ()
    why: tuple[Part, ...] = ()
    rival: str = ""
    elsewhere: tuple[Elsewhere, ...] = ()
    limits: Limits | None = None
    territory: tuple[Cell, ...] = ()
    simulated: int = 0
    bounded: int = 0
    complete: bool = True
    interrupted: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.scenario.workload.sequence

    def to_json(self) -> dict[str, Any]:
        from .document import document

        return document(self)
