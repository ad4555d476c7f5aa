"""How long jobs of a class run: one registered class a file."""

from __future__ import annotations

from . import exponential, fixed, lognormal
from .base import Durations, shorthand

DURATIONS = Durations.registry

__all__ = ["DURATIONS", "Durations", "exponential", "fixed", "lognormal", "shorthand"]
