"""Balance of experts: from the loads of an expert group's ranks to the rows each of them works on.

A policy sees what falls on every rank and says what every rank gets, and how many experts travel for it. Programs then
differ by position in the group; where all ranks get the same, one program serves all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ..registry import Registry
from .routing import Routing


class Balanced(NamedTuple):
    """What the ranks of an expert group get.

    Attributes
    ----------
    loads
        Of every rank, over the mean of all assignments.
    moved_experts
        Experts whose weights come to a rank for one layer and micro-batch, of the rank that gets most.
    """

    loads: tuple[float, ...]
    moved_experts: float = 0.0

    @property
    def busiest_rank_load(self) -> float:
        """Load of the rank that all wait for."""
        return max(self.loads)

    @property
    def even(self) -> bool:
        """Whether all ranks do the same."""
        return min(self.loads) == self.busiest_rank_load


@dataclass(frozen=True)
class ExpertBalance:
    """A policy: the loads that fall on the ranks of a group → what they get."""

    name: str
    balance: Callable[[tuple[float, ...]], Balanced]


BALANCES: Registry[ExpertBalance] = Registry("expert balance", "tspsim.expert_balance")
#: Nothing is moved, and every rank is counted as if it were as busy as the busiest, which all wait for.
BALANCES.register(ExpertBalance("busiest", lambda loads: Balanced((max(loads),) * len(loads))))


@lru_cache(maxsize=1024)
def balanced(routing: Routing, policy: str, experts: int, ranks: int) -> Balanced:
    """What each of ``ranks`` ranks gets under a policy."""
    return BALANCES.get(policy).balance(routing.rank_loads(experts, ranks))
