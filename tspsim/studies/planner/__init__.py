"""The planner: bounds every legal plan, simulates the promising ones, explains the best."""

from __future__ import annotations

from .answer import Planned
from .choose import AnyPlanner, planner_of
from .offers import OffersPlanned, OffersPlanner
from .planner import Planner
from .query import load_planned, read_budget
from .scheme_map import read_map
from .serving import ServingPlanned, ServingPlanner
from .traffic import TrafficPlanner
from .traffic_answer import TrafficPlanned

__all__ = [
    "AnyPlanner",
    "OffersPlanned",
    "OffersPlanner",
    "Planned",
    "Planner",
    "ServingPlanned",
    "ServingPlanner",
    "TrafficPlanned",
    "TrafficPlanner",
    "load_planned",
    "planner_of",
    "read_budget",
    "read_map",
]
