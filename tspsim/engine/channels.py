"""Channels: one a class of uses, known to its devices, with the links that it shares with others."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..network.fluid import Channel
from .instances import Instance, Integers, Uses, segments
from .ranks import SimulatedDevice

Floats = NDArray[np.float64]
#: Of links, what each class of their users takes of one.
Users = Mapping[int, Mapping[int, float]]


def connect(
    instances: Sequence[Instance], instance_class: Sequence[int], users: Users, device_of: Mapping[int, SimulatedDevice]
) -> list[Channel]:
    """One channel an instance class, known to its devices, and the constraints between channels.

    A channel that its devices know already stays the same object.
    """
    known: dict[int, Channel] = {}
    ends: list[tuple[SimulatedDevice, int, int]] = []
    channels: list[Channel] = []
    numbers = {device.number for device in device_of.values()}
    for instance, cls in zip(instances, instance_class, strict=True):
        if cls == len(channels):
            channels.append(channel_of(instance, cls, tuple(dict.fromkeys(device_of[rank] for rank in instance.ranks))))
        # A message is known to its sender by half 0 of its key, to its receiver by half 1; a collective only by half 0.
        for half, rank in enumerate(instance.ranks):
            if rank in numbers:
                device = device_of[rank]
                key = 2 * instance.template + (half if instance.is_message else 0)
                ends.append((device, key, cls))
                if key in device.channels:
                    known[cls] = device.channels[key]
    constrain(channels, users)
    for cls, channel in known.items():
        channel.become(channels[cls])
        channels[cls] = channel
    for device, key, cls in ends:
        device.channels[key] = channels[cls]
    return channels


def users_of(uses: Uses, classes: Sequence[int]) -> Users:
    """Link → the share of it that each class of instances takes; of links that the same take in the same shares one."""
    if not len(uses.link):
        return {}
    instance_class = np.array(classes, dtype=np.int64)
    # Sums of one link and class, in the order of the uses.
    cls = instance_class[uses.instance]
    width = int(instance_class.max()) + 1
    distinct, total = sums(uses.link * width + cls, uses.share)
    link, cls = np.divmod(distinct, width)
    begins, ends = segments(link)
    # Links in the order in which they are first used: of what is written to one place the last stays.
    first = np.empty(int(link[-1]) + 1, dtype=np.int64)
    first[uses.link[::-1]] = np.arange(len(uses.link))[::-1]
    order = np.argsort(first[link[begins]])
    row, pairs = 2 * cls.itemsize, np.stack([cls, total.view(np.int64)], axis=1).tobytes()
    found: dict[bytes, tuple[int, int]] = {}
    for begin, end in zip(begins[order].tolist(), ends[order].tolist(), strict=True):
        found.setdefault(pairs[row * begin : row * end], (begin, end))
    return {
        int(link[begin]): dict(zip(cls[begin:end].tolist(), total[begin:end].tolist(), strict=True))
        for begin, end in found.values()
    }


def sums(keys: Integers, values: Floats) -> tuple[Integers, Floats]:
    """Distinct keys, ascending, and the sum of each one's values in their order."""
    if int(keys.max()) < ROOMY * len(keys):  # counting beats sorting
        distinct: Integers = np.flatnonzero(np.bincount(keys)).astype(np.int64, copy=False)
        every: Floats = np.bincount(keys, weights=values).astype(np.float64, copy=False)
        return distinct, every[distinct]
    distinct, where = np.unique(keys, return_inverse=True)
    total: Floats = np.bincount(where, weights=values).astype(np.float64, copy=False)
    return distinct, total


#: Places a key up to which an entry for every number is quickly made.
ROOMY = 32


def channel_of(instance: Instance, number: int, devices: tuple[SimulatedDevice, ...]) -> Channel:
    """The channel of a class of instances, read from one of them; it has no constraints yet."""
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


def constrain(channels: Sequence[Channel], users: Users) -> None:
    """Give every channel its constraints and region.

    Links that the same channels use in the same shares are one constraint; of those that a channel has to itself the
    tightest says it all.
    """
    patterns = dict.fromkeys(tuple(sorted(by_channel.items())) for by_channel in users.values())
    tightest: dict[int, float] = {}
    shared = []
    for pattern in patterns:
        if len(pattern) == 1:
            user, share = pattern[0]
            tightest[user] = max(share, tightest.get(user, 0.0))
        else:
            shared.append(pattern)
    region = list(range(len(channels)))

    def find(channel: int) -> int:
        while region[channel] != channel:
            region[channel] = region[region[channel]]
            channel = region[channel]
        return channel

    usage: list[dict[Hashable, float]] = [{} for _ in channels]
    for constraint, pattern in enumerate([*shared, *((only,) for only in tightest.items())]):
        for user, share in pattern:
            usage[user][constraint] = share
            region[find(user)] = find(pattern[0][0])
    for index, channel in enumerate(channels):
        channel.usage = usage[index]
        channel.region = find(index)
