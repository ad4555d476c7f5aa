"""When requests are sent: one registered class a file."""

from __future__ import annotations

from . import at_once, closed, fixed, gamma, poisson, replayed
from .base import Arrivals

ARRIVALS = Arrivals.registry

__all__ = ["ARRIVALS", "Arrivals", "at_once", "closed", "fixed", "gamma", "poisson", "replayed"]
