"""As few leaf switches as possible, the first that has room."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..nodes import Nodes
from .base import Placement, roomiest_first


class Packed(Placement):
    """On the first leaf with room for all, otherwise on the emptiest leaves."""

    name = "packed"

    def choose(self, nodes: Nodes, count: int, random: np.random.Generator) -> Sequence[int]:
        for empty in nodes.empty:
            if len(empty) >= count:
                return empty[:count]
        return roomiest_first(nodes, count)

    def in_words(self) -> str:
        return "packed on as few leaves as can be, the first with room"


Placement.registry.register(Packed)
