"""Balance of experts: from the visits of experts to the rows that each rank of their group computes.

A policy sees every expert's load and returns every rank's load, its copies of experts, and the experts that move.
Programs then differ by position in the group; if all ranks get the same, one program serves all. Policies:
:mod:`tspsim.parallel.balances`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import TspsimError
from ..base.memo import remembered
from ..base.registry import Registry
from .routing import ExpertRouting


class Visits(NamedTuple):
    """Visits of a layer's experts in one pass."""

    #: Share of all assignments of tokens to experts that each expert keeps; they add up to 1 if none is dropped. Expert
    #: i is on rank i // (experts / ranks).
    shares: tuple[float, ...]
    #: Ranks of the expert group.
    ranks: int
    #: Assignments of all its tokens, kept or dropped.
    assignments: float = 0.0

    @property
    def loads(self) -> tuple[float, ...]:
        """Every rank's load over the mean of all assignments."""
        return tuple((np.array(self.shares).reshape(self.ranks, -1).sum(axis=1) * self.ranks).tolist())


class Balanced(NamedTuple):
    """Work of the ranks of an expert group under a policy."""

    #: Every rank's load over the mean of all assignments.
    loads: tuple[float, ...]
    #: Experts whose weights move to a rank for one layer and micro-batch, of the rank that receives most.
    moved_experts: float = 0.0
    #: Experts whose weights move from a rank, of the rank that sends most.
    sent_experts: float = 0.0
    #: Whether ranks exchange counts and a host decides before tokens leave, in every layer and pass.
    planned: bool = False
    #: Seconds of the host's decision.
    host_s: float = 0.0
    #: Copies of experts that a rank keeps beside its own experts.
    further_experts: float = 0.0
    #: For every rank, the shares of its experts and copies; empty: neighbouring experts, one copy each.
    placed: tuple[tuple[float, ...], ...] = ()

    @property
    def busiest_rank_load(self) -> float:
        """Load of the busiest rank, which all wait for."""
        return max(self.loads)

    @property
    def even(self) -> bool:
        """Whether all ranks have the same load."""
        return min(self.loads) == self.busiest_rank_load

    def waited_for(self) -> Balanced:
        """Every rank with the load of the busiest, which all wait for."""
        return self._replace(loads=(self.busiest_rank_load,) * len(self.loads))

    def of_slices(self, owners: int) -> Balanced:
        """Every rank's load as that of ``owners`` ranks with a slice of its experts each."""
        return self._replace(loads=tuple(load for load in self.loads for _ in range(owners)))


class BalanceOption(NamedTuple):
    """A key of a policy: name, type (any that pydantic accepts), default, and a line."""

    name: str
    type: Any
    default: Any
    summary: str


@dataclass(frozen=True)
class ExpertBalance:
    """A balance policy."""

    #: Its name in a plan's ``expert_balance``.
    name: str
    #: (visits, value of every option) → work of the ranks.
    balance: Callable[..., Balanced]
    #: A line for the catalogue.
    summary: str = ""
    #: Keys beside ``policy``.
    options: tuple[BalanceOption, ...] = ()
    #: Whether training and serving steps can have it.
    trains: bool = True
    serves: bool = True
    #: (experts, ranks, options) → what is wrong; None if nothing.
    check: Callable[[int, int, Mapping[str, Any]], str | None] = lambda experts, ranks, options: None
    #: (visits, pairs of a token and a choice, options) → distinct experts that each rank reads in a serving step, for
    #: policies that choose the copy that runs; None: those of its experts that any choice falls on.
    touched: Callable[..., tuple[float, ...]] | None = None
    #: (experts, ranks, options) → slots of experts and copies over all ranks, which the ranks divide; None: they divide
    #: the experts.
    slots: Callable[[int, int, Mapping[str, Any]], int] | None = None
    #: Why a search over plans skips it with its options at their defaults; empty: it does not.
    why_not: str = ""

    def values(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Values of all options, stated or default."""
        return {option.name: stated.get(option.name, option.default) for option in self.options}


@dataclass(frozen=True)
class Balance:
    """A policy's name, and its stated options."""

    policy: str = "busiest"
    stated: tuple[tuple[str, Any], ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Values of all options, stated or default."""
        return BALANCES.get(self.policy).values(dict(self.stated))


#: The default.
BUSIEST = Balance()

BALANCES: Registry[ExpertBalance] = Registry("expert balance", "tspsim.expert_balance", ExpertBalance)
BALANCES.register(
    ExpertBalance(
        "busiest",
        lambda visits: Balanced(visits.loads).waited_for(),
        "nothing is moved; every rank is counted as the busiest, which all wait for",
    )
)


@remembered(1024)
def balanced(routing: ExpertRouting, balance: Balance, experts: int, ranks: int, assignments: float) -> Balanced:
    """The work of ``ranks`` ranks under a policy; a single rank has all."""
    balance = balance if ranks > 1 else BUSIEST
    visits = Visits(shares_of(routing, experts), ranks, assignments)
    result = BALANCES.get(balance.policy).balance(visits, **balance.options)
    policy = f"expert balance '{balance.policy}'"
    if not isinstance(result, Balanced) or len(result.loads) != ranks or min(result.loads) < 0.0:
        raise TspsimError(f"{policy} has to give a Balanced with a load of each of {ranks} ranks")
    work = sum(visits.shares) * ranks
    if sum(result.loads) < work * (1.0 - 1e-9):
        raise TspsimError(f"{policy} loses work: of {work:g} ranks' worth it deals out {sum(result.loads):g}")
    return result


def shares_of(routing: ExpertRouting, experts: int) -> tuple[float, ...]:
    """Share of all assignments that each expert keeps."""
    if routing.load == "balanced":
        return (min(1.0, routing.capacity_factor or 1.0) / experts,) * experts
    return tuple(routing.expert_shares(experts).tolist())


@remembered(4096)
def touched(routing: ExpertRouting, balance: Balance, experts: int, ranks: int, pairs: float) -> tuple[float, ...]:
    """Distinct experts that each of ``ranks`` ranks reads for a serving step's ``pairs`` choices under a policy."""
    balance = balance if ranks > 1 else BUSIEST
    policy = BALANCES.get(balance.policy)
    if policy.touched is not None:
        return policy.touched(Visits(shares_of(routing, experts), ranks, pairs), pairs, **balance.options)
    placed = balanced(routing, balance, experts, ranks, pairs).placed
    if placed:
        return tuple(sum(1.0 - (1.0 - share) ** pairs for share in rank) for rank in placed)
    return routing.distinct_of_ranks(experts, ranks, pairs)
