"""Tokens that stay with their experts (ExFlow, Yao et al. 2024, arXiv 2401.08383): one exchange per layer, not two.

Every rank keeps the contexts of all sequences of the group, so that a token's attention can run on any rank; new keys
and values go to all ranks, beside what follows. Experts are placed so that a token's next expert is often on the same
rank (:mod:`tspsim.parallel.affinity`): with probability p over tokens and layers, 1/N at random. A token with k experts
moves to the first one's rank; copies go to the others' ranks, and their sums return to it. With D(N, k) distinct ranks
a token's rank sends

    dispatch  D − p − (1 − p)·(D − 1)/(N − 1)    copies; at random placement D·(N − 1)/N
    combine   D − 1                              sums; otherwise D·(N − 1)/N; none at k = 1

The paper has k = 1 or 2, no tensor-parallel attention, and does not mention the exchange of keys and values that
attention on any rank needs; for k > 1 the rows above are derived here. ``staying`` places experts on ranks at once;
``staying_by_nodes``, like the paper, first on nodes, then on their GPUs: a share q of the tokens stays in its node, the
others' copies leave it as often as at random, so that less crosses nodes and more crosses links inside.
"""

from __future__ import annotations

from dataclasses import replace

from ...model import Experts
from ..affinity import stay_rate, stay_rates
from ..dispatch import DISPATCHES, ExpertDispatch, NodeShares, distinct_ranks
from ..routing import ExpertRouting


def left(routing: ExpertRouting, experts: Experts, ranks: int) -> tuple[float, float]:
    """Bytes that still move, dispatch and combine, over those of two exchanges at random placement.

    >>> from math import isclose
    >>> even = left(ExpertRouting(affinity=0.0), Experts(16, 1, 64), 4)
    >>> isclose(even[0], 1.0), left(ExpertRouting(), Experts(16, 1, 64), 4)[1]
    (True, 0.0)
    """
    return left_by_nodes(routing, experts, ranks, 1)[:2]


def note(routing: ExpertRouting, experts: Experts, ranks: int) -> str:
    stays = stay_rate(routing, experts.count, ranks)
    sentence = f"{stays:.0%} of the tokens find their next expert on their own rank (`routing.affinity`, `transitions`)"
    return f"{sentence}; every rank keeps the contexts of {ranks} replicas"


def left_by_nodes(routing: ExpertRouting, experts: Experts, ranks: int, nodes: int) -> NodeShares:
    """:func:`left` with experts placed on nodes first, and of what moves the shares between nodes.

    >>> left_by_nodes(ExpertRouting(affinity=1.0), Experts(16, 1, 64), 4, 2)
    (0.0, 0.0, 0.0, 0.0)
    """
    (stays, inside), reached = stay_rates(routing, experts.count, ranks, nodes), distinct_ranks(ranks, experts)
    usual, chance = reached * (1.0 - 1.0 / ranks), (ranks - ranks // nodes) / (ranks - 1.0)
    there = reached - stays - (1.0 - stays) * (reached - 1.0) / (ranks - 1.0)
    across = (1.0 - inside) + max(0.0, there - (1.0 - stays)) * chance
    back = reached - 1.0
    return there / usual, back / usual, across / there if there > 1e-12 else 0.0, chance if back else 0.0


def note_by_nodes(routing: ExpertRouting, experts: Experts, ranks: int) -> str:
    placed = "experts are placed on nodes first, then on their GPUs (`routing.affinity`, `transitions`)"
    return f"{placed}; every rank keeps the contexts of {ranks} replicas"


_AT_ONCE = ExpertDispatch(
    "staying",
    distinct_ranks,
    trains=False,
    why_not="needs experts placed by a model's affinity",
    word="xs",
    assumption="every rank keeps the contexts of all sequences of its expert group",
    left=left,
    note=note,
    everywhere=True,
)
STAYING_BY_NODES = DISPATCHES.register(
    replace(_AT_ONCE, name="staying_by_nodes", word="xn", by_nodes=left_by_nodes, note=note_by_nodes)
)
STAYING = DISPATCHES.register(_AT_ONCE)
