"""What a fleet has to reach, and on what hardware, as files state it: the question of how many nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool, model_validator

from ..base.units import PositiveNumber, Quantity
from ..scenario import ClusterInline, Prices
from ..scenario.section import Section, refuse

PositiveSeconds = Annotated[float, Quantity("s", positive=True, examples=("80 days", "2 h"))]
#: Draws of one question at most.
MOST_SEEDS = 100


class Needs(Section):
    """What has to hold, in every draw; see ``tspsim compare``."""

    done_by: PositiveSeconds | None = Field(None, description="all jobs are done by then")
    p95_wait: PositiveSeconds | None = Field(
        None, description="95 % of jobs wait no longer for their first start; who has not started waits until the end"
    )
    deadlines: StrictBool = Field(False, description="every job is done by its deadline")
    services: StrictBool = Field(False, description="every service keeps its bounds (`slo` of its traffic)")
    draws: Annotated[PositiveNumber, Field(le=MOST_SEEDS)] = Field(
        5, description="seeds: the fleet's and those after it"
    )

    @model_validator(mode="after")
    def _something(self) -> Needs:
        if self.done_by is None and self.p95_wait is None and not self.deadlines and not self.services:
            raise refuse("needs something: done_by, p95_wait, deadlines or services")
        return self


class FleetOffer(Section):
    """Hardware that could be bought for a fleet."""

    name: Annotated[str, Field(min_length=1, max_length=60)] = Field(description="how answers call it")
    cluster: ClusterInline = Field(description="its `nodes` are the most that are looked at")
    prices: Prices | None = Field(None, description="instead of the fleet's")
