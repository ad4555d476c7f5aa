"""A step that ran: what of it an answer is made of."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.core import Submission
from .metrics import Breakdown


@dataclass(frozen=True)
class StepRun:
    """A plan's step that ran: ``makespan_s`` is all of it, ``between_s`` of that passes between two steps."""

    submission: Submission
    makespan_s: float
    between_s: float
    parts: Breakdown
