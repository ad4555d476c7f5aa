"""One length for all."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from ...base.units import PositiveCount
from ..kind import Ints
from .base import Lengths


class FixedLengths(Lengths):
    """Every request has the same number of tokens."""

    name = "fixed"
    of: PositiveCount = Field(description="tokens")

    def draw(self, random: np.random.Generator, count: int, column: str) -> Ints:
        return np.full(count, self.of, dtype=np.int64)

    def in_words(self) -> str:
        return f"{self.of:,} tokens"


Lengths.registry.register(FixedLengths)
