"""Over as many leaf switches as possible."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..nodes import Nodes
from .base import Placement


class SpreadOverLeaves(Placement):
    """A node of every leaf in turn, the emptiest leaves first."""

    name = "spread"

    def choose(self, nodes: Nodes, count: int, random: np.random.Generator) -> Sequence[int]:
        leaves = sorted((-len(empty), leaf) for leaf, empty in enumerate(nodes.empty) if empty)
        chosen: list[int] = []
        depth = 0
        while len(chosen) < count:
            chosen += [nodes.empty[leaf][depth] for less, leaf in leaves if -less > depth][: count - len(chosen)]
            depth += 1
        return chosen

    def in_words(self) -> str:
        return "spread over as many leaves as can be"


Placement.registry.register(SpreadOverLeaves)
