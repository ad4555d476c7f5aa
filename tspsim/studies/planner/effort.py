"""Work of a search for services in seconds of a usual processor: counted, never measured.

The same search counts the same on every machine, idle or loaded. So a budget ends it at the same plan, with the same
answer (docs/planner.md). The values per count were measured once, on one core of a server of 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Seconds of one served request, of pricing a plan's steps the first time, and of one plan in closed form.
REQUEST_S, PRICED_S, CLOSED_S = 3e-4, 0.3, 0.15


@dataclass
class SearchEffort:
    """A counter of seconds; ``budget_s`` is the limit (infinite: none)."""

    budget_s: float = math.inf
    spent_s: float = 0.0

    def served(self, requests: int) -> None:
        """Counts simulated requests."""
        self.spent_s += REQUEST_S * requests

    def priced(self) -> None:
        """Counts a plan that is priced for the first time."""
        self.spent_s += PRICED_S

    def closed(self, count: int = 1) -> None:
        """Counts plans that are bounded in closed form."""
        self.spent_s += CLOSED_S * count

    def part(self, share: float) -> SearchEffort:
        """A separate counter with a share of the remaining budget; :meth:`add` it when it is done."""
        return SearchEffort(share * max(0.0, self.budget_s - self.spent_s))

    def add(self, other: SearchEffort) -> None:
        """Adds the effort of a part."""
        self.spent_s += other.spent_s

    def passed(self, share: float = 1.0) -> bool:
        """Whether this share of the budget is spent."""
        return self.spent_s > share * self.budget_s
