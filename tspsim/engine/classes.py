"""Which ranks and which uses of links are alike: classes by colour refinement."""

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

#: Class of every rank, of every instance, and whether ranks are only nearly alike (:func:`alike`).
Classes = tuple[list[int], list[int], bool]


@dataclass(frozen=True)
class Alike:
    """Classes of a partition, what instances take of links, and the rates solved between their channels."""

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
    ) -> Alike:
        """What :func:`alike` says."""
        uses = used_links(instances)
        classes = alike(cluster, members, kinds, instances, uses)
        return cls(classes, users_of(uses, classes[1]))


def links_of(instances: Iterable[Instance]) -> int:
    """How many links instances use, each by itself."""
    return sum([len(instance.traffic.links) for instance in instances])


def alike(
    cluster: Cluster,
    members: Sequence[tuple[int, int]],
    kinds: NDArray[np.int64],
    instances: Sequence[Instance],
    uses: Uses,
) -> tuple[list[int], list[int], bool]:
    """Classes of ranks and of instances, by colour refinement over ranks, instances and links; and whether they are
    only nearly alike.

    A fabric whose switches the groups do not divide evenly has a little more load on some links than on others, and
    then hardly two ranks are alike. Where that makes more than :data:`MANY` classes, and the links between switches
    the cause of most, these do not tell ranks apart: each class moves as fast as the busiest link on any member's way
    allows (docs/engine.md says how far that errs). ``uses`` are the links that the instances use.
    """
    exact = told_apart(cluster, members, kinds, instances, uses, len(cluster.links))
    if max(exact[0]) < MANY:
        return *exact, False
    rough = told_apart(cluster, members, kinds, instances, uses, cluster.layout.switch_start)
    return (*rough, True) if 2 * max(rough[0]) < max(exact[0]) else (*exact, False)


#: Classes of ranks beyond which a fabric's uneven load is taken at its worst (:func:`alike`).
MANY = 128


def told_apart(
    cluster: Cluster,
    members: Sequence[tuple[int, int]],
    kinds: NDArray[np.int64],
    instances: Sequence[Instance],
    uses: Uses,
    links: int,
) -> tuple[list[int], list[int]]:
    """The classes of :func:`alike` with only the first ``links`` of the cluster's links to tell them apart.

    Links of the same bandwidth that the same instances use in the same shares are told from each other by nothing: they
    are one vertex, with their number in its colour.
    """
    first_instance, first_link = len(members), len(members) + len(instances)
    colours: list[tuple[object, ...]] = [("rank", int(kinds[rank]), copies) for rank, copies in members]
    colours += [
        ("instance", instance.template, instance.traffic.latency_s, instance.traffic.fluid_s) for instance in instances
    ]
    rates, using, share, there = twins(cluster, uses, links)
    colours += [("links", *sorted(counts.items())) for counts in rates]
    vertex = np.zeros(cluster.gpus, dtype=np.int64)
    vertex[[rank for rank, _ in members]] = np.arange(first_instance)
    lengths = [len(instance.ranks) for instance in instances]
    rank = np.fromiter(chain.from_iterable(instance.ranks for instance in instances), np.int64, sum(lengths))
    position = np.fromiter(chain.from_iterable(map(_positions, instances)), np.int64, len(rank))
    # Edges both ways: between ranks and instances, and between instances and links.
    members_of = np.repeat(np.arange(first_instance, first_link), lengths)
    ends = np.concatenate([vertex[rank], there + first_link]), np.concatenate([members_of, using + first_instance])
    _, shares = np.unique(share, return_inverse=True)
    label = np.concatenate([position, MOST_POSITIONS + shares])
    source, other = np.concatenate(ends), np.concatenate(ends[::-1])
    order = np.argsort(source, kind="stable")
    degree = np.bincount(source, minlength=len(colours))
    classes = refined(colours, degree, np.concatenate([label, label])[order], other[order])
    return number(classes[:first_instance]), number(classes[first_instance:first_link])


#: A member of a collective, a sender, a receiver.
MOST_POSITIONS = 3


def _positions(instance: Instance) -> Sequence[int]:
    """What each rank of an instance is in it."""
    return (1, 2) if instance.is_message else (0,) * len(instance.ranks)


def twins(cluster: Cluster, uses: Uses, links: int) -> tuple[list[Counter[float]], Integers, Floats, Integers]:
    """Sets of links that the same instances use in the same shares, of the first ``links`` of a cluster.

    Returns
    -------
    tuple
        How many links of which bandwidth each set has; and in columns every use of a set: the instance, the share, and
        the set.
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
