"""Gamma-distributed gaps: arrivals more bursty, or more even, than a Poisson process.

vLLM's benchmark calls the shape of the distribution ``burstiness``: 1 is a Poisson process, less is more bursty. The
coefficient of variation of the gaps is 1/√shape.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from ...base.strict import refuse
from ..kind import Floats
from .base import Arrivals, Renewal


class Gamma(Renewal):
    """Gaps with a gamma distribution."""

    name = "gamma"
    burstiness: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="shape of the gaps: 1 is Poisson, less is more bursty; or state cv"
    )
    cv: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        None, description="standard deviation of the gaps over their mean: 1/√burstiness"
    )

    @model_validator(mode="after")
    def _one_shape(self) -> Gamma:
        if (self.burstiness is None) == (self.cv is None):
            raise refuse("state burstiness or cv, one of the two")
        return self

    @property
    def shape(self) -> float:
        """Shape of the gamma distribution."""
        return self.burstiness if self.burstiness is not None else float(self.cv or 1.0) ** -2.0

    def gaps(self, random: np.random.Generator, count: int) -> Floats:
        return random.gamma(self.shape, 1.0 / self.shape, count)

    def in_words(self) -> str:
        spread = self.shape**-0.5
        return f"requests arrive at {self.rates_in_words}, gaps gamma-distributed with a variation of {spread:.3g}" + (
            self.capped
        )


Arrivals.registry.register(Gamma)
