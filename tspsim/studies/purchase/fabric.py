"""The fabric as a bill of materials: NICs, switches and optics, with their price per hour and power."""

from __future__ import annotations

from dataclasses import dataclass

from ...network import Cluster
from ...scenario.project import Parts

HOURS_A_YEAR = 8766.0


@dataclass(frozen=True)
class FabricBill:
    """Number of pieces that join a cluster's nodes.

    The stages are those of the simulated graph. Used ports are counted, in whole switches per stage: a small
    cluster pays for its part of a fabric that grows. Every cable has an optic at each end: NIC to leaf, and each uplink
    of a leaf (its used ports over the oversubscription) or spine. Islands have switches and cables of their own, beside
    those that join them; where bandwidths were measured the fabric's own switches count.
    """

    nics: int
    switches: int
    optics: int
    gpus: int

    @classmethod
    def of(cls, cluster: Cluster) -> FabricBill:
        """Count a cluster's fabric; a single node has none."""
        if cluster.fabric is None:
            return cls(0, 0, 0, cluster.gpus)
        nics = cluster.nodes * cluster.node.nics
        switches = cables = 0
        for part in cluster.installed_clusters:
            ends = part.nodes * part.node.nics
            some, between = part.layout.plane.switches_and_cables(ends, part.oversubscription)
            switches, cables = switches + some, cables + ends + between
        return cls(nics, switches, 2 * cables, cluster.gpus)

    def usd(self, parts: Parts) -> float:
        """Price of all pieces."""
        return self.nics * parts.nic + self.switches * parts.switch + self.optics * parts.optic

    def usd_per_gpu_hour(self, parts: Parts) -> float:
        """Price per GPU hour, over the years of use."""
        return self.usd(parts) / (parts.years * HOURS_A_YEAR * self.gpus)

    def watts_per_gpu(self, parts: Parts) -> float:
        """Power per GPU."""
        watts = self.nics * parts.nic_power + self.switches * parts.switch_power + self.optics * parts.optic_power
        return watts / self.gpus
