"""What a search of services has done, in seconds that it takes on a usual processor: counted, never measured.

The same search counts the same on every machine, idle or loaded, so that a budget ends it at the same plan and its
answer is the same (docs/planner.md). What a count is worth was measured once, on one core of a server of 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Seconds of a request that is served, of a plan whose steps are priced first, and of one in closed form.
REQUEST_S, PRICED_S, CLOSED_S = 3e-4, 0.3, 0.15


@dataclass
class SearchEffort:
    """Counts up; ``budget_s`` is what may be spent (infinite: no end)."""

    budget_s: float = math.inf
    spent_s: float = 0.0

    def served(self, requests: int) -> None:
        """So many requests were simulated."""
        self.spent_s += REQUEST_S * requests

    def priced(self) -> None:
        """A plan was looked at for the first time."""
        self.spent_s += PRICED_S

    def closed(self, count: int = 1) -> None:
        """Plans were bounded in closed form."""
        self.spent_s += CLOSED_S * count

    def part(self, share: float) -> SearchEffort:
        """Of what is left so much, counted apart: :meth:`add` it when it is done."""
        return SearchEffort(share * max(0.0, self.budget_s - self.spent_s))

    def add(self, other: SearchEffort) -> None:
        """What a part has spent."""
        self.spent_s += other.spent_s

    def passed(self, share: float = 1.0) -> bool:
        """Whether so much of the budget is spent."""
        return self.spent_s > share * self.budget_s
