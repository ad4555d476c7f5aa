"""Work that a search has done and may do. It is counted, so the answer does not depend on the machine's load."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

#: Shares of the time after which the search for the best, the details that follow, and everything end.
SEARCH_SHARE, DETAIL_SHARE, WHOLE_SHARE = 0.75, 0.88, 0.95


def _nothing() -> float:
    return 0.0


@dataclass(frozen=True)
class Deadline:
    """A time on some clock, such as an effort's (:class:`tspsim.step.paths.Effort`); by default never."""

    at_s: float = math.inf
    now: Callable[[], float] = _nothing

    @property
    def left_s(self) -> float:
        return self.at_s - self.now() if self.at_s < math.inf else math.inf

    @property
    def passed(self) -> bool:
        return self.left_s < 0.0

    def nearer(self, share: float) -> Deadline:
        """The deadline after that share of the remaining time."""
        return Deadline(self.now() + share * self.left_s, self.now) if self.at_s < math.inf else self

    def within(self, seconds: float, now: Callable[[], float]) -> Deadline:
        """The deadline after ``seconds`` more on a clock, or this one if it is earlier."""
        return Deadline(min(self.at_s, now() + seconds), now)


#: No deadline.
NEVER = Deadline()
