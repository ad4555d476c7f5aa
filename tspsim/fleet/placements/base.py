"""Which nodes a job gets: the family of placements.

A placement is asked after a scheduler has said how many nodes; it never decides whether a job starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ...base.registry import Registry
from ...traffic.kind import Kind
from ..nodes import Nodes


class Placement(Kind):
    """Chooses nodes. Its fields are keys that a scenario may state beside its kind."""

    registry: ClassVar[Registry[Any]] = Registry("placement", "tspsim.placements")

    def choose(self, nodes: Nodes, count: int, random: np.random.Generator) -> Sequence[int]:
        """``count`` different empty nodes, of which there are enough (``nodes.empty``); whose chance is ``random``'s
        alone."""
        raise NotImplementedError

    def choose_part(self, nodes: Nodes, gpus: int, random: np.random.Generator) -> int:
        """The node whose ``gpus`` GPUs a small job gets: by default the fullest in use that has them, else an empty
        one."""
        shared = nodes.tightest(gpus)
        return shared if shared is not None else next(iter(self.choose(nodes, 1, random)))


Placement.registry.of = type[Placement]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """A name alone is a placement without options."""
    return {"kind": value} if isinstance(value, str) else None


def roomiest_first(nodes: Nodes, count: int) -> list[int]:
    """Whole leaves, those with most empty nodes first (the lower number of equals): as few leaves as can be."""
    chosen: list[int] = []
    for leaf in sorted(range(len(nodes.empty)), key=lambda leaf: (-len(nodes.empty[leaf]), leaf)):
        chosen += nodes.empty[leaf][: count - len(chosen)]
        if len(chosen) == count:
            break
    return chosen
