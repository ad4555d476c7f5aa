"""Log-normal lengths, as measured of real conversations."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from ...base.strict import refuse
from ...base.units import PositiveCount
from ..kind import Ints
from .base import Lengths

Positive = Annotated[float, Field(gt=0, le=1e9)]


class LogNormalLengths(Lengths):
    """exp(normal(μ, σ)), rounded up to whole tokens and cut to ``cap``.

    One of ``mu`` (= ln median), ``median`` and ``mean`` (= exp(μ + σ²/2)) sets the location; median and mean together
    set σ as well.
    """

    name = "lognormal"
    mu: Annotated[float, Field(ge=-20, le=20)] | None = Field(None, description="mean of the logarithm")
    sigma: Annotated[float, Field(ge=0, le=10)] | None = Field(None, description="deviation of the logarithm")
    median: Positive | None = Field(None, description="tokens; instead of mu")
    mean: Positive | None = Field(None, description="tokens, before the cap; instead of mu, or beside median of sigma")
    cap: PositiveCount | None = Field(None, description="longer ones are cut to so many tokens")
    floor: PositiveCount = Field(1, description="shorter ones are stretched to so many tokens")

    @model_validator(mode="after")
    def _settled(self) -> LogNormalLengths:
        placed = [name for name in ("mu", "median", "mean") if getattr(self, name) is not None]
        if self.sigma is None:
            if placed != ["median", "mean"]:
                raise refuse("needs sigma beside mu, median or mean; or median and mean")
            if float(self.mean or 0.0) < float(self.median or 0.0):
                raise refuse(f"mean {self.mean:g} is less than median {self.median:g}; a log-normal never is so")
        elif len(placed) != 1:
            raise refuse("needs one of mu, median and mean beside sigma")
        if self.cap is not None and self.cap < self.floor:
            raise refuse(f"cap {self.cap} is less than floor {self.floor}")
        return self

    @property
    def shape(self) -> tuple[float, float]:
        """(μ, σ)."""
        if self.sigma is None:
            assert self.mean is not None and self.median is not None
            return math.log(self.median), math.sqrt(2.0 * math.log(self.mean / self.median))
        if self.mean is not None:
            return math.log(self.mean) - self.sigma**2 / 2.0, self.sigma
        return (self.mu if self.mu is not None else math.log(self.median or 1.0)), self.sigma

    def draw(self, random: np.random.Generator, count: int, column: str) -> Ints:
        mu, sigma = self.shape
        tokens = np.ceil(np.exp(random.normal(mu, abs(sigma), count)))
        return np.clip(tokens, self.floor, self.cap or 2**40).astype(np.int64)

    def in_words(self) -> str:
        mu, sigma = self.shape
        cut = f", cut to {self.cap:,}" if self.cap else ""
        return f"log-normal, median {math.exp(mu):,.0f} tokens, σ {sigma:.3g}{cut}"


Lengths.registry.register(LogNormalLengths)
