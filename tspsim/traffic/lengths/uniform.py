"""Lengths between two shares of a nominal one.

InferenceX draws from [0.8 n, n]; newer versions of vLLM's benchmark, with a range ratio of r, from
[n(1 − r), n(1 + r)]: ``from: 0.8`` is the first, ``{from: 0.2, to: 1.8}`` the second with r = 0.8.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from ...base.strict import refuse
from ...base.units import PositiveCount
from ..kind import Ints
from .base import Lengths

Share = Annotated[float, Field(ge=0, le=100)]


class Uniform(Lengths):
    """Whole numbers from ``from`` to ``to`` times ``of``, both included, equally likely."""

    name = "uniform"
    of: PositiveCount = Field(description="tokens")
    from_: Share = Field(alias="from", description="shortest over `of`")
    to: Share = Field(1.0, description="longest over `of`")

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.from_ > self.to:
            raise refuse(f"from: {self.from_:g} is more than to: {self.to:g}; state the shorter first")
        return self

    @property
    def ends(self) -> tuple[int, int]:
        """Shortest and longest length."""
        low = max(1, int(self.of * self.from_))
        return low, max(low, int(self.of * self.to))

    def draw(self, random: np.random.Generator, count: int, column: str) -> Ints:
        low, high = self.ends
        return random.integers(low, high + 1, count)

    def in_words(self) -> str:
        low, high = self.ends
        return f"{low:,} to {high:,} tokens, all as likely"


Lengths.registry.register(Uniform)
