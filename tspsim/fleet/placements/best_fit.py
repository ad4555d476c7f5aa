"""The leaf with the least left over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..nodes import Nodes
from .base import Placement


class BestFit(Placement):
    """On the leaf with the fewest empty nodes that suffice. A wider job fills the emptiest leaves first, and its rest
    goes where it fits best."""

    name = "best_fit"

    def choose(self, nodes: Nodes, count: int, random: np.random.Generator) -> Sequence[int]:
        room = {leaf: len(empty) for leaf, empty in enumerate(nodes.empty) if empty}
        chosen: list[int] = []
        while len(chosen) < count:
            needed = count - len(chosen)
            fitting = {free: leaf for leaf, free in reversed(room.items()) if free >= needed}
            roomy = {free: leaf for leaf, free in reversed(room.items())}
            leaf = fitting[min(fitting)] if fitting else roomy[max(roomy)]
            chosen += nodes.empty[leaf][:needed]
            del room[leaf]
        return chosen

    def in_words(self) -> str:
        return "on the leaf where fewest nodes would be left empty"


Placement.registry.register(BestFit)
