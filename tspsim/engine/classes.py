"""Folding: classes of equal ranks, of which one is run, and of equal instances; the channels of these classes.

Two ranks are equal if no observation distinguishes them: equal programs and costs, groups of equal composition, and
transfers that use equal shares of equal links, shared with equal others. These classes are the coarsest equitable
partition of the graph of ranks, channels and links, computed by colour refinement (Weisfeiler and Leman 1968; McKay and
Piperno 2014, §2). A max-min fair allocation is unique, so it is constant on the classes (as Grohe et al. 2014 argue for
linear programs). So one run rank for each class, with multiplicities on links, gives every rank's times. A slow link or
an unequal share of work splits classes without being declared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from ..network import Cluster
from ..network.fluid import Channel
from ..network.sharing import Solutions
from .instances import Instance, Integers, Uses, row_bytes, segments, used_links
from .ranks import SimulatedDevice

Floats = NDArray[np.float64]
#: Link → class of instances → (share of the link that the class uses, number of its instances on the link).
Users = Mapping[int, Mapping[int, tuple[float, int]]]
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


def refined(
    colours: Sequence[Hashable], degree: NDArray[np.int64], kind: NDArray[np.int64], other: NDArray[np.int64]
) -> list[int]:
    """Classes of vertices by colour refinement, numbered in order of first appearance.

    Parameters
    ----------
    colours
        Initial colour of every vertex.
    degree
        Number of edges of every vertex.
    kind, other
        Number of the label, and neighbour, of every edge, grouped by vertex.
    """
    classes = np.array(number(colours), dtype=np.int64)
    begin = np.cumsum(degree) - degree
    # Vertices of one degree have rows of one length, which NumPy sorts and compares as a block.
    alike = [(vertices, begin[vertices, None] + np.arange(size)) for size, vertices in _by_value(degree)]
    count = int(classes.max(initial=-1)) + 1
    place_of = np.concatenate([vertices for vertices, _ in alike]) if alike else classes
    while True:
        seen = kind * count + classes[other]
        rows: list[bytes] = []
        for vertices, place in alike:
            rows += row_bytes(np.concatenate([classes[vertices, None], np.sort(seen[place], axis=1)], axis=1))
        views = np.empty(len(classes), dtype=object)
        views[place_of] = rows
        classes = np.array(number(views.tolist()), dtype=np.int64)
        refined = int(classes.max(initial=-1)) + 1
        if refined == count:
            return [int(kind) for kind in classes]
        count = refined


def _by_value(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """(value, indices) of every distinct value."""
    for value in np.unique(values).tolist():
        yield value, np.flatnonzero(values == value)


def number(keys: Sequence[Hashable]) -> list[int]:
    """Number of every key, in order of first appearance; equal keys have equal numbers."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(key, len(seen)) for key in keys]


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


# --- channels -------------------------------------------------------------------------------------------------


def connect(
    instances: Sequence[Instance],
    instance_class: Sequence[int],
    users: Users,
    device_of: Mapping[int, SimulatedDevice],
    bandwidth_bytes_per_s: Floats,
) -> list[Channel]:
    """Create a channel for each class of instances, register it with its devices, and set its constraints.

    ``bandwidth_bytes_per_s`` is that of every link. A channel that is already registered stays the same object.
    """
    channel_of_key: dict[int, Channel] = {}
    ends: list[tuple[SimulatedDevice, int, int]] = []
    channels: list[Channel] = []
    rates: list[float] = []
    numbers = {device.number for device in device_of.values()}
    for instance, cls in zip(instances, instance_class, strict=True):
        if cls == len(channels):
            channels.append(channel_of(instance, cls, tuple(dict.fromkeys(device_of[rank] for rank in instance.ranks))))
            rates.append(busiest_bytes_per_s(instance, bandwidth_bytes_per_s))
        # A sender has a message's channel under half 0 of its key, a receiver under half 1; collectives have half 0.
        for half, rank in enumerate(instance.ranks):
            if rank in numbers:
                device = device_of[rank]
                key = 2 * instance.template + (half if instance.is_message else 0)
                ends.append((device, key, cls))
                if key in device.channels:
                    channel_of_key[cls] = device.channels[key]
    constrain(channels, users, rates, bandwidth_bytes_per_s)
    for cls, channel in channel_of_key.items():
        channel.take_over(channels[cls])
        channels[cls] = channel
    for device, key, cls in ends:
        device.channels[key] = channels[cls]
    return channels


def users_of(uses: Uses, classes: Sequence[int]) -> Users:
    """Shares of links by class of instances; of links that the same classes use in the same shares, only the first."""
    if not len(uses.link):
        return {}
    instance_class = np.array(classes, dtype=np.int64)
    # Sums for each link and class, in the order of the uses.
    cls = instance_class[uses.instance]
    width = int(instance_class.max()) + 1
    keys = uses.link * width + cls
    distinct, total = sums(keys, uses.share)
    count = sums(keys, np.ones(len(keys)))[1].astype(np.int64)
    link, cls = np.divmod(distinct, width)
    begins, ends = segments(link)
    # Links in order of their first use: assigned backwards, so that the first use remains.
    first = np.empty(int(link[-1]) + 1, dtype=np.int64)
    first[uses.link[::-1]] = np.arange(len(uses.link))[::-1]
    order = np.argsort(first[link[begins]])
    row, taken = 3 * cls.itemsize, np.stack([cls, total.view(np.int64), count], axis=1).tobytes()
    segments_of: dict[bytes, tuple[int, int]] = {}
    for begin, end in zip(begins[order].tolist(), ends[order].tolist(), strict=True):
        segments_of.setdefault(taken[row * begin : row * end], (begin, end))
    return {
        int(link[begin]): {
            number: (share, times)
            for number, share, times in zip(
                cls[begin:end].tolist(), total[begin:end].tolist(), count[begin:end].tolist(), strict=True
            )
        }
        for begin, end in segments_of.values()
    }


def sums(keys: Integers, values: Floats) -> tuple[Integers, Floats]:
    """Distinct keys, ascending, and the sum of each key's values in their order."""
    if int(keys.max()) < ROOMY * len(keys):  # counting is faster than sorting
        distinct: Integers = np.flatnonzero(np.bincount(keys)).astype(np.int64, copy=False)
        every: Floats = np.bincount(keys, weights=values).astype(np.float64, copy=False)
        return distinct, every[distinct]
    distinct, where = np.unique(keys, return_inverse=True)
    total: Floats = np.bincount(where, weights=values).astype(np.float64, copy=False)
    return distinct, total


#: Range of numbers for each key up to which counting is faster than sorting.
ROOMY = 32


def channel_of(instance: Instance, number: int, devices: tuple[SimulatedDevice, ...]) -> Channel:
    """Channel of a class of instances, from one of them, without constraints."""
    traffic = instance.traffic
    busiest = max(zip(instance.shares, traffic.link_bytes, strict=True), key=lambda pair: pair[0], default=(0.0, 0.0))[
        1
    ]
    return Channel(
        number,
        traffic.latency_s,
        traffic.fluid_s,
        {},
        traffic.fluid_s / busiest if busiest > 0.0 else 1.0,
        () if traffic.apart else devices,
        traffic.algorithm.replace("_", " ") + " around dead links" * instance.detoured,
        parties=2 if instance.is_message else len(devices),
    )


def busiest_bytes_per_s(instance: Instance, bandwidth_bytes_per_s: Floats) -> float:
    """Bandwidth of the link that an instance fills when it is alone; 0 if it uses no link."""
    if not instance.shares:
        return 0.0
    place = max(range(len(instance.shares)), key=instance.shares.__getitem__)
    return float(bandwidth_bytes_per_s[instance.traffic.links[place]])


def constrain(channels: Sequence[Channel], users: Users, rates: Sequence[float], bandwidth_bytes_per_s: Floats) -> None:
    """Set every channel's constraints, its weights on them, and its region.

    ``rates`` are the bandwidths of the links that channels fill when they are alone. Links that the same channels use
    in the same shares are one constraint; of links that only one channel uses, the tightest is one.
    """
    link_of: dict[tuple[tuple[int, tuple[float, int]], ...], int] = {}
    for link, by_channel in users.items():
        link_of.setdefault(tuple(sorted(by_channel.items())), link)
    tightest: dict[int, tuple[int, float, int]] = {}
    shared = []
    for pattern, link in link_of.items():
        if len(pattern) == 1:
            ((user, (share, times)),) = pattern
            if user not in tightest or share > tightest[user][1]:
                tightest[user] = link, share, times
        else:
            shared.append((link, pattern))
    usage: list[dict[Hashable, float]] = [{} for _ in channels]
    weight_at: list[dict[Hashable, float]] = [{} for _ in channels]
    alone = [(link, ((user, (share, times)),)) for user, (link, share, times) in tightest.items()]
    for constraint, (link, pattern) in enumerate([*shared, *alone]):
        for user, (share, times) in pattern:
            usage[user][constraint] = share
            if share > 0.0:
                faster = times / share * rates[user] / float(bandwidth_bytes_per_s[link])
                weight_at[user][constraint] = float(f"{faster * channels[user].weight:.12g}")
    for index, channel in enumerate(channels):
        channel.usage, channel.weight_at = usage[index], weight_at[index]
    meetings = ((user, pattern[0][0]) for _, pattern in shared for user, _ in pattern[1:])
    for region, together in enumerate(joined(len(channels), meetings)):
        for index in together:
            channels[index].region = region


def joined(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """Numbers below ``count`` in sets: those of a pair, and whoever is joined to them through others, are in one.

    >>> joined(5, [(4, 1), (1, 3)])
    [[0], [1, 3, 4], [2]]
    """
    above = list(range(count))

    def first(number: int) -> int:
        while above[number] != number:
            above[number] = above[above[number]]
            number = above[number]
        return number

    for one, other in pairs:
        above[first(one)] = first(other)
    sets: dict[int, list[int]] = {}
    for number in range(count):
        sets.setdefault(first(number), []).append(number)
    return list(sets.values())
