"""Nodes whose NICs speak different languages: islands with a fabric each, and a common one between them.

As in Holmes (arXiv 2312.03549): nodes with InfiniBand and nodes with RoCE have no RDMA between them, and meet over
Ethernet. A group whose ranks are in one island uses that island's fabric; one that spans several falls back to the
common one for all its ranks, as a communicator of NCCL does. An island is one switch: its leaves and spines are not
drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..base.memo import once

if TYPE_CHECKING:
    from .specs import FabricSpec


#: The switch between islands, and what makes a message inside an island prefer its own.
COMMON, LONGER_S = "common", 1e-6


@dataclass(frozen=True)
class Islands:
    """Which nodes are in which island, in order, and what joins them."""

    #: Of every island.
    nodes: tuple[int, ...]
    #: Of every island.
    fabrics: tuple[FabricSpec, ...]
    #: Between islands, and its switch's name.
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
        """What a group on these nodes moves its data over."""
        there = {self.of(node) for node in nodes}
        return self.common if len(there) > 1 else self.fabrics[there.pop()]
