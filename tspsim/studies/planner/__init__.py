"""The planner: every legal plan bounded, the promising ones simulated, the best explained."""

from __future__ import annotations

from .answer import Planned
from .planner import Planner
from .query import load_planned, read_budget
from .scheme_map import read_map
from .serving import ServingPlanned, ServingPlanner

__all__ = ["Planned", "Planner", "ServingPlanned", "ServingPlanner", "load_planned", "read_budget", "read_map"]
