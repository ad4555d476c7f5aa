"""Blocks that begin at a multiple of a power of two of nodes, so that rings of a rail end inside a leaf."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..nodes import Nodes
from .base import Placement, roomiest_first


class RailAligned(Placement):
    """Consecutive nodes of one leaf that begin at a multiple of the job's size (rounded up to a power of two), as the
    rails of neighbouring nodes share switches. A job wider than a leaf takes whole leaves first. Without such an empty
    block, as few leaves as possible."""

    name = "rail_aligned"

    def choose(self, nodes: Nodes, count: int, random: np.random.Generator) -> Sequence[int]:
        step = 1 << (count - 1).bit_length()
        for leaf, empty in enumerate(nodes.empty):
            if len(empty) < count:
                continue
            here, members = set(empty), nodes.leaves[leaf]
            for begin in range(0, len(members) - count + 1, step):
                block = members[begin : begin + count]
                if here.issuperset(block):
                    return block
        return roomiest_first(nodes, count)

    def in_words(self) -> str:
        return "in aligned blocks of one leaf"


Placement.registry.register(RailAligned)
