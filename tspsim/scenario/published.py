"""What somebody measured of a scenario's own question: points that its figures are drawn beside.

They change no answer. Whoever states them says where they are from, and that the question is the same: model, GPUs,
engine, lengths, how requests come.
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
#: Of a point, what was measured under its load.
FIGURES = ("tokens_per_s_per_user", "tokens_per_s_per_gpu", "ttft", "tpot")
MOST_POINTS = 1000


class PublishedPoint(Section):
    """Means of one measured run."""

    concurrency: PositiveNumber | None = Field(None, description="clients of a closed loop")
    rate: Rate | None = Field(None, description="else: requests that come")
    tokens_per_s_per_user: PositiveFloat | None = Field(None, description="output tokens; default: 1 / tpot")
    tokens_per_s_per_gpu: PositiveFloat | None = Field(None, description="output tokens, over all GPUs")
    ttft: PositiveSeconds | None = Field(None, description="to the first token, mean")
    tpot: PositiveSeconds | None = Field(None, description="a token after the first, mean")

    @model_validator(mode="after")
    def _of_one_load(self) -> PublishedPoint:
        if (self.concurrency is None) == (self.rate is None):
            raise refuse("a point is of one load; state concurrency or rate")
        if all(getattr(self, figure) is None for figure in FIGURES):
            raise refuse(f"says nothing that was measured; state {either(FIGURES)}")
        return self

    @property
    def load(self) -> float:
        """Requests at once, or requests/s."""
        return float(self.rate if self.concurrency is None else self.concurrency)  # type: ignore[arg-type]

    @property
    def per_user(self) -> float | None:
        """Output tokens/s per user."""
        if self.tokens_per_s_per_user is None and self.tpot is not None:
            return 1.0 / self.tpot
        return self.tokens_per_s_per_user


class PublishedRuns(Section):
    """Runs of one machine that somebody published."""

    name: Name = Field(description="of them in figures: the machine, or the plan")
    source: Annotated[str, Field(min_length=1, max_length=500)] = Field(description="who measured them, and when")
    points: Annotated[tuple[PublishedPoint, ...], Field(min_length=1, max_length=MOST_POINTS)] = Field(
        description="what was measured, an entry a load"
    )
