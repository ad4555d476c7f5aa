"""Which nodes a job gets: one registered class a file."""

from __future__ import annotations

from . import at_random, best_fit, packed, rail_aligned, spread
from .base import Placement, shorthand

PLACEMENTS = Placement.registry

__all__ = ["PLACEMENTS", "Placement", "at_random", "best_fit", "packed", "rail_aligned", "shorthand", "spread"]
