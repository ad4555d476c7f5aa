"""Islands: groups of nodes with a fabric each, and a common fabric between them.

For example nodes with InfiniBand and nodes with RoCE, which have no RDMA between them and communicate over Ethernet
(Holmes, arXiv 2312.03549). A group inside one island uses that island's fabric. A group that spans islands uses the
common fabric for all its ranks, as an NCCL communicator does. An island is one switch, without leaves and spines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..base.memo import once

if TYPE_CHECKING:
    from .specs import FabricSpec


#: Name of the switch between islands, and seconds added to its links so that routes inside an island avoid it.
COMMON, LONGER_S = "common", 1e-6


@dataclass(frozen=True)
class Islands:
    """Islands of consecutive nodes, their fabrics, and the fabric between them."""

    #: Number of nodes of every island.
    nodes: tuple[int, ...]
    #: Fabric inside every island.
    fabrics: tuple[FabricSpec, ...]
    #: Fabric between islands, and the name of its switch.
    common: FabricSpec
    switch: str = COMMON

    @once
    def ends(self) -> tuple[int, ...]:
        """The node after the last of every island."""
        return tuple(np.cumsum(self.nodes).tolist())

    def of(self, node: int) -> int:
        """The island of a node."""
        return int(np.searchsorted(self.ends, node, side="right"))

    def joining(self, nodes: Iterable[int]) -> FabricSpec:
        """Fabric of a group on these nodes."""
        there = {self.of(node) for node in nodes}
        return self.common if len(there) > 1 else self.fabrics[there.pop()]
