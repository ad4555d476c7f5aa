"""Least-loaded expert parallelism (LLEP, arXiv 2601.17111, algorithms 1 to 4): what is over a rank's capacity spills to
ranks that have room, and the weights of the spilled experts travel there for this layer and pass.

Every layer's counts are summed over the group, a host plans, weights leave beside the dispatch, and both are waited for
before the grouped product. Below a threshold of busiest over mean nothing moves.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from ...base.units import Seconds
from ..balance import BALANCES, Balanced, BalanceOption, ExpertBalance, Visits


class Spill(NamedTuple):
    """Rows of an expert that a rank other than its owner works on."""

    expert: int
    owner: int
    helper: int
    rows: float


def spilled(
    rows: tuple[float, ...], ranks: int, alpha: float, min_tokens: float
) -> tuple[tuple[float, ...], list[Spill]]:
    """Rows that each rank ends up with, and what spills.

    Experts are treated by falling rows: an owner keeps what its capacity (``alpha`` times the mean) leaves after what
    it has and what of its own is still to be treated. The rest goes to the ranks with least, in pieces of at least
    ``min_tokens`` unless less is left; if no rank has room, to the one with least.

    >>> spilled((6.0, 2.0, 0.0, 0.0), 2, 1.0, 0.0)
    ((4.0, 4.0), [Spill(expert=0, owner=0, helper=1, rows=4.0)])
    """
    per_rank = len(rows) // ranks
    capacity = alpha * sum(rows) / ranks
    assigned = np.zeros(ranks)
    pending = np.array(rows).reshape(ranks, per_rank).sum(axis=1)
    moved: list[Spill] = []
    for expert in sorted(range(len(rows)), key=lambda index: -rows[index]):
        owner, rest = expert // per_rank, rows[expert]
        pending[owner] -= rest
        kept = min(rest, max(0.0, capacity - assigned[owner] - pending[owner]))
        assigned[owner] += kept
        rest -= kept
        while rest > capacity * ROUNDING:
            others = sorted((rank for rank in range(ranks) if rank != owner), key=lambda r: assigned[r] + pending[r])
            helper, piece = others[0] if others else owner, rest
            for rank in others:
                room = min(rest, capacity - assigned[rank] - pending[rank])
                if room > capacity * ROUNDING and (room >= min_tokens or room == rest):
                    helper, piece = rank, room
                    break
            assigned[helper] += piece
            rest -= piece
            if helper != owner:
                moved.append(Spill(expert, owner, helper, float(piece)))
    return tuple(assigned.tolist()), moved


#: Of a capacity: less is nothing.
ROUNDING = 1e-9


def balance(visits: Visits, alpha: float, min_tokens: int, threshold: float, planner_host: float) -> Balanced:
    """The ranks' rows after the spills, counted as the busiest's."""
    ranks, total = visits.ranks, visits.assignments
    plain = Balanced(visits.loads)
    mean = sum(plain.loads) / ranks
    if total == 0.0 or plain.busiest_rank_load < threshold * mean:
        return plain.waited_for()
    rows, moved = spilled(tuple(share * total for share in visits.shares), ranks, alpha, min_tokens)
    # An expert that spills to a rank in two pieces goes there once.
    pairs = {(spill.expert, spill.owner, spill.helper) for spill in moved}
    sent = max((sum(owner == rank for _, owner, _ in pairs) for rank in range(ranks)), default=0)
    received = max((sum(helper == rank for *_, helper in pairs) for rank in range(ranks)), default=0)
    loads = tuple(count * ranks / total for count in rows)
    host_s = planner_host * len(visits.shares)
    return Balanced(loads, float(received), float(sent), planned=True, host_s=host_s).waited_for()


LLEP = BALANCES.register(
    ExpertBalance(
        "llep",
        balance,
        "rows over a rank's capacity go to ranks with room, with their experts' weights (LLEP)",
        options=(
            BalanceOption(
                "alpha", Annotated[float, Field(ge=1, le=100)], 1.0, "capacity of a rank, in means of the group"
            ),
            BalanceOption("min_tokens", Annotated[int, Field(ge=0)], 1024, "rows of the smallest spill"),
            BalanceOption(
                "threshold", Annotated[float, Field(ge=1, le=1000)], 1.3, "busiest over mean below which nothing moves"
            ),
            BalanceOption(
                "planner_host",
                Seconds,
                0.0,
                "host time an expert of every layer's plan; the published code synchronises twice an expert",
            ),
        ),
        serves=False,
    )
)
