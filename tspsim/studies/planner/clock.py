"""How much time a search has taken and may take: processor time, of all processes that work for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Seconds of processor time since it was made: of this process, and of others as far as they have told.

    A machine that does other things as well changes how long an answer is waited for, hardly what it costs.
    """

    begin_s: float = field(default_factory=time.process_time)
    others_s: dict[int, float] = field(default_factory=dict)

    def told(self, process: int, spent_s: float) -> None:
        """Another process has spent so much since it began."""
        self.others_s[process] = max(spent_s, self.others_s.get(process, 0.0))

    def spent_s(self) -> float:
        return time.process_time() - self.begin_s + sum(self.others_s.values())


@dataclass(frozen=True)
class Deadline:
    """A moment on some clock, never by default."""

    at_s: float = math.inf
    now: Callable[[], float] = time.process_time

    @property
    def left_s(self) -> float:
        return self.at_s - self.now() if self.at_s < math.inf else math.inf

    @property
    def passed(self) -> bool:
        return self.left_s < 0.0

    def nearer(self, share: float) -> Deadline:
        """When that share of what is left is over."""
        return Deadline(self.now() + share * self.left_s, self.now) if self.at_s < math.inf else self


#: No end.
NEVER = Deadline()
