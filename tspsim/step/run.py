"""A step that was simulated, as answers use it."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.core import Submission
from .metrics import Breakdown


@dataclass(frozen=True)
class StepRun:
    """A simulated step of a plan: ``makespan_s`` in all, of which ``between_s`` passes between two steps."""

    submission: Submission
    makespan_s: float
    between_s: float
    parts: Breakdown
