"""Seconds of a step's transfers without other traffic: all groups of a stage at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import prod

from ..network import Cluster, Traffic, collective, point_to_point
from ..network.sharing import shares
from ..program import Collective, SendReceive
from ..program.instructions import Mesh

#: Sums of the same floats in another order differ in their last digits.
ROUNDING = 1e-12
#: With more simultaneous groups the engine's folding is cheaper than checking all of them.
MOST_GROUPS = 16


class Exchanges:
    """Seconds of transfers on a mesh, all groups of a stage at once and no other traffic."""

    def __init__(self, cluster: Cluster, mesh: Mesh) -> None:
        self.cluster, self.mesh = cluster, mesh
        self._known: dict[Hashable, float | None] = {}
        self._groups: dict[tuple[str, int], list[tuple[int, ...]]] = {}

    def members(self, axis: str) -> int:
        """Ranks of a group."""
        return prod(self.mesh.sizes[part] for part in self.mesh.parts(axis))

    def seconds(self, transfer: Collective | SendReceive, stage: int) -> float | None:
        """Seconds of a collective of a stage, or of its message to the next; None where groups contend."""
        if isinstance(transfer, SendReceive):
            return self.message_s(transfer.axis, transfer.size_bytes, stage)
        return self.collective_s(transfer, stage) if self.members(transfer.axis) > 1 else 0.0

    def collective_s(self, transfer: Collective, stage: int) -> float | None:
        """Seconds of one collective; None where its groups contend."""
        how = transfer.root, transfer.algorithm, transfer.tokens
        key = transfer.kind, transfer.axis, transfer.size_bytes, *how, stage
        if key not in self._known:
            groups = self.groups(transfer.axis, stage)
            self._known[key] = self._together([self._traffic(transfer, ranks) for ranks in groups])
        return self._known[key]

    def range_of(self, transfer: Collective | SendReceive, stage: int) -> tuple[float, float]:
        """Low and high factor of its seconds (90 % interval)."""
        if isinstance(transfer, SendReceive):
            group = self.mesh.groups(transfer.axis)[0]
            traffic = point_to_point(self.cluster, int(group[stage]), int(group[stage + 1]), transfer.size_bytes)
        else:
            traffic = self._traffic(transfer, self.groups(transfer.axis, stage)[0])
        return traffic.low, traffic.high

    def _traffic(self, transfer: Collective, ranks: tuple[int, ...]) -> Traffic:
        return collective(
            self.cluster,
            ranks,
            transfer.kind,
            transfer.size_bytes,
            root=transfer.root,
            algorithm=transfer.algorithm,
            exchange=transfer.tokens,
        )

    def message_s(self, axis: str, size_bytes: int, stage: int) -> float | None:
        """Seconds of every rank's message to the next stage."""
        key = "message", axis, size_bytes, stage
        if key not in self._known:
            pairs = [(int(group[stage]), int(group[stage + 1])) for group in self.mesh.groups(axis)]
            seconds = None
            if len(pairs) <= MOST_GROUPS:
                seconds = self._together([point_to_point(self.cluster, *pair, size_bytes) for pair in pairs])
            self._known[key] = seconds
        return self._known[key]

    def groups(self, axis: str, stage: int) -> list[tuple[int, ...]]:
        """Ranks of a stage's groups along an axis; for equal nodes only those of the first. Empty where there are too
        many to check."""
        key = axis, stage
        if key not in self._groups:
            stages = self.mesh.positions["pp"] if "pp" in self.mesh.axes else None
            every = [tuple(group) for group in self.mesh.groups(axis).tolist()]
            every = [group for group in every if stages is None or int(stages[group[0]]) == stage]
            nodes = {rank // self.cluster.gpus_per_node for group in every for rank in group}
            inside = all(len({rank // self.cluster.gpus_per_node for rank in group}) == 1 for group in every)
            if inside and not self.cluster.factors and not self.cluster.layout.dead:
                node = min(nodes)
                every = [group for group in every if group[0] // self.cluster.gpus_per_node == node]
            self._groups[key] = every if len(every) <= MOST_GROUPS else []
        return self._groups[key]

    def _together(self, moved: Sequence[Traffic]) -> float | None:
        """Seconds of transfers that begin together; None unless all take the same."""
        if not moved or any(
            (traffic.latency_s, traffic.fluid_s) != (moved[0].latency_s, moved[0].fluid_s) for traffic in moved
        ):
            return None
        first = moved[0]
        if len(moved) == 1 or first.fluid_s == 0.0:
            return first.latency_s + first.fluid_s
        bandwidth = self.cluster.links.bandwidth_bytes_per_s
        usages: list[dict[Hashable, float]] = []
        for traffic in moved:
            busy = [size / float(bandwidth[link]) for link, size in zip(traffic.links, traffic.link_bytes, strict=True)]
            longest = max(busy)
            usages.append({link: share / longest for link, share in zip(traffic.links, busy, strict=True)})
        speeds = shares(usages, [1.0] * len(moved))
        if any(abs(speed - speeds[0]) > ROUNDING for speed in speeds):
            return None
        return first.latency_s + first.fluid_s / speeds[0]
