"""Tokens and experts placed by prediction (Speculative MoE, later Sem-MoE; Li et al. 2025, arXiv 2503.04398).

Offline, tokens and experts that go together are put on one device; a request goes to the rank where most of its tokens'
experts are, and under tensor-parallel attention the reduce-scatter behind it hands every token to its predicted rank
(in another order: the same bytes). What is left for dispatch and combine are the copies that were predicted wrong: with
a local rate r (``routing.local_rate``: of all choices those that fall on the token's own rank; 1/N where nothing is
predicted) both carry (1 − r)/(1 − 1/N) of the bytes. What tables and lookups take is not counted (published: 1 %), nor
an all-to-all that the form under tensor-parallel attention is said to save.
"""

from __future__ import annotations

from ...model import Experts
from ..dispatch import DISPATCHES, ExpertDispatch, distinct_ranks
from ..routing import ExpertRouting


def left(routing: ExpertRouting, experts: Experts, ranks: int) -> tuple[float, float]:
    """Of the bytes of a random placement, those that still travel, there and back.

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
