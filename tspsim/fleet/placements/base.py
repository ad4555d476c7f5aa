"""Which nodes a job gets: the family of placements.

A placement is called after a scheduler has chosen the number of nodes; it never decides whether a job starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...base.registry import Registry
from ...traffic.kind import Kind
from ..nodes import Nodes


class Placement(Kind):
    """Chooses nodes. Its fields are keys that a scenario may state beside ``kind``."""

    registry: ClassVar[Registry[Any]] = Registry("placement", "tspsim.placements")

    def choose(self, nodes: Nodes, count: int, random: np.random.Generator) -> Sequence[int]:
        """``count`` different empty nodes; there are enough (``nodes.empty``). Only ``random`` may add chance."""
        raise NotImplementedError

    def choose_part(self, nodes: Nodes, gpus: int, random: np.random.Generator) -> int:
        """The node for a small job of ``gpus`` GPUs: by default the fullest that fits, else an empty one."""
        shared = nodes.tightest(gpus)
        return shared if shared is not None else next(iter(self.choose(nodes, 1, random)))


Placement.registry.of = type[Placement]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """A name alone is a placement without options."""
    return {"kind": value} if isinstance(value, str) else None


def roomiest_first(nodes: Nodes, count: int) -> list[int]:
    """Nodes of whole leaves, the emptiest leaves first (of equals the lower number): as few leaves as possible."""
    chosen: list[int] = []
    for leaf in sorted(range(len(nodes.empty)), key=lambda leaf: (-len(nodes.empty[leaf]), leaf)):
        chosen += nodes.empty[leaf][: count - len(chosen)]
        if len(chosen) == count:
            break
    return chosen
