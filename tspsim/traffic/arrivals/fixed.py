"""Arrivals at a fixed interval."""

from __future__ import annotations

import numpy as np

from ..kind import Floats
from .base import Arrivals, Renewal


class FixedInterval(Renewal):
    """One request every 1/rate seconds."""

    name = "fixed"

    def gaps(self, random: np.random.Generator, count: int) -> Floats:
        return np.ones(count)

    def in_words(self) -> str:
        return f"requests arrive at a fixed interval, {self.rates_in_words}{self.capped}"


Arrivals.registry.register(FixedInterval)
