"""What a plan's step takes at least, from the longest path through the programs of one rank: no event is simulated.

The planner asks it which plans are worth simulating, the tuner which schedules are.
"""

from __future__ import annotations

from .effort import CHECK_S, MEMORY_S, Effort
from .lower_bound import LowerBound
from .replicas import Division
from .stages import Outline

__all__ = ["CHECK_S", "MEMORY_S", "Division", "Effort", "LowerBound", "Outline"]
