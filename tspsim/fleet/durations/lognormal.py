"""Log-normal durations: many short jobs and few that run for weeks, as in logs of GPU clusters."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from ...base.strict import refuse
from ...base.units import duration
from ...traffic.kind import Floats
from .base import Durations, Span


class LogNormalDuration(Durations):
    """exp(normal(ln median, σ)), cut to ``cap``."""

    name = "lognormal"
    median: Span = Field(description="half of the jobs are shorter")
    sigma: Annotated[float, Field(ge=0, le=10)] = Field(description="deviation of the logarithm")
    cap: Span | None = Field(None, description="longer ones are cut to it")

    @model_validator(mode="after")
    def _capped_above(self) -> LogNormalDuration:
        if self.cap is not None and self.cap < self.median:
            raise refuse(f"cap {duration(self.cap)} is less than median {duration(self.median)}")
        return self

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        drawn = np.exp(random.normal(math.log(self.median), self.sigma, count))
        return np.minimum(drawn, self.cap) if self.cap is not None else drawn

    def in_words(self) -> str:
        cut = f", cut to {duration(self.cap)}" if self.cap is not None else ""
        return f"log-normal, median {duration(self.median)}, σ {self.sigma:.3g}{cut}"


Durations.registry.register(LogNormalDuration)
