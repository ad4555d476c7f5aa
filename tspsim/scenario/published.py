"""Published measurements of a scenario's question, drawn in its figures.

They change no answer. Whoever states them gives their source and vouches that the question is the same: model, GPUs,
engine, lengths and arrivals.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ..base.errors import either
from ..base.units import PositiveNumber, Quantity
from .section import Name, Section, refuse

PositiveSeconds = Annotated[float, Quantity("s", positive=True)]
Rate = Annotated[float, Quantity("requests/s", positive=True)]
PositiveFloat = Annotated[float, Field(gt=0, lt=1e12, allow_inf_nan=False)]
#: Figures of a point.
FIGURES = ("tokens_per_s_per_user", "tokens_per_s_per_gpu", "ttft", "tpot")
MOST_POINTS = 1000


class PublishedPoint(Section):
    """Means of one measured run."""

    concurrency: PositiveNumber | None = Field(None, description="clients of a closed loop")
    rate: Rate | None = Field(None, description="otherwise: requests/s that arrive")
    tokens_per_s_per_user: PositiveFloat | None = Field(None, description="output tokens; default: 1 / tpot")
    tokens_per_s_per_gpu: PositiveFloat | None = Field(None, description="output tokens, over all GPUs")
    ttft: PositiveSeconds | None = Field(None, description="mean time to the first token")
    tpot: PositiveSeconds | None = Field(None, description="mean time per output token after the first")

    @model_validator(mode="after")
    def _of_one_load(self) -> PublishedPoint:
        if (self.concurrency is None) == (self.rate is None):
            raise refuse("a point is of one load; state concurrency or rate")
        if all(getattr(self, figure) is None for figure in FIGURES):
            raise refuse(f"says nothing that was measured; state {either(FIGURES)}")
        return self

    @property
    def load(self) -> float:
        """Concurrent requests, or requests/s."""
        return float(self.rate if self.concurrency is None else self.concurrency)  # type: ignore[arg-type]

    @property
    def per_user(self) -> float | None:
        """Output tokens/s per user."""
        if self.tokens_per_s_per_user is None and self.tpot is not None:
            return 1.0 / self.tpot
        return self.tokens_per_s_per_user


class PublishedRuns(Section):
    """Published runs of one machine."""

    name: Name = Field(description="their name in figures: the machine, or the plan")
    source: Annotated[str, Field(min_length=1, max_length=500)] = Field(description="who measured them, and when")
    points: Annotated[tuple[PublishedPoint, ...], Field(min_length=1, max_length=MOST_POINTS)] = Field(
        description="measured points, one per load"
    )
