"""Lower bounds of a plan's step: the longest path through the programs of one rank, without events.

The planner asks which plans are worth simulating, the tuner which schedules are.
"""

from __future__ import annotations

from .effort import CHECK_S, MEMORY_S, Effort
from .lower_bound import LowerBound
from .replicas import Division
from .stages import Outline

__all__ = ["CHECK_S", "MEMORY_S", "Division", "Effort", "LowerBound", "Outline"]
