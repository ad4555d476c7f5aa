"""Which expert follows which from layer to layer, and experts placed by it (ExFlow, arXiv 2401.08383).

P[i, j] is the share of the tokens of expert i whose next expert is j. Experts of a layer lie on N ranks, as many on
each. The first layer's stand as they are; those of every following layer are assigned so that as many tokens as
possible find their next expert on their own rank: max Σ_j F[rank of j, j], F[r, j] = Σ_{i on r} share_i·P[i, j], E/N
experts a rank. ExFlow solves all layers at once by an integer programme; layer by layer each assignment is exact. Of
ranks on several nodes it keeps tokens in their node first: experts are assigned to nodes, then in each to its ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..base.memo import remembered
from .routing import ExpertRouting

#: Layers whose transitions are averaged: a map follows the map before it.
LAYERS = 8


def transitions(routing: ExpertRouting, experts: int) -> NDArray[np.float64]:
    """P: shape (experts, experts), rows that add up to one.

    As measured, or with ``affinity`` a: a token's next expert is its expert's partner, drawn with the routing's seed,
    with probability a, and otherwise any, by the experts' shares.
    """
    if routing.transitions:
        measured = np.array(routing.transitions, dtype=np.float64)
        return np.asarray(measured / measured.sum(axis=1, keepdims=True))
    partners = np.random.Generator(np.random.PCG64([routing.seed, 1])).permutation(experts)
    others = np.tile(routing.assigned_shares(experts), (experts, 1))
    follow = np.eye(experts)[partners]
    return np.asarray((1.0 - routing.affinity) * others + routing.affinity * follow)


def placed(flow: NDArray[np.float64]) -> NDArray[np.int64]:
    """The rank of every expert, as many on each, that most tokens need not leave: ``flow`` from rank to expert, shape
    (ranks, experts)."""
    from scipy.optimize import linear_sum_assignment  # heavy, and few ask

    ranks, experts = flow.shape
    slots = np.repeat(np.arange(ranks), experts // ranks)
    chosen, slot = linear_sum_assignment(flow.T[:, slots], maximize=True)
    numbers = np.empty(experts, dtype=np.int64)
    numbers[chosen] = slots[slot]
    return numbers


def placed_on_nodes(flow: NDArray[np.float64], nodes: int) -> NDArray[np.int64]:
    """The rank of every expert, nodes first: ``flow`` as :func:`placed` has it, ranks of a node beside each other."""
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
    """p and q, experts placed on nodes first: of all tokens and layers, those whose next expert is on their own rank,
    and those whose next is in their own node.

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
    """p, experts placed on ranks at once: as on a single node.

    >>> round(stay_rate(ExpertRouting(affinity=0.6), 16, 4), 3)
    0.7
    >>> round(stay_rate(ExpertRouting(), 16, 4), 3)
    0.25
    """
    return stay_rates(routing, experts, ranks, 1)[0]
