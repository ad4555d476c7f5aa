"""Leaf, spine and core switches of one folded Clos network: how many, how thick their links, which way.

Everything is arithmetic on integers, so a fabric of any size costs nothing until its links are listed.
Parallel cables between two switches count as one link of their summed bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Clos:
    """``leaves`` switches with ``ports`` endpoints each, joined by spines and, if need be, cores.

    Notes
    -----
    With at most ``radix`` leaves there are two stages and ``ceil(leaves·ports / radix)`` spines, each joined
    to every leaf. Beyond, ``radix/2`` leaves and as many spines form a pod, and the spines of one position in
    all pods share their own cores: the three-stage fat tree of Al-Fares et al., SIGCOMM 2008, §3.

    Links come in pairs, up and down: ``2·i`` leaf to spine, ``2·i + 1`` back, first all leaf-spine pairs
    (leaf major), then all spine-core pairs (pod, then spine, major); the cables of a pair follow each other.
    """

    #: Leaf switches and the endpoints below each.
    leaves: int
    ports: int
    #: Ports of every switch. Above one leaf, half a leaf's ports go up.
    radix: int
    #: Parallel cables between a leaf and a spine, and between a spine and a core, that are links of their own.
    lanes: int = 1
    core_lanes: int = 1

    @classmethod
    def joining(cls, endpoints: int, radix: int) -> Clos:
        """The smallest that joins ``endpoints``: one switch if they fit."""
        if endpoints <= radix:
            return cls(1, radix, radix)
        return cls(-(-endpoints // (radix // 2)), radix // 2, radix)

    def __post_init__(self) -> None:
        half = self.radix // 2
        if self.leaves > max(self.radix, half * self.radix):
            most = half * self.radix * self.ports
            raise InputError(
                f"{self.leaves * self.ports} ports need more than three stages of {self.radix}-port "
                f"switches; at most {most} ports, or a larger switch"
            )

    @property
    def pods(self) -> int:
        """One, or the pods below the cores."""
        return 1 if self.leaves <= self.radix else -(-self.leaves // (self.radix // 2))

    @cached_property
    def pod_leaves(self) -> int:
        """Leaves of a full pod."""
        return self.leaves if self.pods == 1 else self.radix // 2

    @cached_property
    def pod_spines(self) -> int:
        """Spines of a pod."""
        if self.leaves == 1:
            return 0
        return -(-self.leaves * self.ports // self.radix) if self.pods == 1 else self.radix // 2

    @property
    def spines(self) -> int:
        """Spines of all pods."""
        return self.pods * self.pod_spines

    @cached_property
    def spine_cores(self) -> int:
        """Cores above each position of a spine."""
        return 0 if self.pods == 1 else -(-self.pods // 2)

    @property
    def cores(self) -> int:
        return self.pod_spines * self.spine_cores

    @property
    def vertices(self) -> int:
        """Leaves, spines and cores."""
        return self.leaves + self.spines + self.cores

    @property
    def choices(self) -> int:
        """Ways between two leaves to choose from."""
        core_ways = self.spine_cores * self.core_lanes if self.spine_cores else 1
        return self.pod_spines * self.lanes * core_ways if self.leaves > 1 else 1

    def by_cable(self, oversubscription: float) -> Clos:
        """The same with every cable a link of its own."""
        if self.leaves == 1:
            return self
        lanes = max(1, round(self.ports / (self.pod_spines * oversubscription)))
        core_lanes = max(1, self.pod_leaves * lanes // self.spine_cores) if self.spine_cores else 1
        return replace(self, lanes=lanes, core_lanes=core_lanes)

    def pieces(self, endpoints: int, oversubscription: float) -> tuple[int, int]:
        """Switches and cables between them that ``endpoints`` use, over all planes like this one.

        An endpoint takes a port of a leaf and 1/``oversubscription`` of an uplink, and above spines as much again.
        Ports of a stage fill whole switches; one whose ports several rails or pods share is partitioned.

        >>> Clos(8, 32, 64).pieces(256, 1.0), Clos(8, 32, 64).pieces(16, 1.0), Clos(1, 64, 64).pieces(16, 1.0)
        ((12, 256), (2, 16), (1, 0))
        """
        stages = 1 + (self.spines > 0) + (self.cores > 0)
        rising = math.ceil(endpoints / oversubscription)
        ports = [endpoints, *[rising] * (stages - 1)]
        used = [below + above for below, above in zip(ports, [*ports[1:], 0], strict=True)]
        return sum(math.ceil(count / self.radix) for count in used), rising * (stages - 1)

    @property
    def leaf_links(self) -> int:
        """Directed links between leaves and spines."""
        return 2 * self.leaves * self.pod_spines * self.lanes

    @property
    def links(self) -> int:
        """Directed links between switches."""
        return self.leaf_links + 2 * self.spines * self.spine_cores * self.core_lanes

    def bandwidths(self, port: float, oversubscription: float) -> tuple[float, float]:
        """Bytes/s of a leaf-spine and of a spine-core link when endpoints have ``port`` each."""
        spine = port * self.ports / (self.pod_spines * oversubscription) if self.pod_spines else 0.0
        core = spine * self.pod_leaves / self.spine_cores if self.spine_cores else 0.0
        return spine / self.lanes, core / self.core_lanes

    @cached_property
    def ends(self) -> tuple[Integers, Integers]:
        """Source and target of every link; leaves are numbered first, then spines, then cores."""
        leaf, spine = np.divmod(np.arange(self.leaves * self.pod_spines), max(1, self.pod_spines))
        upper = self.leaves + leaf // self.pod_leaves * self.pod_spines + spine
        position, core = np.divmod(np.arange(self.spines * self.spine_cores), max(1, self.spine_cores))
        cores = self.leaves + self.spines + position % max(1, self.pod_spines) * self.spine_cores + core
        low = np.concatenate([np.repeat(leaf, self.lanes), np.repeat(self.leaves + position, self.core_lanes)])
        high = np.concatenate([np.repeat(upper, self.lanes), np.repeat(cores, self.core_lanes)])
        return _interleave(low, high), _interleave(high, low)

    def paths(self, source_leaf: Integers, target_leaf: Integers, spread: Integers) -> Integers:
        """Links from leaf to leaf, one row a path, -1 where there is none.

        ``spread`` picks among equal paths: the spine is its remainder by their number, the cable to it the next digit,
        then the core and the cable to that. A path keeps its cable on the way down.
        """
        nothing = np.full(len(spread), -1, dtype=np.int64)
        if self.leaves == 1:
            return nothing[:, None]
        above, spine = np.divmod(spread, self.pod_spines)
        above, lane = np.divmod(above, self.lanes)
        source_pod, target_pod = source_leaf // self.pod_leaves, target_leaf // self.pod_leaves
        differs = source_leaf != target_leaf
        up = np.where(differs, 2 * ((source_leaf * self.pod_spines + spine) * self.lanes + lane), -1)
        down = np.where(differs, 2 * ((target_leaf * self.pod_spines + spine) * self.lanes + lane) + 1, -1)
        if self.pods == 1:
            return np.stack([up, down], axis=1)
        above, core = np.divmod(above, self.spine_cores)
        cable, far = above % self.core_lanes, source_pod != target_pod

        def between(pod: Integers) -> Integers:
            position: Integers = (pod * self.pod_spines + spine) * self.spine_cores + core
            link: Integers = self.leaf_links + 2 * (position * self.core_lanes + cable)
            return link

        rise, fall = between(source_pod), between(target_pod) + 1
        return np.stack([up, np.where(far, rise, -1), np.where(far, fall, -1), down], axis=1)


def _interleave(first: Integers, second: Integers) -> Integers:
    return np.stack([first, second], axis=1).reshape(-1)
