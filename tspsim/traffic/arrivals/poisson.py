"""Poisson arrivals: many independent clients."""

from __future__ import annotations

import numpy as np

from ..kind import Floats
from .base import Arrivals, Renewal


class Poisson(Renewal):
    """Exponential gaps."""

    name = "poisson"

    def gaps(self, random: np.random.Generator, count: int) -> Floats:
        return random.exponential(1.0, count)

    def in_words(self) -> str:
        return f"requests arrive as a Poisson process at {self.rates_in_words}{self.capped}"


Arrivals.registry.register(Poisson)
