"""Contents of an expert exchange, and the number of ranks or nodes that a token reaches."""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Multiprocessors to which ``per_copy`` of a curve refers, and which a library uses by default.
MULTIPROCESSORS = 24


@dataclass(frozen=True, slots=True)
class ExpertExchange:
    """Contents of an exchange in an expert-parallel group.

    Parameters
    ----------
    tokens
        Tokens of each rank.
    token_bytes
        Bytes of a token as sent, scales included.
    experts, topk
        Experts of the layer, and experts a token.
    multiprocessors
        Multiprocessors that the kernels use.
    groups, kept_groups
        A token's experts are in ``kept_groups`` of ``groups`` groups of consecutive experts (DeepSeek-V3, §2.1.2).
    """

    tokens: float
    token_bytes: float
    experts: int = 256
    topk: int = 8
    multiprocessors: int = MULTIPROCESSORS
    groups: int = 1
    kept_groups: int = 1

    def reached(self, places: int) -> float:
        """Expected number of ``places`` (ranks or nodes, with consecutive experts) that a token's experts lie on."""
        return places_reached(places, self.topk, self.groups, self.kept_groups)


def places_reached(places: int, topk: int, groups: int = 1, kept_groups: int = 1) -> float:
    """Expected number of ``places`` (ranks or nodes) that a token's ``topk`` random experts lie on.

    Experts are in ``groups`` groups of consecutive ones; a token's are all in ``kept_groups`` random groups.

    >>> places_reached(8, 1), round(places_reached(8, 8), 2)
    (1.0, 5.25)
    """
    if groups == 1:
        return float(places * (1.0 - (1.0 - 1.0 / places) ** topk))
    if places >= groups:  # only the places of the kept groups
        reached = places * kept_groups / groups
        return reached * (1.0 - (1.0 - 1.0 / reached) ** topk)
    # A place holds several groups, j of them kept with the hypergeometric probability.
    inside = groups // places
    subsets = math.comb(groups, kept_groups)
    missed = 0.0
    for j in range(min(inside, kept_groups) + 1):
        probability = math.comb(inside, j) * math.comb(groups - inside, kept_groups - j) / subsets
        missed += probability * (1.0 - j / kept_groups) ** topk
    return places * (1.0 - missed)
