"""Copies without a map of loads, SGLang's ``ep_num_redundant_experts`` alone: slot i has expert i modulo their number.

Source: sgl-project/sglang, srt/eplb/expert_location.py, ``init_trivial``; a rank has slots/ranks neighbouring slots. A
rank's tokens go to one copy of an expert (``ep_dispatch_algorithm: static``), other ranks' to the others, so that over
all ranks the copies of an expert get as many.
"""

from __future__ import annotations

import numpy as np

from ..balance import BALANCES, Balanced, ExpertBalance, Visits
from .eplb import REPLICAS, divisible, slots_of, with_copies


def placed(experts: int, ranks: int, slots: int) -> list[list[int]]:
    """The experts of every rank's slots.

    >>> placed(4, 3, 6)
    [[0, 1], [2, 3], [0, 1]]
    """
    return (np.arange(slots) % experts).reshape(ranks, -1).tolist()


def balance(visits: Visits, replicas: int | None) -> Balanced:
    """The ranks' loads, counted as the busiest's."""
    experts, ranks = len(visits.shares), visits.ranks
    slots = slots_of(experts, ranks, {"replicas": replicas})
    return with_copies(visits, placed(experts, ranks, slots))


BALANCES.register(
    ExpertBalance(
        "repeated",
        balance,
        "copies of the first experts, without a map of loads (SGLang's redundant experts alone)",
        options=(REPLICAS,),
        trains=False,
        check=divisible,
        slots=slots_of,
        why_not="another engine's default for copies, never better than eplb",
    )
)
