"""Tokens that stay where their expert was (ExFlow, Yao et al. 2024, arXiv 2401.08383): one exchange a layer, not two.

Every rank keeps the contexts of all sequences of the group, so that a token's attention can run anywhere; new keys and
values go to all ranks, beside what follows. Experts are placed so that a token's next expert is often on the same rank
(:mod:`tspsim.parallel.affinity`): p, of tokens and layers, 1/N at random. A token of k experts follows its first one;
copies go to the others' ranks and their sums come back to it. With D(N, k) distinct ranks a token's rank sends

    there  D − p − (1 − p)·(D − 1)/(N − 1)    copies, of a random placement D·(N − 1)/N
    back   D − 1                              sums, otherwise D·(N − 1)/N: none at k = 1

The paper has k = 1 or 2, and neither tensor-parallel attention nor the exchange of keys and values in its notes (which
attention on any rank needs); for k > 1 the rows above are derived here. It places experts on nodes first, then on
GPUs; here on ranks at once.
"""

from __future__ import annotations

from ...model import Experts
from ..affinity import stay_rate
from ..dispatch import DISPATCHES, ExpertDispatch, distinct_ranks
from ..routing import Routing


def left(routing: Routing, experts: Experts, ranks: int) -> tuple[float, float]:
    """Of the bytes of two exchanges at a random placement, those that still travel, there and back.

    >>> from math import isclose
    >>> isclose(left(Routing(affinity=0.0), Experts(16, 1, 64), 4)[0], 1.0), left(Routing(), Experts(16, 1, 64), 4)[1]
    (True, 0.0)
    """
    stays, reached = stay_rate(routing, experts.count, ranks), distinct_ranks(ranks, experts)
    usual = reached * (1.0 - 1.0 / ranks)
    there = reached - stays - (1.0 - stays) * (reached - 1.0) / (ranks - 1.0)
    return there / usual, (reached - 1.0) / usual


def note(routing: Routing, experts: Experts, ranks: int) -> str:
    stays = stay_rate(routing, experts.count, ranks)
    found = f"{stays:.0%} of the tokens find their next expert on their own rank (`routing.affinity`, `transitions`)"
    return f"{found}; every rank keeps the contexts of {ranks} replicas"


STAYING = DISPATCHES.register(
    ExpertDispatch(
        "staying",
        distinct_ranks,
        trains=False,
        searched=False,
        word="xs",
        assumption="every rank keeps the contexts of all sequences of its expert group",
        left=left,
        note=note,
        everywhere=True,
    )
)
