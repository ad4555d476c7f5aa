"""Which ranks and which uses of links are alike: classes by colour refinement, and those found lately."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..network import Cluster
from ..network.sharing import Solutions
from .folding import number, refine
from .instances import Instance

#: Class of every rank, of every instance, and whether ranks are only nearly alike (:func:`alike`).
Classes = tuple[list[int], list[int], bool]


@dataclass(frozen=True)
class Alike:
    """Classes of a partition, of what they were found (``members``, the ``kinds`` of ranks, these very
    ``instances``), and the rates solved between their channels."""

    members: Sequence[tuple[int, int]]
    kinds: bytes
    instances: Sequence[Instance]
    classes: Classes
    solutions: Solutions = field(default_factory=Solutions)

    def found_of(self, members: Sequence[tuple[int, int]], kinds: bytes, instances: Sequence[Instance]) -> bool:
        """Whether it is that of the same."""
        if self.kinds != kinds or self.members != members or len(self.instances) != len(instances):
            return False
        return all(map(operator.is_, self.instances, instances))


@dataclass
class Recent:
    """What was found on a cluster lately: a plan's next question often has the same groups and classes."""

    instances: dict[Hashable, list[Instance]] = field(default_factory=dict)
    alike: list[Alike] = field(default_factory=list)
    _links: int = 0

    #: Links of instances that are kept, and beyond which those found first are let go.
    MOST_LINKS: ClassVar[int] = 200_000
    #: Partitions that are kept: those of a plan's step and of its block, for two numbers of micro-batches.
    MOST_ALIKE: ClassVar[int] = 4

    def keep(self, key: Hashable, found: list[Instance]) -> None:
        """Remember instances that were not known."""
        self.instances[key] = found
        self._links += links_of(found)
        while self._links > self.MOST_LINKS:
            self._links -= links_of(self.instances.pop(next(iter(self.instances))))

    def classes(
        self, cluster: Cluster, members: Sequence[tuple[int, int]], kinds: NDArray[np.int64], instances: list[Instance]
    ) -> Alike:
        """What :func:`alike` says, found now or lately."""
        as_bytes = kinds.tobytes()
        for known in self.alike:
            if known.found_of(members, as_bytes, instances):
                return known
        found = Alike(members, as_bytes, instances, alike(cluster, members, kinds, instances))
        self.alike = [*self.alike[-self.MOST_ALIKE + 1 :], found]
        return found


def links_of(instances: Iterable[Instance]) -> int:
    return sum([len(each.traffic.links) for each in instances])


def alike(
    cluster: Cluster,
    members: Sequence[tuple[int, int]],
    kinds: NDArray[np.int64],
    instances: Sequence[Instance],
) -> tuple[list[int], list[int], bool]:
    """Classes of ranks and of instances, by colour refinement over ranks, instances and links; and whether they are
    only nearly alike.

    A fabric whose switches the groups do not divide evenly has a little more load on some links than on others, and
    then hardly two ranks are alike. Where that makes more than :data:`MANY` classes, and the links between switches
    the cause of most, these do not tell ranks apart: each class moves as fast as the busiest link on any member's way
    allows (docs/engine.md says how far that errs).
    """
    exact = told_apart(cluster, members, kinds, instances, len(cluster.links))
    if max(exact[0]) < MANY:
        return *exact, False
    rough = told_apart(cluster, members, kinds, instances, cluster.layout.switch_start)
    return (*rough, True) if 2 * max(rough[0]) < max(exact[0]) else (*exact, False)


#: Classes of ranks beyond which a fabric's uneven load is taken at its worst (:func:`alike`).
MANY = 128


def told_apart(
    cluster: Cluster,
    members: Sequence[tuple[int, int]],
    kinds: NDArray[np.int64],
    instances: Sequence[Instance],
    links: int,
) -> tuple[list[int], list[int]]:
    """The classes of :func:`alike` with only the first ``links`` of the cluster's links to tell them apart.

    Links of the same bandwidth that the same instances use in the same shares are told from each other by nothing: they
    are one vertex, with their number in its colour.
    """
    bandwidth = cluster.links.bandwidth_bytes_per_s
    vertex = {rank: index for index, (rank, _) in enumerate(members)}
    colours: list[tuple[object, ...]] = [("rank", int(kinds[rank]), copies) for rank, copies in members]
    users: dict[int, list[tuple[int, float]]] = {}
    for index, instance in enumerate(instances):
        colours.append(("instance", instance.template, instance.traffic.latency_s, instance.traffic.fluid_s))
        for link, share in zip(instance.traffic.links, instance.shares, strict=True):
            if link < links:
                users.setdefault(link, []).append((index, share))
    twins: dict[tuple[tuple[int, float], ...], Counter[float]] = {}
    for link, using in users.items():
        twins.setdefault(tuple(using), Counter())[float(bandwidth[link])] += 1
    colours += [("links", *sorted(rates.items())) for rates in twins.values()]
    edges: list[list[tuple[object, int]]] = [[] for _ in colours]
    for index, instance in enumerate(instances, len(members)):
        for position, rank in enumerate(instance.ranks):
            label = ("end", position) if instance.is_message else ("member", 0)
            edges[index].append((label, vertex[rank]))
            edges[vertex[rank]].append((label, index))
    for there, pattern in enumerate(twins, len(members) + len(instances)):
        for user, share in pattern:
            edges[len(members) + user].append((("share", share), there))
            edges[there].append((("share", share), len(members) + user))
    classes = refine(colours, edges)
    first_instance = len(members)
    return number(classes[:first_instance]), number(classes[first_instance : first_instance + len(instances)])
