"""One duration for all."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from ...base.units import duration
from ...traffic.kind import Floats
from .base import Durations, Span


class FixedDuration(Durations):
    """Every job runs equally long."""

    name = "fixed"
    of: Span = Field(description="of every job")

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        return np.full(count, self.of)

    def in_words(self) -> str:
        return duration(self.of)


Durations.registry.register(FixedDuration)
