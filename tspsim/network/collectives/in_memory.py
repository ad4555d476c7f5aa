"""Collectives over a memory pool that adds what is written to it (FengHuang, Li et al. 2025, arXiv:2511.10753).

Every GPU of a node has a link to the pool, of b bytes/s in each direction. In a collective all ranks write, meet at a
barrier, and read. With n bytes, N ranks, and latency l of a write or a read:

    all-reduce       write n, read n                    2n/b + 2l          the same for 8 ranks and for 72
    all-gather       write n/N, read others' n(N - 1)/N  n/b + 2l
    reduce-scatter   write n, read n/N                  (1 + 1/N)·n/b + 2l
    all-to-all       write and read n(N - 1)/N          2n(N - 1)/(N·b) + 2l
    broadcast, and a message between two ranks          2n/b + 2l

A ring of N ranks over equally fast links moves 2n(N - 1)/N bytes a rank in both directions at once. The pool moves as
many bytes in as much time, but takes 2 steps instead of 2(N - 1).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..kinds import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE_SCATTER, RING_SHIFT, CollectiveKind
from .algorithm import ALGORITHMS, AlgorithmCandidate, CollectiveAlgorithm, ProtocolLine
from .schedule import Group, Schedule, on_links


def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """One schedule in a node with a pool: every rank's write, then its read, for one byte of payload."""
    if group.cluster.node.memory_pool is None or len(group.members) > 1:
        return []
    own = 1.0 / group.size
    written, read = {
        ALL_REDUCE: (1.0, 1.0),
        REDUCE_SCATTER: (1.0, own),
        ALL_GATHER: (own, 1.0 - own),
        ALL_TO_ALL: (1.0 - own, 1.0 - own),
        BROADCAST: (0.0, 1.0),
        RING_SHIFT: (1.0, 1.0),
    }[kind]
    writes = np.full(group.size, written)
    if kind.rooted:
        writes[list(group.ranks).index(group.source)] = 1.0
    return _written_and_read(group, writes, np.full(group.size, read))


def message(group: Group) -> AlgorithmCandidate:
    """Candidate of a message from the group's first rank to its second."""
    (schedule,) = _written_and_read(group, np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    return AlgorithmCandidate("point_to_point", schedule, cost(group, BROADCAST, schedule))


def _written_and_read(group: Group, writes: np.ndarray, reads: np.ndarray) -> list[Schedule]:
    layout = group.cluster.layout
    node, local = np.divmod(np.array(group.ranks), layout.gpus)
    up = node * layout.node_links + local
    links, load = np.concatenate([up, up + layout.gpus]), np.concatenate([writes, reads])
    order = np.argsort(links)
    links, load = links[order][load[order] > 0.0], load[order][load[order] > 0.0]
    if np.isin(links, layout.dead).any():
        return []
    schedule = on_links(group, "in_memory", links, load, node_steps=2)
    # Reads begin after all writes, so the shorter of the two is added to the busiest link's time.
    rate = 1.0 / float((schedule.busy_s / schedule.load).max())
    return [replace(schedule, own_s=min(float(writes.max()), float(reads.max())) / rate)]


def cost(group: Group, kind: CollectiveKind, schedule: Schedule) -> ProtocolLine:
    """The pool's own latency takes the place of a library's."""
    pool = group.cluster.node.memory_pool
    assert pool is not None
    return ProtocolLine(2.0 * pool.latency.value, schedule.fluid_s)


KINDS = tuple([kind.name for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, ALL_TO_ALL, RING_SHIFT)])
ALGORITHM = ALGORITHMS.register(
    CollectiveAlgorithm("in_memory", KINDS, "every rank writes to a pool that adds, and reads from it", build, cost)
)
