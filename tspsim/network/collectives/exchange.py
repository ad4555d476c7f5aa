"""What the ranks of an expert-parallel group give each other, and how many of them a token reaches."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Multiprocessors whose copies ``per_copy`` of a curve counts, and that a library takes unless told.
MULTIPROCESSORS = 24


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """What the ranks of an expert-parallel group give each other.

    Parameters
    ----------
    tokens
        Tokens a rank holds.
    token_bytes
        Bytes of one on the way, with its scales.
    experts, topk
        Experts of the layer, and how many a token goes to.
    multiprocessors
        Given to the kernels.
    groups, kept_groups
        A token's experts are in ``kept_groups`` of as many groups of neighbouring experts (DeepSeek-V3, §2.1.2).
    """

    tokens: float
    token_bytes: float
    experts: int = 256
    topk: int = 8
    multiprocessors: int = MULTIPROCESSORS
    groups: int = 1
    kept_groups: int = 1

    def reached(self, places: int) -> float:
        """Places among ``places``, neighbouring experts in each, that a token's experts lie in."""
        return places_reached(places, self.topk, self.groups, self.kept_groups)


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
