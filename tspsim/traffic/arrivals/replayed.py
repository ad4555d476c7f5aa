"""Arrivals of a recorded trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

import numpy as np
from pydantic import Field

from ..kind import Floats
from ..traces import RequestTrace, with_times
from .base import HIGHEST, Arrivals, OpenLoop, Rates


class Replayed(OpenLoop):
    """Requests are sent at the times of a trace, at its own pace or stretched to a rate."""

    name = "trace"
    replays = True
    file: Annotated[str, Field(min_length=1, max_length=1000)] = Field(
        description="CSV or JSON lines, or the name of a catalog trace"
    )
    rate: Rates | None = Field(
        None,
        description="mean requests a second that the replayed times are stretched to; a list makes a curve; "
        "highest: the highest that keeps the slo; default: its own",
    )

    def trace(self) -> RequestTrace:
        """The recorded requests.

        Raises
        ------
        InputError
            The file has no times.
        """
        return with_times(self.file)

    def points(self) -> tuple[Self, ...]:
        if self.rate is None or self.rate == HIGHEST:
            return (self,)
        return tuple(self.model_copy(update={"rate": (rate,)}) for rate in self.rate)

    @property
    def label(self) -> Mapping[str, float]:
        return {} if self.rate is None or self.rate == HIGHEST else {"rate": float(self.rate[0])}

    @property
    def searches(self) -> bool:
        return self.rate == HIGHEST

    def at(self, rate: float) -> Self:
        return self.model_copy(update={"rate": (rate,)})

    @property
    def mean_rate(self) -> float | None:
        if self.rate == HIGHEST:
            return None
        return float(self.rate[0]) if self.rate is not None else self.trace().rate

    def times(self, random: np.random.Generator, count: int) -> Floats | None:
        trace = self.trace()
        times: Floats = trace.arrival_s[:count] - trace.arrival_s[0]
        if self.rate is not None and self.mean_rate is not None:
            span_s = float(times[-1])
            times = times * ((count - 1) / span_s / self.mean_rate if span_s else 0.0)
        return times

    def in_words(self) -> str:
        pace = "at its own pace" if self.rate is None else "at the highest rate within the bounds"
        if self.rate is not None and self.rate != HIGHEST:
            pace = f"stretched to {' or '.join(f'{rate:g}' for rate in self.rate)} requests/s"
        return f"requests arrive as in the trace {self.file}, {pace}{self.capped}"


Arrivals.registry.register(Replayed)
