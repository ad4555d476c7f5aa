"""The busiest rank of an expert group in one layer of one serving step, whose tokens choose at random.

Popular experts make one rank's mean load larger than another's; beside that every step draws. Ranks meet behind each
layer, so that a layer lasts as long as the rank that drew most: the expected maximum, not the maximum of expectations.
A skew's experts stand in another order in every layer, so that its maximum is the mean over some orders.

A rank's choices have mean μ and variance φ·μ apart from what all ranks share (their sum is given, which moves no
maximum of equal ranks), and are taken as φ times a Poisson number of mean μ/φ. The maximum of independent ones is
E max = ∫ 1 − Π_r F_r(x) dx, with a half for the steps of the distributions F.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import floor, log, log2, sqrt

import numpy as np
from scipy.special import gammaincc

from ..base.memo import remembered
from ..model.parts import Experts
from .balance import BALANCES, BUSIEST, Balance, balanced, shares_of
from .routing import SKEWED, ExpertRouting

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
#: Standard deviations beyond which a rank's distribution is not looked at.
_FAR = 7.0
#: Numbers of choices a doubling at which a maximum is computed; between them it is interpolated over their logarithm.
_A_DOUBLING = 4
#: Orders of a skew's experts.
_ORDERS = 16

#: Shares of the experts of every rank.
Placed = tuple[tuple[float, ...], ...]
#: (routing, balance, experts, ranks, number of choices in steps of a doubling) → most of any rank.
Most = Callable[[ExpertRouting, Balance, Experts, int, int], float]


def expected_maximum(means: tuple[float, ...], dispersions: tuple[float, ...]) -> float:
    """Expected maximum of independent numbers with these means and variances dispersion · mean.

    >>> round(expected_maximum((4.0,), (1.0,)), 2), round(expected_maximum((4.0,) * 8, (1.0,) * 8), 1)
    (4.0, 7.0)
    """
    mean, dispersion = np.array(means), np.array(dispersions)
    most = float(mean.max())
    alive = (mean > 0.0) & (dispersion > 1e-12 * mean)
    if not alive.any():
        return most
    pairs, counts = np.unique(np.stack([mean, dispersion])[:, alive], axis=1, return_counts=True)
    mean, dispersion = pairs
    deviation = np.sqrt(mean * dispersion)
    low = max(0.0, float((mean - _FAR * deviation).max()))
    wide = sqrt(2.0 * log(len(means))) + _FAR
    high = float((mean + wide * (deviation + dispersion)).max())
    near = mean + wide * (deviation + dispersion) > low
    mean, dispersion, counts = mean[near], dispersion[near], counts[near]
    places = low + (high - low) * (_NODES + 1.0) / 2.0
    below = gammaincc(places[:, None] / dispersion + 0.5, mean / dispersion)
    beyond = 1.0 - np.prod(below**counts, axis=1)
    return max(most, low + (high - low) / 2.0 * float(_WEIGHTS @ beyond))


def dispersion(experts: Experts, ranks: int) -> float:
    """Variance of a rank's choices over that of choices that fall one by one. A token's fall on different experts,
    which makes it smaller, and in few groups of experts, which makes it larger."""
    count, topk, local = experts.count, experts.topk, experts.count // ranks
    groups, kept = (experts.groups or 1), (experts.kept_groups or experts.groups or 1)
    size = count // groups
    open_ = kept * size
    both = topk * (topk - 1) / (open_ * (open_ - 1)) if open_ > 1 else 0.0
    same = kept / groups * both
    other = same * (kept - 1) / (groups - 1) if groups > 1 else 0.0
    inside = min(local, size)
    mean = topk / ranks
    variance = mean + local * ((inside - 1) * same + (local - inside) * other) - mean**2
    return max(0.0, variance / (mean * (1.0 - 1.0 / ranks)))


def placements(routing: ExpertRouting, balance: Balance, experts: int, ranks: int, choices: float) -> list[Placed]:
    """Of every rank the shares of its experts, in some orders; none if a policy deals out what was drawn."""
    result = balanced(routing, balance, experts, ranks, choices)
    if result.planned or BALANCES.get(balance.policy).touched is not None:
        return []
    if result.placed:
        return [result.placed]
    orders = _ORDERS if routing.load in SKEWED and balance == BUSIEST else 1
    local = experts // ranks
    placed = []
    for order in range(orders):
        shares = shares_of(replace(routing, seed=routing.seed + order), experts)
        placed.append(tuple(shares[rank * local :][:local] for rank in range(ranks)))
    return placed


def drawn_choices(routing: ExpertRouting, balance: Balance, experts: Experts, ranks: int, choices: float) -> float:
    """Choices of the rank that drew most; 0 if a policy deals out what was drawn."""
    return _between(_most_choices, routing, balance, experts, ranks, choices)


def drawn_experts(routing: ExpertRouting, balance: Balance, experts: Experts, ranks: int, choices: float) -> float:
    """Distinct experts that the rank with most reads; 0 if a policy deals out what was drawn."""
    return _between(_most_experts, routing, balance, experts, ranks, choices)


def _between(
    most: Most, routing: ExpertRouting, balance: Balance, experts: Experts, ranks: int, choices: float
) -> float:
    place = _A_DOUBLING * log2(max(1.0, choices))
    below = floor(place)
    share = place - below
    low = most(routing, balance, experts, ranks, below)
    if not share or not low:
        return low
    return float(low * (most(routing, balance, experts, ranks, below + 1) / low) ** share)


@remembered(4096)
def _most_choices(routing: ExpertRouting, balance: Balance, experts: Experts, ranks: int, step: int) -> float:
    choices, maxima = 2.0 ** (step / _A_DOUBLING), []
    for placed in placements(routing, balance, experts.count, ranks, choices):
        means = tuple(sum(rank) * choices for rank in placed)
        maxima.append(min(choices, expected_maximum(means, (dispersion(experts, ranks),) * ranks)))
    return float(np.mean(maxima)) if maxima else 0.0


@remembered(4096)
def _most_experts(routing: ExpertRouting, balance: Balance, experts: Experts, ranks: int, step: int) -> float:
    choices, maxima = 2.0 ** (step / _A_DOUBLING), []
    over = dispersion(experts, ranks) - 1.0
    for placed in placements(routing, balance, experts.count, ranks, choices):
        means, spread = [], []
        for rank in placed:
            shares = np.array(rank)
            missed = np.exp(-choices * shares)
            mean = float((1.0 - missed).sum())
            slope = float((shares * missed).sum()) / max(float(shares.sum()), 1e-300)
            own = float((missed * (1.0 - missed)).sum())
            variance = max(0.0, own + over * choices * float(shares.sum()) * slope**2)
            means.append(mean)
            spread.append(variance / max(mean, 1e-300))
        maxima.append(min(float(max(map(len, placed))), choices, expected_maximum(tuple(means), tuple(spread))))
    return float(np.mean(maxima)) if maxima else 0.0
