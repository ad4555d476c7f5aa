"""Distribution of tokens over experts: loads of an expert group's ranks over the mean.

All ranks wait for the busiest one at the combine; :mod:`tspsim.parallel.balance` evens loads out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool, StrictInt

from ..base.errors import InputError
from ..base.memo import BoundedCache, once
from ..base.strict import OneOf, refuse, section
from ..base.units import PositiveCount

LoadKind = Annotated[str, OneOf(lambda: ("balanced", "zipf", "dirichlet", "hot", "measured"))]
Share = Annotated[float, Field(ge=0, le=1)]


#: Loads whose shares are set by a skew.
SKEWED = ("zipf", "dirichlet")


@dataclass(frozen=True)
class ExpertRouting:
    """Distribution of assignments over experts.

    Parameters
    ----------
    load
        ``balanced``: equal shares (as a balancing loss or bias aims for). ``zipf``: the i-th most visited expert's
        share is proportional to i^(−skew), experts in an order drawn with ``seed``. ``dirichlet``: shares drawn with
        ``seed`` from a symmetric Dirichlet distribution of concentration 1/skew per expert. ``hot``: the first
        ``hot_experts`` get ``hot_share`` in equal parts, the others the rest. ``measured``: ``shares``.
    capacity_factor
        Capacity of an expert over the mean; what exceeds it is dropped. None: no limit.
    affinity, transitions
        Which expert follows which from layer to layer (:mod:`tspsim.parallel.affinity`).
    drawn
        Whether the choices of a serving step are drawn (:mod:`tspsim.parallel.draws`), or fall as in the mean.
    """

    __pydantic_config__ = section("How evenly tokens fall on experts; all wait for the busiest rank.")

    load: Annotated[
        LoadKind,
        Field(description="distribution of assignments over experts: even, skewed, on a few hot ones, or measured"),
    ] = "balanced"
    skew: Annotated[float, Field(ge=0, le=10, description="Zipf exponent, or 1 / concentration; 0 is even")] = 0.0
    seed: Annotated[StrictInt, Field(ge=0, description="seed of what is drawn")] = 0
    shares: Annotated[
        tuple[Annotated[float, Field(ge=0)], ...],
        Field(max_length=4096, description="measured: tokens per expert, in any unit"),
    ] = ()
    hot_experts: Annotated[
        Annotated[PositiveCount, Field(le=4096)] | None,
        Field(description="hot: number of hot experts, all on the first ranks, which get the share below"),
    ] = None
    hot_share: Annotated[
        Share | None, Field(description="hot: share of all assignments; the rest is spread over the other experts")
    ] = None
    capacity_factor: Annotated[
        Annotated[float, Field(gt=0, le=100)] | None,
        Field(description="most assignments of an expert over the mean; the rest is dropped; default: no limit"),
    ] = None
    local_rate: Annotated[
        Share | None,
        Field(description="share of choices on the token's own rank, if predictions place tokens and experts"),
    ] = None
    affinity: Annotated[
        Share,
        Field(description="share of tokens that go to their expert's partner in the next layer; others go to any"),
    ] = 0.0
    transitions: Annotated[
        tuple[tuple[Annotated[float, Field(ge=0)], ...], ...],
        Field(
            max_length=1024,
            description="measured, instead of affinity: a row per expert with its tokens by next expert, in any unit",
        ),
    ] = ()
    drawn: Annotated[
        StrictBool,
        Field(
            description="whether a serving step waits for the rank whose tokens drew most, not for the fullest of means"
        ),
    ] = False

    def __post_init__(self) -> None:
        rows = self.transitions
        if any(len(row) != len(rows) or not sum(row) for row in rows):
            raise refuse("transitions: needs as many numbers in every row as there are rows, not all of a row zero")
        if rows and self.affinity:
            raise refuse("transitions and affinity both say which expert follows which; leave one out")
        if (self.load == "measured") != bool(sum(self.shares)):
            raise refuse("load: measured needs shares, one number an expert, not all zero; other loads take none")
        if self.skew and self.load not in SKEWED:
            raise refuse(f"skew: {self.skew:g} is of load: {' and '.join(SKEWED)}; load: {self.load} takes none")
        stated = (self.hot_experts is not None, self.hot_share is not None)
        if stated != (self.load == "hot",) * 2:
            raise refuse("load: hot needs hot_experts and hot_share; other loads take neither")

    def expert_shares(self, experts: int) -> NDArray[np.float64]:
        """Share of the assignments that each expert keeps: shape (experts,); raises as :meth:`assigned_shares`."""
        assigned = self.assigned_shares(experts)
        return assigned if self.capacity_factor is None else np.minimum(assigned, self.capacity_factor / experts)

    def dropped(self, experts: int) -> float:
        """Share of the assignments that exceeds the experts' capacity and is dropped.

        >>> ExpertRouting("measured", shares=(4.0, 1.0, 2.0, 1.0), capacity_factor=1.0).dropped(4)
        0.25
        >>> ExpertRouting("zipf", skew=0.5).dropped(64)
        0.0
        """
        assigned = self.assigned_shares(experts)
        return float((assigned - self.expert_shares(experts)).sum())

    def assigned_shares(self, experts: int) -> NDArray[np.float64]:
        """Share of the assignments to each expert, kept or dropped: shape (experts,).

        Raises
        ------
        InputError
            The number of measured shares differs from the model's experts.
        """
        return self._assigned.once(experts, lambda: self._drawn_shares(experts))

    @once
    def _assigned(self) -> BoundedCache:
        """:meth:`assigned_shares` by experts: every instruction of a layer's experts asks for them."""
        return BoundedCache(16)

    def _drawn_shares(self, experts: int) -> NDArray[np.float64]:
        generator = np.random.Generator(np.random.PCG64(self.seed))
        if self.load == "measured":
            if len(self.shares) != experts:
                problem = f"{len(self.shares)} shares were given, but the model has {experts} experts"
                raise InputError(problem, key="workload.routing.shares")
            shares = np.array(self.shares, dtype=np.float64)
        elif self.load == "zipf":
            shares = generator.permutation(np.arange(1.0, experts + 1.0) ** -self.skew)
        elif self.load == "dirichlet" and self.skew > np.finfo(np.float64).eps:  # its inverse must be a number
            shares = generator.dirichlet(np.full(experts, 1.0 / self.skew))
        elif self.load == "hot":
            assert self.hot_experts is not None and self.hot_share is not None
            if self.hot_experts >= experts:
                problem = f"{self.hot_experts} are all of the model's {experts} experts, and none is left for the rest"
                raise InputError(problem, key="workload.routing.hot_experts")
            shares = np.full(experts, (1.0 - self.hot_share) / (experts - self.hot_experts))
            shares[: self.hot_experts] = self.hot_share / self.hot_experts
        else:
            shares = np.ones(experts)
        shares = np.asarray(shares / shares.sum(), dtype=np.float64)
        shares.flags.writeable = False
        return shares

    def distinct(self, experts: int, pairs: float) -> float:
        """Expected distinct experts of ``pairs`` choices: Σ 1 − (1 − p_i)^pairs over shares p_i.

        >>> ExpertRouting("measured", shares=(1.0, 1.0, 2.0)).distinct(3, 2)
        1.625
        """
        return sum(self.distinct_of_ranks(experts, 1, pairs))

    def distinct_of_ranks(self, experts: int, ranks: int, pairs: float) -> tuple[float, ...]:
        """:meth:`distinct` of each of ``ranks`` ranks, with equally many neighbouring experts.

        >>> ExpertRouting("measured", shares=(1.0, 1.0, 2.0, 0.0)).distinct_of_ranks(4, 2, 2)
        (0.875, 0.75)
        """
        if self.load == "balanced":
            return (distinct_experts(experts, pairs) / ranks,) * ranks
        missed = np.power(1.0 - self.assigned_shares(experts), pairs)
        return tuple((1.0 - missed).reshape(ranks, -1).sum(axis=1).tolist())

    def rank_loads(self, experts: int, ranks: int) -> tuple[float, ...]:
        """Load of each of ``ranks`` ranks, with equally many neighbouring experts, over the mean without drops.

        >>> ExpertRouting("measured", shares=(4.0, 1.0, 2.0, 1.0)).rank_loads(4, 2)
        (1.25, 0.75)
        >>> ExpertRouting("measured", shares=(4.0, 1.0, 2.0, 1.0), capacity_factor=1.0).rank_loads(4, 2)
        (0.75, 0.75)
        """
        if self.load == "balanced":
            return (1.0 if self.capacity_factor is None else min(1.0, self.capacity_factor),) * ranks
        return tuple((self.expert_shares(experts).reshape(ranks, -1).sum(axis=1) * ranks).tolist())


def distinct_experts(experts: int, pairs: float) -> float:
    """Expected distinct ones of ``experts`` experts among ``pairs`` random choices: E·(1 − (1 − 1/E)^pairs).

    >>> distinct_experts(4, 0), distinct_experts(4, 1), distinct_experts(4, 2)
    (0.0, 1.0, 1.75)
    """
    return experts * (1.0 - float((1.0 - 1.0 / experts) ** pairs))


#: Every expert is visited equally often.
BALANCED = ExpertRouting()
