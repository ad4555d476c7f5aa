"""Few distinct experts a rank while decoding (Janus, arXiv 2512.13525): every expert that a step chose runs on one of
the ranks that have a copy.

A decode step reads the weights of the experts that its tokens chose, so its time is that of the rank with most of
them, β·a_max + c. Every rank of experts plans alike from what all tokens chose: an expert with one copy runs where it
is; every other one goes, with all its rows, to that of its ranks with fewest distinct experts so far (``spread:
fewest``). Spread ``evenly`` over its copies, as EPLB does, it is read on all of them. Copies are given to experts by
how often they are chosen at all, and packed as EPLB packs them.

What a step's tokens choose is drawn: a_max is the mean of ``draws`` steps, rows those of the fullest rank. Other
policies count expected experts, without the luck of a step: to compare, take this one with ``spread: evenly``, or with
as many ``replicas`` as experts, which is plain expert parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ...base.memo import remembered
from ...base.units import Seconds
from ..balance import BALANCES, Balanced, BalanceOption, ExpertBalance, Visits
from . import eplb

Spread = Literal["fewest", "evenly"]


def holders(ranks: Sequence[Sequence[int]], experts: int) -> tuple[tuple[int, ...], ...]:
    """The ranks that have a copy of each expert.

    >>> holders([[0, 1], [1, 2]], 3)
    ((0,), (0, 1), (1,))
    """
    return tuple(tuple(rank for rank, mine in enumerate(ranks) if expert in mine) for expert in range(experts))


def scheduled(active: Sequence[bool], copies: Sequence[Sequence[int]], ranks: int) -> list[int]:
    """The rank that runs each expert; for an expert without tokens, the first rank that has it.

    >>> scheduled([True] * 4, [[0], [0], [0, 1], [0, 1]], 2)
    [0, 0, 1, 1]
    """
    have, where = [0] * ranks, [mine[0] for mine in copies]
    for expert, mine in sorted(enumerate(copies), key=lambda pair: len(pair[1]) > 1):
        if active[expert]:
            where[expert] = min(mine, key=have.__getitem__)
            have[where[expert]] += 1
    return where


def drawn(shares: Sequence[float], pairs: float, draws: int, seed: int) -> NDArray[np.float64]:
    """Rows of every expert in each of ``draws`` steps, Poisson of mean share·pairs: shape (draws, experts).

    The same quantiles at every batch, so that more tokens never choose fewer experts.
    """
    from scipy.special import pdtrik  # heavy, and few ask

    quantiles = np.random.Generator(np.random.PCG64([seed, 2])).random((draws, len(shares)))
    mean = np.maximum(np.array(shares) * pairs, 1e-12)
    return np.where(quantiles <= np.exp(-mean), 0.0, np.ceil(np.maximum(pdtrik(quantiles, mean), 1e-9)))


@remembered(4096)
def steps(
    visits: Visits, replicas: int | None, spread: Spread, draws: int, stale: float, seed: int
) -> tuple[float, float]:
    """Distinct experts of the rank that has most, and rows of the fullest over the mean; means of all draws."""
    experts, ranks = len(visits.shares), visits.ranks
    slots = experts + ranks if replicas is None else replicas
    often = [1.0 - (1.0 - share) ** visits.assignments for share in eplb.drifted(visits.shares, stale, seed)]
    copies = holders(eplb.placed(often, ranks, slots), experts)
    most, fullest = [], []
    for rows in drawn(visits.shares, visits.assignments, draws, seed):
        read, work = [0] * ranks, [0.0] * ranks
        where = scheduled((rows > 0.0).tolist(), copies, ranks)
        for expert in np.flatnonzero(rows).tolist():
            mine = (where[expert],) if spread == "fewest" else copies[expert][: int(rows[expert])]
            for rank in mine:
                read[rank] += 1
                work[rank] += rows[expert] / len(mine)
        most.append(max(read))
        fullest.append(max(work) * ranks / max(visits.assignments, 1e-12))
    return float(np.mean(most)), float(np.mean(fullest))


def touched(
    visits: Visits,
    pairs: float,
    replicas: int | None,
    spread: Spread,
    draws: int,
    stale: float,
    seed: int,
    scheduler: float,
) -> tuple[float, ...]:
    """Distinct experts that ranks read: those of the one that has most, which all wait for."""
    most, _ = steps(visits._replace(assignments=pairs), replicas, spread, draws, stale, seed)
    return (most,) * visits.ranks


def balance(
    visits: Visits, replicas: int | None, spread: Spread, draws: int, stale: float, seed: int, scheduler: float
) -> Balanced:
    """Rows of the fullest rank on all of them, and the copies that each keeps."""
    _, fullest = steps(visits, replicas, spread, draws, stale, seed)
    slots = len(visits.shares) + visits.ranks if replicas is None else replicas
    further = (slots - len(visits.shares)) / visits.ranks
    plans = spread == "fewest" and further > 0.0
    host_s = scheduler if plans else 0.0
    return Balanced((fullest,) * visits.ranks, planned=plans, host_s=host_s, further_experts=further)


ACTIVATED = BALANCES.register(
    ExpertBalance(
        "activated",
        balance,
        "every expert that a step chose runs on one of its copies, where fewest are (Janus)",
        options=(
            *(option for option in eplb.EPLB.options if option.name == "replicas"),
            BalanceOption("spread", Spread, "fewest", "where an expert runs: on one of its copies, or on all of them"),
            BalanceOption("draws", Annotated[int, Field(ge=1, le=4096)], 16, "steps whose mean is taken"),
            *(option for option in eplb.EPLB.options if option.name in ("stale", "seed")),
            BalanceOption(
                "scheduler",
                Seconds,
                0.0,
                "time of every layer's plan; published: below 20 us of 64 tokens, 90 of 4,096",
            ),
        ),
        trains=False,
        why_not="counts the luck of a step's choices, which others leave out",
        check=lambda experts, ranks, options: eplb.check(experts, ranks, {**options, "groups": 1, "nodes": 1}),
        touched=touched,
    )
)
