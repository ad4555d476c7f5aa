"""Leaf, spine and core switches of one folded Clos network: how many, how thick their links, which way.

Everything is arithmetic on integers, so a fabric of any size costs nothing until its links are listed.
Parallel cables between two switches count as one link of their summed bandwidth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Clos:
    """``leaves`` switches with ``ports`` endpoints each, joined by spines and, if need be, cores.

    Parameters
    ----------
    leaves, ports
        Leaf switches and the endpoints below each.
    radix
        Ports of every switch. Above one leaf, half a leaf's ports go up.

    Notes
    -----
    With at most ``radix`` leaves there are two stages and ``ceil(leaves·ports / radix)`` spines, each joined
    to every leaf. Beyond, ``radix/2`` leaves and as many spines form a pod, and the spines of one position in
    all pods share their own cores: the three-stage fat tree of Al-Fares et al., SIGCOMM 2008, §3.

    Links come in pairs, up and down: ``2·i`` leaf to spine, ``2·i + 1`` back, first all leaf-spine pairs
    (leaf major), then all spine-core pairs (pod, then spine, major).
    """

    leaves: int
    ports: int
    radix: int

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
        return self.pod_spines * max(1, self.spine_cores) if self.leaves > 1 else 1

    def cables(self, oversubscription: float) -> int:
        """Cables between its switches: the uplinks of leaves and of spines."""
        rising = math.ceil(self.leaves * self.ports / oversubscription)
        return rising * ((self.spines > 0) + (self.cores > 0))

    @property
    def leaf_links(self) -> int:
        """Directed links between leaves and spines."""
        return 2 * self.leaves * self.pod_spines

    @property
    def links(self) -> int:
        """Directed links between switches."""
        return self.leaf_links + 2 * self.spines * self.spine_cores

    def bandwidths(self, port: float, oversubscription: float) -> tuple[float, float]:
        """Bytes/s of a leaf-spine and of a spine-core link when endpoints have ``port`` each."""
        spine = port * self.ports / (self.pod_spines * oversubscription) if self.pod_spines else 0.0
        core = spine * self.pod_leaves / self.spine_cores if self.spine_cores else 0.0
        return spine, core

    @cached_property
    def ends(self) -> tuple[Integers, Integers]:
        """Source and target of every link; leaves are numbered first, then spines, then cores."""
        leaf, spine = np.divmod(np.arange(self.leaves * self.pod_spines), max(1, self.pod_spines))
        upper = self.leaves + leaf // self.pod_leaves * self.pod_spines + spine
        position, core = np.divmod(np.arange(self.spines * self.spine_cores), max(1, self.spine_cores))
        cores = self.leaves + self.spines + position % max(1, self.pod_spines) * self.spine_cores + core
        low = np.concatenate([leaf, self.leaves + position])
        high = np.concatenate([upper, cores])
        return _interleave(low, high), _interleave(high, low)

    def paths(self, source_leaf: Integers, target_leaf: Integers, spread: Integers) -> Integers:
        """Links from leaf to leaf, one row a path, -1 where there is none.

        ``spread`` picks among equal paths: the destination's number gives D-mod-k routing, which is free of
        contention for shifts (Zahavi, Journal of Parallel and Distributed Computing 72, 2012), plus whatever
        the caller adds to it.
        """
        nothing = np.full(len(spread), -1, dtype=np.int64)
        if self.leaves == 1:
            return nothing[:, None]
        spine = spread % self.pod_spines
        source_pod, target_pod = source_leaf // self.pod_leaves, target_leaf // self.pod_leaves
        differs = source_leaf != target_leaf
        up = np.where(differs, 2 * (source_leaf * self.pod_spines + spine), -1)
        down = np.where(differs, 2 * (target_leaf * self.pod_spines + spine) + 1, -1)
        if self.pods == 1:
            return np.stack([up, down], axis=1)
        core = spread // self.pod_spines % self.spine_cores
        far = source_pod != target_pod
        rise = self.leaf_links + 2 * ((source_pod * self.pod_spines + spine) * self.spine_cores + core)
        fall = self.leaf_links + 2 * ((target_pod * self.pod_spines + spine) * self.spine_cores + core) + 1
        return np.stack([up, np.where(far, rise, -1), np.where(far, fall, -1), down], axis=1)


def _interleave(first: Integers, second: Integers) -> Integers:
    return np.stack([first, second], axis=1).reshape(-1)
