"""Copies of the experts that are visited most (EPLB, github.com/deepseek-ai/EPLB): a map made of past loads.

Copies are given one by one to the expert with most visits a copy; then copies, heaviest first, to the rank that has
least and a slot left. With groups of experts on nodes, groups are packed to nodes first, copies are made inside each
node, and packed to its ranks. Tokens are spread evenly over the copies of an expert. Between two maps loads drift:
``stale`` experts of a hundred have changed places since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ..balance import BALANCES, Balanced, BalanceOption, ExpertBalance, Visits


def packed(weights: Sequence[float], packs: int) -> list[list[int]]:
    """Items to packs of as many each, heaviest first to the pack that has least and room.

    >>> packed([5.0, 4.0, 3.0, 2.0], 2)
    [[0, 3], [1, 2]]
    """
    room = len(weights) // packs
    packed: list[list[int]] = [[] for _ in range(packs)]
    have = [0.0] * packs
    for item in sorted(range(len(weights)), key=lambda index: -weights[index]):
        pack = min((index for index in range(packs) if len(packed[index]) < room), key=lambda index: have[index])
        packed[pack].append(item)
        have[pack] += weights[item]
    return packed


def copies(weights: Sequence[float], slots: int) -> list[int]:
    """How many of ``slots`` each expert gets: at least one, each further one to the expert with most visits a copy.

    >>> copies([90.0, 40.0, 10.0], 5)
    [3, 1, 1]
    """
    count = [1] * len(weights)
    for _ in range(slots - len(weights)):
        count[max(range(len(weights)), key=lambda index: weights[index] / count[index])] += 1
    return count


def placed(weights: Sequence[float], ranks: int, slots: int, groups: int = 1, nodes: int = 1) -> list[list[int]]:
    """The experts of every rank's slots, from ``groups`` of neighbouring experts that go to ``nodes`` whole.

    >>> [sorted(each) for each in placed([9.0, 1.0, 1.0, 1.0], 2, 6)]
    [[0, 0, 3], [0, 1, 2]]
    """
    size = len(weights) // groups
    whole = [float(sum(weights[group * size : (group + 1) * size])) for group in range(groups)]
    ranks_of: list[list[int]] = []
    for mine in packed(whole, nodes):
        experts = [group * size + index for group in mine for index in range(size)]
        count = copies([weights[expert] for expert in experts], slots // nodes)
        replicas = [(expert, weights[expert] / times) for expert, times in zip(experts, count, strict=True)]
        items = [item for item, times in zip(replicas, count, strict=True) for _ in range(times)]
        packs = packed([weight for _, weight in items], ranks // nodes)
        ranks_of += [[items[index][0] for index in pack] for pack in packs]
    return ranks_of


def drifted(shares: Sequence[float], stale: float, seed: int) -> list[float]:
    """The loads that a map was made of: ``stale`` of the experts had each other's since then.

    >>> drifted([4.0, 3.0, 2.0, 1.0], 0.0, 0)
    [4.0, 3.0, 2.0, 1.0]
    """
    before = np.array(shares, dtype=np.float64)
    generator = np.random.Generator(np.random.PCG64(seed))
    moved = generator.permutation(len(before))[: round(stale * len(before))]
    before[moved] = before[np.roll(moved, 1)]
    return [float(load) for load in before]


def balance(visits: Visits, replicas: int | None, groups: int, nodes: int, stale: float, seed: int) -> Balanced:
    """The ranks' loads under the map, counted as the busiest's."""
    experts, ranks = len(visits.shares), visits.ranks
    slots = slots_of(experts, ranks, {"replicas": replicas})
    ranks_of = placed(drifted(visits.shares, stale, seed), ranks, slots, groups, nodes)
    return with_copies(visits, ranks_of)


def with_copies(visits: Visits, ranks_of: Sequence[Sequence[int]]) -> Balanced:
    """The ranks' loads where each of an expert's copies gets as many tokens; ``ranks_of``: the experts of every rank's
    slots."""
    experts, ranks = len(visits.shares), visits.ranks
    count = np.bincount([expert for mine in ranks_of for expert in mine], minlength=experts)
    shares_of = [tuple(visits.shares[expert] / float(count[expert]) for expert in mine) for mine in ranks_of]
    loads = tuple(sum(mine) * ranks for mine in shares_of)
    further = (int(count.sum()) - experts) / ranks
    return Balanced(loads, further_experts=further, placed=tuple(shares_of)).waited_for()


def slots_of(experts: int, ranks: int, options: Mapping[str, Any]) -> int:
    """Experts and copies in all; where they are not stated, a copy more a rank.

    >>> [slots_of(256, *of) for of in ((32, {"replicas": None}), (48, {"replicas": None}), (48, {"replicas": 288}))]
    [288, 336, 288]
    """
    stated: int | None = options["replicas"]
    return (-(-experts // ranks) + 1) * ranks if stated is None else stated


def divisible(experts: int, ranks: int, options: Mapping[str, Any]) -> str | None:
    """Why the slots do not divide over the ranks; None if they do."""
    slots = slots_of(experts, ranks, options)
    if slots < experts or slots % ranks:
        return f"replicas: {slots} is not a multiple of ep = {ranks} from {experts} experts on"
    return None


def check(experts: int, ranks: int, options: Mapping[str, Any]) -> str | None:
    groups, nodes = options["groups"], options["nodes"]
    wrong = divisible(experts, ranks, options)
    if wrong is not None:
        return wrong
    if groups % nodes or experts % groups or ranks % nodes:
        return f"groups: {groups} of {experts} experts do not spread over nodes: {nodes} of {ranks} ranks"
    return None


REPLICAS = BalanceOption(
    "replicas",
    Annotated[int, Field(ge=1, le=65536)] | None,
    None,
    "experts and copies in all, a multiple of the ranks; default: one copy more a rank",
)
EPLB = BALANCES.register(
    ExpertBalance(
        "eplb",
        balance,
        "copies of the experts that are visited most, by a map of past loads (EPLB)",
        options=(
            REPLICAS,
            BalanceOption(
                "groups", Annotated[int, Field(ge=1, le=65536)], 1, "groups of experts that nodes take whole"
            ),
            BalanceOption("nodes", Annotated[int, Field(ge=1, le=65536)], 1, "nodes that groups are packed to"),
            BalanceOption(
                "stale", Annotated[float, Field(ge=0, le=1)], 0.0, "share of experts whose loads moved since the map"
            ),
            BalanceOption("seed", Annotated[int, Field(ge=0)], 0, "of which ones"),
        ),
        trains=False,
        check=check,
        slots=slots_of,
    )
)
