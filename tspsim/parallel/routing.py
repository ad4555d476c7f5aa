"""How evenly tokens fall on experts: the loads of the ranks of an expert group against the mean.

All of them wait for the busiest one when results come back; what is done about that: :mod:`tspsim.parallel.balance`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError


@dataclass(frozen=True)
class ExpertRouting:
    """Shares of the experts.

    Parameters
    ----------
    load
        ``balanced``: equal shares (what a balancing loss or bias aims at). ``zipf``: the i-th most visited expert's
        share is proportional to i^(−skew), experts in an order drawn with ``seed``. ``dirichlet``: shares drawn with
        ``seed`` from a symmetric Dirichlet distribution of concentration 1/skew an expert. ``hot``: the first
        ``hot_experts`` get ``hot_share`` in equal parts, the others the rest. ``measured``: ``shares``.
    skew
        0 is balanced; see ``load``.
    shares
        One number an expert, in any unit.
    capacity_factor
        An expert takes at most this many times the mean; what is over is dropped. None drops nothing.
    local_rate
        Of all choices those that fall on the token's own rank where tokens are placed by prediction; None: unknown.
    affinity, transitions
        Which expert follows which from layer to layer (:mod:`tspsim.parallel.affinity`).
    """

    load: str = "balanced"
    skew: float = 0.0
    seed: int = 0
    shares: tuple[float, ...] = ()
    capacity_factor: float | None = None
    hot_experts: int | None = None
    hot_share: float | None = None
    local_rate: float | None = None
    affinity: float = 0.0
    transitions: tuple[tuple[float, ...], ...] = ()

    def expert_shares(self, experts: int) -> NDArray[np.float64]:
        """Share of the assignments that each expert keeps: shape (experts,); raises as :meth:`assigned_shares`."""
        assigned = self.assigned_shares(experts)
        return assigned if self.capacity_factor is None else np.minimum(assigned, self.capacity_factor / experts)

    def dropped(self, experts: int) -> float:
        """Share of the assignments that is over the capacity of their experts, and so no work.

        >>> ExpertRouting("measured", shares=(4.0, 1.0, 2.0, 1.0), capacity_factor=1.0).dropped(4)
        0.25
        >>> ExpertRouting("zipf", skew=0.5).dropped(64)
        0.0
        """
        assigned = self.assigned_shares(experts)
        return float((assigned - self.expert_shares(experts)).sum())

    def assigned_shares(self, experts: int) -> NDArray[np.float64]:
        """Share of the assignments that falls on each expert, kept or not: shape (experts,).

        Raises
        ------
        InputError
            Another number of shares was measured than the model has experts.
        """
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
        return np.asarray(shares / shares.sum(), dtype=np.float64)

    def distinct(self, experts: int, pairs: float) -> float:
        """Distinct experts that ``pairs`` choices of tokens touch, expected: Σ 1 − (1 − p_i)^pairs over shares p_i.

        >>> ExpertRouting("measured", shares=(1.0, 1.0, 2.0)).distinct(3, 2)
        1.625
        """
        return sum(self.distinct_of_ranks(experts, 1, pairs))

    def distinct_of_ranks(self, experts: int, ranks: int, pairs: float) -> tuple[float, ...]:
        """The same of each of ``ranks`` ranks, with as many neighbouring experts each.

        >>> ExpertRouting("measured", shares=(1.0, 1.0, 2.0, 0.0)).distinct_of_ranks(4, 2, 2)
        (0.875, 0.75)
        """
        if self.load == "balanced":
            return (distinct_experts(experts, pairs) / ranks,) * ranks
        missed = np.power(1.0 - self.assigned_shares(experts), pairs)
        return tuple((1.0 - missed).reshape(ranks, -1).sum(axis=1).tolist())

    def rank_loads(self, experts: int, ranks: int) -> tuple[float, ...]:
        """Load of each of ``ranks`` ranks, with as many neighbouring experts each, over the mean without drops.

        >>> ExpertRouting("measured", shares=(4.0, 1.0, 2.0, 1.0)).rank_loads(4, 2)
        (1.25, 0.75)
        >>> ExpertRouting("measured", shares=(4.0, 1.0, 2.0, 1.0), capacity_factor=1.0).rank_loads(4, 2)
        (0.75, 0.75)
        """
        if self.load == "balanced":
            return (1.0 if self.capacity_factor is None else min(1.0, self.capacity_factor),) * ranks
        return tuple((self.expert_shares(experts).reshape(ranks, -1).sum(axis=1) * ranks).tolist())


def distinct_experts(experts: int, pairs: float) -> float:
    """Distinct ones of ``experts`` that ``pairs`` random choices touch: E·(1 − (1 − 1/E)^pairs).

    >>> distinct_experts(4, 0), distinct_experts(4, 1), distinct_experts(4, 2)
    (0.0, 1.0, 1.75)
    """
    return experts * (1.0 - float((1.0 - 1.0 / experts) ** pairs))


#: Every expert is visited equally often.
BALANCED = ExpertRouting()
