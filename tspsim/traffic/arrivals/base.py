"""When requests are sent: the family of arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field

from ...base.registry import Registry
from ...base.strict import OneOrSeveral, one_or_several, refuse
from ...base.units import PositiveNumber
from ..kind import Floats, Kind, Rate
from ..traces import RequestTrace

#: The keyword in place of a rate: the highest one that keeps the bounds of ``slo``, found by bisection.
HIGHEST = "highest"
MOST_POINTS = 64


class Arrivals(Kind):
    """When requests are sent.

    A curve has several points (:meth:`points`), each with arrivals of its own.
    """

    registry: ClassVar[Registry[Any]] = Registry("kind of arrivals", "tspsim.arrivals")

    #: Requests are those of a recording, lengths and shared beginnings too; otherwise a scenario states them.
    replays: ClassVar[bool] = False

    def points(self) -> tuple[Self, ...]:
        """The points of a curve, in the order stated; a single one returns itself."""
        return (self,)

    @property
    def label(self) -> Mapping[str, float]:
        """Name and value that identify a point of a curve."""
        return {}

    @property
    def most(self) -> int | None:
        """Requests under way at once, at most; None: no limit."""
        return None

    @property
    def closed(self) -> bool:
        """Whether a request is sent when another ends, and not at a time of its own."""
        return False

    @property
    def spacing_s(self) -> float:
        """Seconds between the first requests of two clients of a closed loop."""
        return 0.0

    @property
    def searches(self) -> bool:
        """Whether the rate is searched for."""
        return False

    def at(self, rate: float) -> Self:
        """The same arrivals at a stated rate, in requests/s."""
        raise NotImplementedError

    @property
    def mean_rate(self) -> float | None:
        """Mean requests/s; None where the kind has no rate of its own."""
        return None

    def trace(self) -> RequestTrace | None:
        """The trace that it replays; None where arrivals are drawn."""
        return None

    def times(self, random: np.random.Generator, count: int) -> Floats | None:
        """Send times of ``count`` requests in seconds, ascending from 0; None of a closed loop."""
        raise NotImplementedError


Arrivals.registry.of = type[Arrivals]


Concurrency = Annotated[PositiveNumber, Field(le=2**20)]


def _one_or_highest(value: Any) -> Any:
    if value == HIGHEST:
        return value
    values = one_or_several(value)
    if not values:
        raise refuse("needs at least 1 entry")
    if HIGHEST in values:
        raise refuse(f"'{HIGHEST}' stands alone: a curve has stated rates")
    return values


#: A rate, several for a curve, or ``highest``.
Rates = Annotated[
    Annotated[tuple[Rate, ...], Field(min_length=1, max_length=MOST_POINTS), OneOrSeveral()] | Literal["highest"],
    BeforeValidator(_one_or_highest),
]


class OpenLoop(Arrivals):
    """Requests are sent at times of their own, with at most ``max_concurrency`` under way."""

    max_concurrency: Concurrency | None = Field(
        None, description="requests under way at once, at most; those beyond wait at the client, unsent"
    )

    @property
    def most(self) -> int | None:
        return self.max_concurrency

    @property
    def capped(self) -> str:
        """The limit as the end of a clause."""
        return f", at most {self.max_concurrency:,} at once" if self.max_concurrency else ""


class Renewal(OpenLoop):
    """Independent gaps between arrivals, with a mean of 1/rate."""

    rate: Rates = Field(description="requests a second; a list makes a curve; highest: the highest that keeps the slo")

    def points(self) -> tuple[Self, ...]:
        if self.rate == HIGHEST:
            return (self,)
        return tuple(self.model_copy(update={"rate": (rate,)}) for rate in self.rate)

    @property
    def label(self) -> Mapping[str, float]:
        return {} if self.rate == HIGHEST else {"rate": float(self.rate[0])}

    @property
    def searches(self) -> bool:
        return self.rate == HIGHEST

    def at(self, rate: float) -> Self:
        return self.model_copy(update={"rate": (rate,)})

    @property
    def mean_rate(self) -> float | None:
        return None if self.rate == HIGHEST else float(self.rate[0])

    def times(self, random: np.random.Generator, count: int) -> Floats | None:
        assert self.mean_rate is not None
        gaps = self.gaps(random, count) / self.mean_rate
        gaps[:1] = 0.0
        return np.cumsum(gaps)

    def gaps(self, random: np.random.Generator, count: int) -> Floats:
        """Gaps before ``count`` arrivals, of mean one. The first is not used: the first request is sent at 0."""
        raise NotImplementedError

    @property
    def rates_in_words(self) -> str:
        if self.rate == HIGHEST:
            return "the highest rate within the bounds"
        return " or ".join(f"{rate:g}" for rate in self.rate) + " requests/s"
