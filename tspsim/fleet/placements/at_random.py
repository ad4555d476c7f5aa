"""Any empty nodes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from ..nodes import Nodes
from .base import Placement


class Random(Placement):
    """Drawn uniformly from all empty nodes."""

    name = "random"

    def choose(self, nodes: Nodes, count: int, random: np.random.Generator) -> Sequence[int]:
        empty = list(chain.from_iterable(nodes.empty))
        return [empty[index] for index in sorted(random.choice(len(empty), count, replace=False).tolist())]

    def in_words(self) -> str:
        return "on random empty nodes"


Placement.registry.register(Random)
