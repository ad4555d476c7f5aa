"""Dispatch with tokens and experts placed by prediction (Speculative MoE, later Sem-MoE; Li et al. 2025,
arXiv 2503.04398).

Tokens and experts that go together are placed on one device offline; a request goes to the rank with most of its
tokens' experts, and under tensor-parallel attention the reduce-scatter after it sends every token to its predicted rank
(the same bytes in another order). Dispatch and combine then carry mispredicted copies alone: with local rate r
(``routing.local_rate``: share of the choices that fall on the token's own rank; 1/N without prediction), (1 − r)/(1 −
1/N) of the bytes. Not counted: tables and lookups (published: 1 %), and an all-to-all that the variant for
tensor-parallel attention is said to save.
"""

from __future__ import annotations

from ...model import Experts
from ..dispatch import DISPATCHES, ExpertDispatch, distinct_ranks
from ..routing import ExpertRouting


def left(routing: ExpertRouting, experts: Experts, ranks: int) -> tuple[float, float]:
    """Bytes that still move, dispatch and combine, over those of a random placement.

    >>> left(ExpertRouting(local_rate=0.62), Experts(64, 6, 1408), 4)[0]
    0.5066666666666667
    """
    assert routing.local_rate is not None
    share = (1.0 - routing.local_rate) / (1.0 - 1.0 / ranks)
    return share, share


def check(routing: ExpertRouting, experts: Experts, ranks: int) -> str | None:
    rate = routing.local_rate
    if rate is None:
        return "needs routing.local_rate: the share of choices that fall on a token's own rank"
    if rate < 1.0 / ranks:
        return f"routing.local_rate: {rate:g} is less than the 1/{ranks} of a random placement"
    return None


def note(routing: ExpertRouting, experts: Experts, ranks: int) -> str:
    return f"{routing.local_rate:.0%} of the choices fall on a token's own rank (stated: `routing.local_rate`)"


PREDICTED = DISPATCHES.register(
    ExpertDispatch(
        "predicted",
        distinct_ranks,
        trains=False,
        why_not="needs tables that predict the experts of a token",
        word="xp",
        assumption="tables that predict the experts of a token, and place tokens and experts by it",
        left=left,
        note=note,
        check=check,
    )
)
