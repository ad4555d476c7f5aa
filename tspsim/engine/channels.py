"""Channels of the classes of instances, their devices, and the constraints of the links that they share."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..network.fluid import Channel
from .instances import Instance, Integers, Uses, segments
from .ranks import SimulatedDevice

Floats = NDArray[np.float64]
#: Link → class of instances → (share of the link that the class uses, number of its instances on the link).
Users = Mapping[int, Mapping[int, tuple[float, int]]]


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
        traffic.algorithm.replace("_", " ") + " round dead links" * instance.detoured,
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
    region = list(range(len(channels)))

    def find(channel: int) -> int:
        while region[channel] != channel:
            region[channel] = region[region[channel]]
            channel = region[channel]
        return channel

    usage: list[dict[Hashable, float]] = [{} for _ in channels]
    weight_at: list[dict[Hashable, float]] = [{} for _ in channels]
    alone = [(link, ((user, (share, times)),)) for user, (link, share, times) in tightest.items()]
    for constraint, (link, pattern) in enumerate([*shared, *alone]):
        for user, (share, times) in pattern:
            usage[user][constraint] = share
            region[find(user)] = find(pattern[0][0])
            if share > 0.0:
                faster = times / share * rates[user] / float(bandwidth_bytes_per_s[link])
                weight_at[user][constraint] = float(f"{faster * channels[user].weight:.12g}")
    for index, channel in enumerate(channels):
        channel.usage, channel.weight_at = usage[index], weight_at[index]
        channel.region = find(index)
