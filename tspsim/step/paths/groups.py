"""The groups of one rank, and the links near it that their transfers occupy."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from ...base.memo import once
from ...network import Cluster, Traffic
from ...parallel import scheme_axes
from ...program.instructions import Mesh

Floats = NDArray[np.float64]


class RankGroups:
    """The groups of one rank: the first on every axis of its pipeline stage."""

    def __init__(self, mesh: Mesh, stage: int, cluster: Cluster) -> None:
        self.mesh, self.cluster = mesh, cluster
        self.origin = [stage if axis == "pp" else 0 for axis in mesh.axes]
        self.rank = int(mesh.ranks[tuple(self.origin)])
        self.node = self.rank // cluster.gpus_per_node
        self._along: dict[str, tuple[int, ...]] = {}
        self._moved_on: set[str] = set()
        self.near = sum(length for _, length in self._blocks(self.node))

    def _blocks(self, node: int) -> list[tuple[int, int]]:
        """First index and number of the links of a node, of its host and of its NICs."""
        layout, cluster = self.cluster.layout, self.cluster
        blocks = [(node * layout.node_links, layout.node_links)]
        if cluster.fabric is not None:
            blocks.append((layout.host_start + node * 2 * layout.gpus, 2 * layout.gpus))
            of_nics = 2 * layout.nics * layout.nic_lanes
            blocks.append((layout.nic_start + node * of_nics, of_nics))
        return blocks

    def along(self, axis: str) -> tuple[int, ...]:
        """Ranks of its group along an axis, itself first."""
        if axis not in self._along:
            dimensions = [self.mesh.axes.index(part) for part in self.mesh.parts(axis)]
            index = tuple(
                slice(None) if dimension in dimensions else place for dimension, place in enumerate(self.origin)
            )
            line = self.mesh.ranks[index]
            line = line.transpose([sorted(dimensions).index(dimension) for dimension in dimensions]).reshape(-1)
            # GPUs of a node are alike, so a group inside a node equals that of the node's first GPU, shifted.
            inside = not self.cluster.factors and not np.any(line // self.cluster.gpus_per_node != self.node)
            self._along[axis] = tuple((line - self.rank if inside else line).tolist())
            if inside:
                self._moved_on.add(axis)
        return self._along[axis]

    @once
    def pattern(self) -> Hashable:
        """Key of where the groups of a replica stand; equal keys move data alike."""
        axes = [axis for axis in (*scheme_axes(), "ep") if axis in self.mesh.sizes]
        return tuple((axis, self.along(axis)) for axis in axes if len(self.along(axis)) > 1)

    @property
    def replicas(self) -> Hashable:
        return self.along("dp+sp")

    def occupied_s(self, traffic: Traffic, axis: str = "") -> Floats:
        """Seconds that a transfer of its group along an axis occupies each link of the rank's node and its NICs.

        Copies occupy none, since they take nothing from kernels.
        """
        occupied = np.zeros(self.near)
        if not traffic.links or traffic.fluid_s <= 0.0 or traffic.apart:
            return occupied
        links = np.array(traffic.links)
        busy_s = np.array(traffic.link_bytes) / self.cluster.bandwidth_bytes_per_s[links]
        busy_s *= traffic.fluid_s / busy_s.max()
        start = 0
        for first, length in self._blocks(0 if axis in self._moved_on else self.node):
            near = (links >= first) & (links < first + length)
            np.add.at(occupied, start + links[near] - first, busy_s[near])
            start += length
        return occupied
