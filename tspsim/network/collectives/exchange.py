"""How many ranks, or nodes, of an expert-parallel group a token reaches."""

from __future__ import annotations

import math

from ...program import ExpertExchange


def reached(exchange: ExpertExchange, places: int) -> float:
    """Places among ``places``, neighbouring experts in each, that a token's experts lie in."""
    return places_reached(places, exchange.topk, exchange.groups, exchange.kept_groups)


def places_reached(places: int, topk: int, groups: int = 1, kept_groups: int = 1) -> float:
    """Places among ``places`` that a token's ``topk`` experts lie in, each equally likely; of experts in ``groups`` of
    neighbours those of ``kept_groups`` alone may be chosen.

    >>> places_reached(8, 1), round(places_reached(8, 8), 2)
    (1.0, 5.25)
    """
    if groups == 1:
        return float(places * (1.0 - (1.0 - 1.0 / places) ** topk))
    if places >= groups:  # the places of the kept groups alone
        reached = places * kept_groups / groups
        return reached * (1.0 - (1.0 - 1.0 / reached) ** topk)
    # A place holds several groups, j of them kept with the hypergeometric probability.
    inside = groups // places
    ways = math.comb(groups, kept_groups)
    missed = 0.0
    for j in range(min(inside, kept_groups) + 1):
        likely = math.comb(inside, j) * math.comb(groups - inside, kept_groups - j) / ways
        missed += likely * (1.0 - j / kept_groups) ** topk
    return places * (1.0 - missed)
