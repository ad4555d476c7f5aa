"""All requests at the start: offline work, and what benchmarks call an infinite rate."""

from __future__ import annotations

import numpy as np

from ..kind import Floats
from .base import Arrivals, OpenLoop


class AtOnce(OpenLoop):
    """Every request is sent at time 0."""

    name = "at_once"

    def times(self, random: np.random.Generator, count: int) -> Floats | None:
        return np.zeros(count)

    def in_words(self) -> str:
        return f"all requests are sent at the start{self.capped}"


Arrivals.registry.register(AtOnce)
