"""Several rings at once over disjoint links, which together use a whole mesh."""

from __future__ import annotations

from ...base.memo import remembered
from ..kinds import RING_SHIFT, CollectiveKind
from .algorithm import ALGORITHMS, CollectiveAlgorithm
from .ring import KINDS, rings
from .schedule import Group, Schedule

Cycle = tuple[int, ...]


def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
    """Rings over edge-disjoint Hamiltonian cycles of each node's ranks; only on a mesh, in regular groups.

    A hop of a ring (``ring_shift``) may use several rings behind a switch too, where a port sends as much as with one.
    """
    hop = kind is RING_SHIFT
    if not (group.mesh or hop) or not group.regular or len(group.members[0]) < (2 if hop else 3):
        return []
    return rings(group, kind, hamiltonian_cycles(len(group.members[0])))


@remembered(128)
def hamiltonian_cycles(n: int) -> tuple[Cycle, ...]:
    """Directed Hamiltonian cycles of the complete digraph on ``n`` vertices, no two sharing an arc.

    Returns
    -------
    tuple of cycles
        Each is a tuple of ``n`` vertices; the arc from last to first closes it. There are ``n − 1`` cycles, which cover
        all arcs, for odd ``n`` and for 2 and 8; ``n − 2`` for other even ``n``.

    Notes
    -----
    Odd ``n``: Walecki's cycles in both directions. Even ``n``: the same cycles with one more vertex inserted into an
    arc of each, which leaves a perfect matching unused. For 4 and 6 no larger set exists (Bermond and Faber, Journal of
    Combinatorial Theory B 21, 1976). For 8 a search finds the full decomposition, which exists for all even ``n ≥ 8``
    (Tillson, Journal of Combinatorial Theory B 29, 1980).

    Examples
    --------
    >>> [len(hamiltonian_cycles(n)) for n in (2, 3, 4, 5, 6, 7, 8)]
    [1, 2, 2, 4, 4, 6, 7]
    """
    if n == 2:
        return ((0, 1),)
    if n == 8:
        rings = decomposition(n)
        assert rings is not None
        return rings
    half = (n - 1) // 2
    cycles = []
    for turn in range(half):
        zigzag = [(turn + (i + 1) // 2 * (-1) ** (i + 1)) % (2 * half) for i in range(2 * half)]
        cycle = [2 * half, *zigzag]
        if n % 2 == 0:
            # The arc between positions half and half + 1 joins opposite vertices, a different pair in each turn.
            cycle.insert(half + 1, n - 1)
        cycles += [tuple(cycle), tuple(reversed(cycle))]
    return tuple(cycles)


def decomposition(n: int) -> tuple[Cycle, ...] | None:
    """All arcs of the complete digraph as ``n − 1`` Hamiltonian cycles, by exhaustive search; None if there are none.

    Cycle k begins with the arc 0 → k; each vertex has a bit mask of its used arcs. Fast up to n = 8.

    Examples
    --------
    >>> decomposition(4) is None, decomposition(6) is None, len(decomposition(8) or ())
    (True, True, 7)
    """
    taken = [0] * n
    cycles: list[Cycle] = []

    def begin(k: int) -> bool:
        if k == n:
            return True
        taken[0] |= 1 << k
        if extend([0, k], 1 | 1 << k):
            return True
        taken[0] &= ~(1 << k)
        return False

    def extend(path: list[int], visited: int) -> bool:
        last = path[-1]
        if len(path) == n:
            if taken[last] & 1:
                return False
            taken[last] |= 1
            cycles.append(tuple(path))
            if begin(len(cycles) + 1):
                return True
            cycles.pop()
            taken[last] &= ~1
            return False
        for following in range(1, n):
            if not (taken[last] | visited) >> following & 1:
                taken[last] |= 1 << following
                if extend([*path, following], visited | 1 << following):
                    return True
                taken[last] &= ~(1 << following)
        return False

    return tuple(cycles) if begin(1) else None


ALGORITHM = ALGORITHMS.register(
    CollectiveAlgorithm("multi_ring", KINDS, "rings over edge-disjoint Hamiltonian cycles of a mesh", build)
)
