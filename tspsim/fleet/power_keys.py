"""Power of a fleet and its cost, as a file states them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ..base.strict import OneOrSeveral
from ..base.units import Quantity, UsdPerKilowattHour, Watts
from ..scenario.section import Section, refuse

PositiveWatts = Annotated[float, Quantity("W", positive=True, examples=("1.2 MW", "800 kW"))]
HOURS = 24


class PowerKeys(Section):
    """Power of a fleet and its cost. GPUs of jobs draw ``busy``, or the power that their job states; others draw
    ``idle`` times ``busy``; nodes that are down draw nothing."""

    busy: Watts | None = Field(
        None,
        description="of a GPU at work with its share of server and fabric; default: the device file's all-in power",
    )
    idle: Annotated[float, Field(ge=0, le=1)] = Field(0.3, description="draw of an idle GPU over a busy one; assumed")
    pue: Annotated[float, Field(ge=1, le=3)] = Field(1.0, description="power of the building over that of the machines")
    cap: PositiveWatts | None = Field(
        None, description="of the machines, without the building: a job that would exceed it waits"
    )
    lowest: Annotated[float, Quantity("W", positive=True, examples=("400 W", "350 W"))] | None = Field(
        None,
        description="under a cap: least power limit of a GPU; clocks of all jobs are lowered that far before one "
        "waits. Default: clocks stay as they are",
    )
    electricity: Annotated[tuple[UsdPerKilowattHour, ...], Field(min_length=1, max_length=HOURS), OneOrSeveral()] = (
        Field((), validate_default=False, description="price of energy, or 24 of them by hour of day from midnight")
    )
    begins: Annotated[float, Field(ge=0, lt=24)] = Field(0.0, description="hour of day at which the fleet begins")

    @model_validator(mode="after")
    def _once(self) -> PowerKeys:
        if self.busy is None and self.pue > 1.0:
            raise refuse("all-in power has the building in it already; state busy, without it, beside pue")
        if len(self.electricity) not in (0, 1, HOURS):
            raise refuse(f"electricity: {len(self.electricity)} prices; state one, or {HOURS} by hour of day")
        if self.lowest is not None and self.cap is None:
            raise refuse("lowest says how far clocks go down under a cap; state cap")
        return self

    def in_words(self) -> tuple[str, ...]:
        """Assumptions, as a sentence."""
        capped = f"; no job starts that would exceed {self.cap / 1e6:.3g} MW" if self.cap is not None else ""
        if self.lowest is not None:
            capped += (
                f", with all GPUs of jobs limited alike, to {self.lowest:g} W at least: steps are simulated at "
                "such limits, jobs without a workload slow down as clocks do, and latencies of services are "
                "unchanged"
            )
        return (f"An idle GPU draws {self.idle:.0%} of a busy one, a node that is down nothing{capped} (`power`).",)
