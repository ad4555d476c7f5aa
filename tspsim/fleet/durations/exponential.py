"""Durations without memory, as in textbook queues."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from ...base.units import duration
from ...traffic.kind import Floats
from .base import Durations, Span


class Exponential(Durations):
    """Exponential with a stated mean."""

    name = "exponential"
    mean: Span = Field(description="of all jobs")

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        return random.exponential(self.mean, count)

    def in_words(self) -> str:
        return f"exponential, mean {duration(self.mean)}"


Durations.registry.register(Exponential)
