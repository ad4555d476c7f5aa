"""Balance of experts: from the visits that experts get to the rows each rank of their group works on.

A policy sees what falls on every expert and says what every rank gets, which experts it has copies of, and how many
travel for it. Programs then differ by position in the group; where all ranks get the same, one program serves all.
Policies of their own: :mod:`tspsim.parallel.balances`.
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
    """What a layer's experts get of one pass."""

    #: Of all assignments of tokens to experts, what each expert keeps; their sum is 1 where none is dropped. Expert i
    #: is on rank i // (experts / ranks).
    shares: tuple[float, ...]
    #: Of the expert group.
    ranks: int
    #: Of all its tokens, kept or not.
    assignments: float = 0.0

    @property
    def loads(self) -> tuple[float, ...]:
        """Of every rank, over the mean of all assignments."""
        return tuple((np.array(self.shares).reshape(self.ranks, -1).sum(axis=1) * self.ranks).tolist())


class Balanced(NamedTuple):
    """What the ranks of an expert group get."""

    #: Of every rank, over the mean of all assignments.
    loads: tuple[float, ...]
    #: Experts whose weights come to a rank for one layer and micro-batch, of the rank that gets most.
    moved_experts: float = 0.0
    #: The same that leave a rank, of the rank that gives most.
    sent_experts: float = 0.0
    #: Ranks tell each other their counts and a host decides before tokens leave, every layer and pass.
    planned: bool = False
    #: Seconds that it takes.
    host_s: float = 0.0
    #: Copies that a rank keeps of experts besides its own share of them.
    further_experts: float = 0.0
    #: Of every rank, the shares that its experts and copies get; empty: neighbouring experts, one copy each.
    placed: tuple[tuple[float, ...], ...] = ()

    @property
    def busiest_rank_load(self) -> float:
        """Load of the rank that all wait for."""
        return max(self.loads)

    @property
    def even(self) -> bool:
        """Whether all ranks do the same."""
        return min(self.loads) == self.busiest_rank_load

    def waited_for(self) -> Balanced:
        """Every rank counted as if it were as busy as the busiest, which all wait for."""
        return self._replace(loads=(self.busiest_rank_load,) * len(self.loads))

    def of_slices(self, owners: int) -> Balanced:
        """Every rank's load as that of ``owners`` ranks, which have a slice of its experts each."""
        return self._replace(loads=tuple(load for load in self.loads for _ in range(owners)))


class BalanceOption(NamedTuple):
    """A key of a policy: its name, type (any that pydantic knows), value where none is stated, and a line."""

    name: str
    type: Any
    default: Any
    summary: str


@dataclass(frozen=True)
class ExpertBalance:
    """A policy."""

    #: What a plan's ``expert_balance`` calls it.
    name: str
    #: (visits, value of every option) → what ranks get.
    balance: Callable[..., Balanced]
    #: A line for the catalogue.
    summary: str = ""
    #: Keys beside ``policy``.
    options: tuple[BalanceOption, ...] = ()
    #: Whether a backward can follow it, and whether a step that serves can.
    trains: bool = True
    serves: bool = True
    #: (experts, ranks, options) → what is wrong; None where nothing is.
    check: Callable[[int, int, Mapping[str, Any]], str | None] = lambda experts, ranks, options: None
    #: (visits, pairs of a token and a choice, options) → distinct experts that each rank reads in a serving step,
    #: where it says which copy runs; None: those of its ranks that any choice falls on.
    touched: Callable[..., tuple[float, ...]] | None = None
    #: Why a search over plans does not try it, with its options at their defaults; empty: it does.
    why_not: str = ""

    def values(self, stated: Mapping[str, Any]) -> dict[str, Any]:
        """Of all options, as stated or their defaults."""
        return {option.name: stated.get(option.name, option.default) for option in self.options}


@dataclass(frozen=True)
class Balance:
    """A policy's name, and the options that were stated."""

    policy: str = "busiest"
    stated: tuple[tuple[str, Any], ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """Values of all options, as stated or their defaults."""
        return BALANCES.get(self.policy).values(dict(self.stated))


#: What a plan has that states none.
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
    """What each of ``ranks`` ranks gets under a policy; one alone has all there is."""
    balance = balance if ranks > 1 else BUSIEST
    visits = Visits(shares_of(routing, experts), ranks, assignments)
    result = BALANCES.get(balance.policy).balance(visits, **balance.options)
    policy = f"expert balance '{balance.policy}'"
    if not isinstance(result, Balanced) or len(result.loads) != ranks or min(result.loads) < 0.0:
        raise TspsimError(f"{policy} has to give a Balanced with a load of each of {ranks} ranks")
    if sum(result.loads) < sum(visits.loads) * (1.0 - 1e-9):
        raise TspsimError(
            f"{policy} loses work: of {sum(visits.loads):g} ranks' worth it deals out {sum(result.loads):g}"
        )
    return result


def shares_of(routing: ExpertRouting, experts: int) -> tuple[float, ...]:
    """Of all assignments, what each expert keeps."""
    if routing.load == "balanced":
        return (min(1.0, routing.capacity_factor or 1.0) / experts,) * experts
    return tuple(routing.expert_shares(experts).tolist())


@remembered(4096)
def touched(routing: ExpertRouting, balance: Balance, experts: int, ranks: int, pairs: float) -> tuple[float, ...]:
    """Distinct experts that each of ``ranks`` ranks reads of a serving step's ``pairs`` choices under a policy."""
    balance = balance if ranks > 1 else BUSIEST
    policy = BALANCES.get(balance.policy)
    if policy.touched is not None:
        return policy.touched(Visits(shares_of(routing, experts), ranks, pairs), pairs, **balance.options)
    placed = balanced(routing, balance, experts, ranks, pairs).placed
    if placed:
        return tuple(sum(1.0 - (1.0 - share) ** pairs for share in rank) for rank in placed)
    return routing.distinct_of_ranks(experts, ranks, pairs)
