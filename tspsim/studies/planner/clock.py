"""How much work a search has done and may do: counted, so that its answer never depends on how busy a machine is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


def _nothing() -> float:
    return 0.0


@dataclass(frozen=True)
class Deadline:
    """So much on some clock, that of an effort (:class:`tspsim.step.paths.Effort`) for instance; never by default."""

    at_s: float = math.inf
    now: Callable[[], float] = _nothing

    @property
    def left_s(self) -> float:
        return self.at_s - self.now() if self.at_s < math.inf else math.inf

    @property
    def passed(self) -> bool:
        return self.left_s < 0.0

    def nearer(self, share: float) -> Deadline:
        """When that share of what is left is over."""
        return Deadline(self.now() + share * self.left_s, self.now) if self.at_s < math.inf else self

    def within(self, seconds: float, now: Callable[[], float]) -> Deadline:
        """After so many more seconds on a clock, or this one where that is earlier."""
        return Deadline(min(self.at_s, now() + seconds), now)


#: No end.
NEVER = Deadline()
