"""A service whose replicas follow its load, as a file states it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ..base.strict import OneOrSeveral
from ..base.units import PositiveNumber, Quantity, Seconds
from ..scenario.section import Section, refuse
from ..traffic import OneKind
from .autoscalers import AUTOSCALERS, Autoscaler

PositiveSeconds = Annotated[float, Quantity("s", positive=True, examples=("1 min", "30 s"))]
HOURS = 24
Share = Annotated[float, Field(ge=0, le=1e3)]


class Replicas(Section):
    """Replicas of a service, each on nodes or GPUs of its own."""

    min: PositiveNumber = Field(1, description="fewest replicas")
    max: PositiveNumber = Field(description="most replicas")
    autoscaler: Annotated[Autoscaler, OneKind(AUTOSCALERS)] = Field(description="the rule between them")
    load: Annotated[tuple[Share, ...], Field(min_length=1, max_length=HOURS), OneOrSeveral()] = Field(
        (1.0,),
        description="requests/s relative to the traffic's: one share, or 24 by hour, from the fleet's first hour",
    )
    start: Seconds = Field(
        300.0, description="time from a replica's nodes to its first request (reading weights); 5 min, assumed"
    )
    every: PositiveSeconds = Field(60.0, description="time between two looks at the load")
    down_after: Seconds = Field(
        300.0,
        description="time for which fewer must suffice before one is removed; 5 min, the default of Kubernetes",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Replicas:
        if self.min > self.max:
            raise refuse(f"min: {self.min} is more than max: {self.max}")
        if len(self.load) not in (1, HOURS):
            raise refuse(f"load: {len(self.load)} shares; state one, or {HOURS} by hour of day")
        return self

    def share_at(self, since_s: float) -> float:
        """Load at a time after the begin of the fleet."""
        return self.load[int(since_s / 3600.0) % len(self.load)]
