"""Classes of equal ranks and of equal instances, by colour refinement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ..network import Cluster
from ..network.sharing import Solutions
from .channels import Users, users_of
from .folding import number, refined
from .instances import Instance, Integers, Uses, segments, used_links

Floats = NDArray[np.float64]

#: Class of every rank, class of every instance, and whether classes are approximate (:func:`rank_classes`).
Classes = tuple[list[int], list[int], bool]


@dataclass(frozen=True)
class RankClasses:
    """Classes of a partition, the shares of links by class, and the memo of rates between their channels."""

    classes: Classes
    users: Users
    solutions: Solutions = field(default_factory=Solutions)

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        members: Sequence[tuple[int, int]],
        kinds: NDArray[np.int64],
        instances: Sequence[Instance],
    ) -> RankClasses:
        """Classes by :func:`rank_classes`."""
        uses = used_links(instances)
        classes = rank_classes(cluster, members, kinds, instances, uses)
        return cls(classes, users_of(uses, classes[1]))


def links_of(instances: Iterable[Instance]) -> int:
    """Sum of the numbers of links of the instances."""
    return sum([len(instance.traffic.links) for instance in instances])


def rank_classes(
    cluster: Cluster,
    members: Sequence[tuple[int, int]],
    kinds: NDArray[np.int64],
    instances: Sequence[Instance],
    uses: Uses,
) -> tuple[list[int], list[int], bool]:
    """Classes of ranks and of instances by colour refinement over ranks, instances and links, and whether they are
    approximate.

    If groups do not divide a fabric's switches evenly, some links have slightly more load than others, and hardly any
    two ranks are equal. If that gives more than :data:`MANY` classes, most of them because of links between switches,
    these links are left out of the comparison: each class is as fast as the busiest link on any member's route allows
    (docs/engine.md has the error). ``uses`` are the links of the instances.
    """
    exact = refined_classes(cluster, members, kinds, instances, uses, len(cluster.links))
    if max(exact[0]) < MANY:
        return *exact, False
    rough = refined_classes(cluster, members, kinds, instances, uses, cluster.layout.switch_start)
    return (*rough, True) if 2 * max(rough[0]) < max(exact[0]) else (*exact, False)


#: Classes of ranks above which links between switches are left out of the comparison (:func:`rank_classes`).
MANY = 128


def refined_classes(
    cluster: Cluster,
    members: Sequence[tuple[int, int]],
    kinds: NDArray[np.int64],
    instances: Sequence[Instance],
    uses: Uses,
    links: int,
) -> tuple[list[int], list[int]]:
    """Classes of ranks and of instances, comparing only the first ``links`` of the cluster's links.

    Links of equal bandwidth that the same instances use in the same shares are one vertex, whose colour has their
    number.
    """
    first_instance, first_link = len(members), len(members) + len(instances)
    colours: list[tuple[object, ...]] = [("rank", int(kinds[rank]), copies) for rank, copies in members]
    colours += [
        ("instance", instance.template, instance.traffic.latency_s, instance.traffic.fluid_s) for instance in instances
    ]
    rates, using, share, there = equal_links(cluster, uses, links)
    colours += [("links", *sorted(counts.items())) for counts in rates]
    vertex = np.zeros(cluster.gpus, dtype=np.int64)
    vertex[[rank for rank, _ in members]] = np.arange(first_instance)
    lengths = [len(instance.ranks) for instance in instances]
    rank = np.fromiter(chain.from_iterable(instance.ranks for instance in instances), np.int64, sum(lengths))
    position = np.fromiter(chain.from_iterable(map(_positions, instances)), np.int64, len(rank))
    # Edges in both directions between ranks and instances, and between instances and links.
    members_of = np.repeat(np.arange(first_instance, first_link), lengths)
    ends = np.concatenate([vertex[rank], there + first_link]), np.concatenate([members_of, using + first_instance])
    _, shares = np.unique(share, return_inverse=True)
    label = np.concatenate([position, MOST_POSITIONS + shares])
    source, other = np.concatenate(ends), np.concatenate(ends[::-1])
    order = np.argsort(source, kind="stable")
    degree = np.bincount(source, minlength=len(colours))
    classes = refined(colours, degree, np.concatenate([label, label])[order], other[order])
    return number(classes[:first_instance]), number(classes[first_instance:first_link])


#: Number of positions of a rank in an instance: member of a collective, sender, receiver.
MOST_POSITIONS = 3


def _positions(instance: Instance) -> Sequence[int]:
    """Position of each rank of an instance: member (0), sender (1) or receiver (2)."""
    return (1, 2) if instance.is_message else (0,) * len(instance.ranks)


def equal_links(cluster: Cluster, uses: Uses, links: int) -> tuple[list[Counter[float]], Integers, Floats, Integers]:
    """Sets of links that the same instances use in the same shares, among the first ``links`` of a cluster.

    Returns
    -------
    tuple
        Number of links by bandwidth in each set; then three columns of uses: instance, share, and index of the set.
    """
    kept = uses.link < links
    order = np.argsort(uses.link[kept], kind="stable")
    link, instance, share = uses.link[kept][order], uses.instance[kept][order], uses.share[kept][order]
    if not len(link):
        return [], instance, share, instance
    begins, ends = segments(link)
    bandwidth = cluster.links.bandwidth_bytes_per_s[link[begins]].tolist()
    row, pairs = 2 * instance.itemsize, np.stack([instance, share.view(np.int64)], axis=1).tobytes()
    place_of: dict[bytes, int] = {}
    rates: list[Counter[float]] = []
    parts: list[tuple[int, int]] = []
    for begin, end, rate in zip(begins.tolist(), ends.tolist(), bandwidth, strict=True):
        place = place_of.setdefault(pairs[row * begin : row * end], len(rates))
        if place == len(rates):
            rates.append(Counter())
            parts.append((begin, end))
        rates[place][rate] += 1
    rows = np.concatenate([np.arange(begin, end) for begin, end in parts])
    return rates, instance[rows], share[rows], np.repeat(np.arange(len(parts)), [end - begin for begin, end in parts])
