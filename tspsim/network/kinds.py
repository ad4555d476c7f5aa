"""Kinds of collectives: what they do to the bytes of their ranks, whatever the algorithm.

Sizes are those of nccl-tests. A rank owns 1/n of S bytes among n ranks, so that one pass gives it S·(n − 1)/n bytes
that it did not hold. Bus bandwidth is the bytes that a rank passes on, over the time (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.registry import Registry
from ..program import RING_SHIFT as SHIFT


@dataclass(frozen=True, slots=True)
class CollectiveKind:
    """A kind of collective.

    Attributes
    ----------
    name
        Name in programs, plans and node files.
    counts
        What ``size_bytes`` counts, in words.
    passes
        Passes of the bytes through the group: 2 if they are reduced and then gathered.
    keeps_own
        Whether a rank owns 1/n of the bytes, which do not move.
    rooted
        Whether one rank sends to all others; bytes received are means over the group.
    reduces
        Whether ranks add what they receive.
    considered
        Algorithms that a library considers if a node's file lists none for this kind; empty: all that can run it.
    """

    name: str
    counts: str
    passes: int = 1
    keeps_own: bool = True
    rooted: bool = False
    reduces: bool = False
    considered: tuple[str, ...] = ()

    def received_bytes(self, size_bytes: float, members: int) -> float:
        """Bytes that a rank receives and did not hold, mean over the group.

        >>> ALL_REDUCE.received_bytes(8e9, 8), RING_SHIFT.received_bytes(8e9, 8)
        (14000000000.0, 8000000000.0)
        """
        return float(self.passes * (size_bytes * (members - 1) / members) if self.keeps_own else size_bytes)

    def passed_on(self, members: int) -> float:
        """Bytes that a rank passes on for one byte of ``size_bytes``: bus bandwidth over algorithm bandwidth.

        >>> ALL_REDUCE.passed_on(8), BROADCAST.passed_on(8)
        (1.75, 1.0)
        """
        return self.passes * (members - 1) / members if self.keeps_own and not self.rooted else 1.0


#: Kinds by name in programs.
KINDS: Registry[CollectiveKind] = Registry("collective", "tspsim.collective_kinds", CollectiveKind)
ALL_GATHER = KINDS.register(CollectiveKind("all_gather", "the gathered result"))
REDUCE_SCATTER = KINDS.register(CollectiveKind("reduce_scatter", "the whole input", reduces=True))
ALL_REDUCE = KINDS.register(CollectiveKind("all_reduce", "the vector", passes=2, reduces=True))
BROADCAST = KINDS.register(CollectiveKind("broadcast", "the vector", rooted=True))
ALL_TO_ALL = KINDS.register(CollectiveKind("all_to_all", "what one rank holds before"))
RING_SHIFT = KINDS.register(
    CollectiveKind(SHIFT, "what one rank sends", keeps_own=False, considered=("multi_ring", "ring"))
)
