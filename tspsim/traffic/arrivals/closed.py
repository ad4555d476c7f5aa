"""A closed loop: each of a number of clients sends its next request when its last one ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

import numpy as np
from pydantic import Field

from ...base.errors import either
from ...base.strict import OneOrSeveral
from ...base.units import Seconds, duration
from ..kind import Floats
from .base import MOST_POINTS, Arrivals, Concurrency


class Closed(Arrivals):
    """All clients send at the start. Whenever a request ends the next one is sent."""

    name = "closed"
    concurrency: Annotated[tuple[Concurrency, ...], Field(min_length=1, max_length=MOST_POINTS), OneOrSeveral()] = (
        Field(description="clients; a list makes a curve")
    )

    def points(self) -> tuple[Self, ...]:
        return tuple(self.model_copy(update={"concurrency": (clients,)}) for clients in self.concurrency)

    @property
    def label(self) -> Mapping[str, float]:
        return {"concurrency": self.concurrency[0]}

    @property
    def most(self) -> int | None:
        return self.concurrency[0]

    interval: Seconds = Field(0.0, description="between the first requests of two clients; default: all at once")

    @property
    def spacing_s(self) -> float:
        return self.interval

    @property
    def closed(self) -> bool:
        return True

    def times(self, random: np.random.Generator, count: int) -> Floats | None:
        return None

    def in_words(self) -> str:
        clients = either([f"{clients:,}" for clients in self.concurrency])
        begin = f"one every {duration(self.interval)}" if self.interval else "at the start"
        return f"{clients} clients send a request {begin}, and the next when one ends"


Arrivals.registry.register(Closed)
