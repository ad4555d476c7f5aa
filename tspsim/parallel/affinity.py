"""Expert affinity: which expert follows which from layer to layer, and placement by it (ExFlow, arXiv 2401.08383).

P[i, j] is the share of expert i's tokens whose next expert is j. A layer's experts lie on N ranks, equally many on
each. The first layer's placement is fixed; those of each following layer are assigned so that the most tokens have
their next expert on their own rank: max Σ_j F[rank of j, j], F[r, j] = Σ_{i on r} share_i·P[i, j], E/N experts per
rank. ExFlow solves all layers at once by an integer program; here each layer's assignment is exact. On several nodes it
keeps tokens in their node first: experts are assigned to nodes, then in each node to its ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..base.memo import remembered
from .routing import ExpertRouting

#: Layers whose transitions are averaged, since each layer's placement depends on the one before.
LAYERS = 8


def transitions(routing: ExpertRouting, experts: int) -> NDArray[np.float64]:
    """P: shape (experts, experts), rows that add up to one.

    Measured, or from ``affinity`` a: with probability a the next expert is the expert's partner, drawn with the
    routing's seed, and otherwise any, by the experts' shares.
    """
    if routing.transitions:
        measured = np.array(routing.transitions, dtype=np.float64)
        return np.asarray(measured / measured.sum(axis=1, keepdims=True))
    partners = np.random.Generator(np.random.PCG64([routing.seed, 1])).permutation(experts)
    others = np.tile(routing.assigned_shares(experts), (experts, 1))
    follow = np.eye(experts)[partners]
    return np.asarray((1.0 - routing.affinity) * others + routing.affinity * follow)


def placed(flow: NDArray[np.float64]) -> NDArray[np.int64]:
    """The rank of every expert, equally many on each, so that the most tokens stay; ``flow`` from rank to expert has
    shape (ranks, experts)."""
    from scipy.optimize import linear_sum_assignment  # imported late: heavy, and seldom needed

    ranks, experts = flow.shape
    slots = np.repeat(np.arange(ranks), experts // ranks)
    chosen, slot = linear_sum_assignment(flow.T[:, slots], maximize=True)
    numbers = np.empty(experts, dtype=np.int64)
    numbers[chosen] = slots[slot]
    return numbers


def placed_on_nodes(flow: NDArray[np.float64], nodes: int) -> NDArray[np.int64]:
    """The rank of every expert, assigned to nodes first; ``flow`` as in :func:`placed`, a node's ranks adjacent."""
    ranks, experts = flow.shape
    per_node = ranks // nodes
    node_of = placed(flow.reshape(nodes, per_node, experts).sum(axis=1))
    numbers = np.empty(experts, dtype=np.int64)
    for node in range(nodes):
        here = np.flatnonzero(node_of == node)
        numbers[here] = node * per_node + placed(flow[node * per_node : (node + 1) * per_node][:, here])
    return numbers


@remembered(256)
def stay_rates(routing: ExpertRouting, experts: int, ranks: int, nodes: int) -> tuple[float, float]:
    """p and q with experts placed on nodes first: mean share of tokens, over layers, whose next expert is on their own
    rank, and in their own node.

    >>> [round(rate, 3) for rate in stay_rates(ExpertRouting(affinity=0.6), 16, 4, 2)]
    [0.7, 0.8]
    """
    follow, where = transitions(routing, experts), np.repeat(np.arange(ranks), experts // ranks)
    visited, pairs, per_node = routing.assigned_shares(experts), [], ranks // nodes
    for _ in range(LAYERS):
        flow = np.array([(visited * (where == rank)) @ follow for rank in range(ranks)])
        where = placed_on_nodes(flow, nodes)
        inside = flow.reshape(nodes, per_node, experts).sum(axis=1)
        every = np.arange(experts)
        pairs.append((float(flow[where, every].sum()), float(inside[where // per_node, every].sum())))
        visited = visited @ follow
    own, near = (float(np.mean(shares)) for shares in zip(*pairs, strict=True))
    return own, near


def stay_rate(routing: ExpertRouting, experts: int, ranks: int) -> float:
    """p with experts placed on ranks at once, as on a single node.

    >>> round(stay_rate(ExpertRouting(affinity=0.6), 16, 4), 3)
    0.7
    >>> round(stay_rate(ExpertRouting(), 16, 4), 3)
    0.25
    """
    return stay_rates(routing, experts, ranks, 1)[0]
