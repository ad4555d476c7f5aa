"""The planner: every legal plan bounded, the promising ones simulated, the best explained."""

from __future__ import annotations

from .planner import Planned, Planner, load_planned, read_budget
from .territory import read_map

__all__ = ["Planned", "Planner", "load_planned", "read_budget", "read_map"]
