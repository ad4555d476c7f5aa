"""How long jobs of a class run: the family of durations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np

from ...base.registry import Registry
from ...base.units import Quantity
from ...traffic.kind import Floats, Kind

#: Seconds, stated in any unit of time.
Span = Annotated[float, Quantity("s", positive=True, examples=("6 h", "2 days"))]


class Durations(Kind):
    """Durations of jobs at full speed, in seconds."""

    registry: ClassVar[Registry[Any]] = Registry("kind of duration", "tspsim.durations")

    def draw(self, random: np.random.Generator, count: int) -> Floats:
        """Seconds of ``count`` jobs, each positive: an array (count,). Only ``random`` may add chance."""
        raise NotImplementedError


Durations.registry.of = type[Durations]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """A bare span is a fixed duration."""
    return {"kind": "fixed", "of": value} if isinstance(value, str | int | float) else None
