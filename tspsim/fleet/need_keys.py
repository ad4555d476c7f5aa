"""Requirements of a fleet, and the hardware offered, as files state them: the question of how many nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StrictBool, model_validator

from ..base.units import PositiveNumber, Quantity
from ..scenario import ClusterInline, Prices
from ..scenario.section import Section, refuse

PositiveSeconds = Annotated[float, Quantity("s", positive=True, examples=("80 days", "2 h"))]
#: Most draws of one question.
MOST_SEEDS = 100


class Needs(Section):
    """Requirements that must hold in every draw; see ``tspsim compare``."""

    done_by: PositiveSeconds | None = Field(None, description="all jobs are done by then")
    p95_wait: PositiveSeconds | None = Field(
        None, description="95 % of jobs wait no longer for their first start; jobs that never start wait until the end"
    )
    deadlines: StrictBool = Field(False, description="every job is done by its deadline")
    services: StrictBool = Field(False, description="every service keeps its bounds (`slo` of its traffic)")
    draws: Annotated[PositiveNumber, Field(le=MOST_SEEDS)] = Field(
        5, description="number of seeds, from the fleet's own on"
    )

    @model_validator(mode="after")
    def _something(self) -> Needs:
        if self.done_by is None and self.p95_wait is None and not self.deadlines and not self.services:
            raise refuse("needs something: done_by, p95_wait, deadlines or services")
        return self


class FleetOffer(Section):
    """Hardware offered for a fleet."""

    name: Annotated[str, Field(min_length=1, max_length=60)] = Field(description="its name in answers")
    cluster: ClusterInline = Field(description="its `nodes` are the most that are tried")
    prices: Prices | None = Field(None, description="instead of the fleet's")
