"""What a collective algorithm is to everybody else: an object that registers itself.

::

    def build(group: Group, kind: CollectiveKind) -> list[Schedule]:
        after = group.ranks[1:] + group.ranks[:1]
        return [scheduled(group, "ring", group.ranks, after, kind.passed_on(group.size), node_steps=group.size)]

    ALGORITHMS.register(CollectiveAlgorithm("mine", ("all_gather",), "one line for the table", build))

A plan then names it (``algorithms: {all_gather: mine}``), or a node's file lists it among those its library considers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.registry import Registry
from ..kinds import CollectiveKind
from .choices import AlgorithmCandidate, Builder, timed
from .exchange import ExpertExchange
from .schedule import Group, Schedule


@dataclass(frozen=True)
class CollectiveAlgorithm:
    """One algorithm.

    Attributes
    ----------
    name
        As plans, node files and reports write it.
    kinds
        Names of the kinds it can run.
    summary
        What it is, in a line.
    build
        A group's schedules for one byte of a kind, of which the cheapest is taken; none: it cannot run there.
    """

    name: str
    kinds: tuple[str, ...]
    summary: str
    build: Builder

    def schedules(self, group: Group, kind: CollectiveKind) -> list[Schedule]:
        """Those of a kind; none of one that is not among its kinds."""
        return self.build(group, kind) if kind.name in self.kinds else []

    def choices(
        self, group: Group, kind: CollectiveKind, library: str | None, exchange: ExpertExchange | None
    ) -> list[AlgorithmCandidate]:
        """Its schedules, each with its measured time or under every protocol."""
        return [
            choice
            for schedule in self.schedules(group, kind)
            for choice in timed(group, kind, self.name, schedule, self.build, library)
        ]

    def missing(self, group: Group, library: str | None) -> bool:
        """Whether the node has no such thing at all, so that its library's own choice takes its place."""
        return False

    def size_bytes(self, group: Group, stated: float, library: str | None, exchange: ExpertExchange) -> float:
        """What ``size_bytes`` is when ``exchange`` is what is moved."""
        return stated


#: Every algorithm that a caller may name.
ALGORITHMS: Registry[CollectiveAlgorithm] = Registry("algorithm", "tspsim.collective_algorithms", CollectiveAlgorithm)
