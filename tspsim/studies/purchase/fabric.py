"""The fabric as a bill of material: NICs, switches, optics, what they cost an hour and draw."""

from __future__ import annotations

from dataclasses import dataclass

from ...network import Cluster
from ...scenario.project import Parts

HOURS_A_YEAR = 8766.0


@dataclass(frozen=True)
class Bill:
    """How many pieces join a cluster's nodes.

    The leaves, spines and cores are those of the simulated graph, built in full. Every cable has an optic at each end:
    NIC to leaf, and each uplink port of a leaf (a leaf's downlinks over the oversubscription) or spine.
    """

    nics: int
    switches: int
    optics: int
    gpus: int

    @classmethod
    def of(cls, cluster: Cluster) -> Bill:
        """Count a cluster's fabric; a single node has none."""
        if cluster.fabric is None:
            return cls(0, 0, 0, cluster.gpus)
        layout, nics = cluster.layout, cluster.nodes * cluster.node.nics
        cables = nics + layout.planes * layout.plane.cables(cluster.oversubscription)
        return cls(nics, layout.planes * layout.plane.vertices, 2 * cables, cluster.gpus)

    def usd(self, parts: Parts) -> float:
        """What all pieces cost."""
        return self.nics * parts.nic + self.switches * parts.switch + self.optics * parts.optic

    def usd_per_gpu_hour(self, parts: Parts) -> float:
        """Their cost, spread over the years they serve."""
        return self.usd(parts) / (parts.years * HOURS_A_YEAR * self.gpus)

    def watts_per_gpu(self, parts: Parts) -> float:
        """What they draw, a GPU."""
        watts = self.nics * parts.nic_power + self.switches * parts.switch_power + self.optics * parts.optic_power
        return watts / self.gpus
