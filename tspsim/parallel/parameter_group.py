"""Parameters on one rank, and their other holders."""

from __future__ import annotations

from typing import NamedTuple


class ParameterGroup(NamedTuple):
    """Parameters on one rank that ``copies`` ranks along ``axis`` hold, and sum their gradients over.

    ZeRO divides their state among ``shards`` neighbours of these; groups of ``shards`` ranks hold equal state (hybrid
    sharding). ``groups`` are the axes along such a group, and across groups. ``secondary`` neighbours also divide a
    second copy of the weights; 0: there is none. With shard levels (``shard_levels``), ``weights`` neighbours divide
    the weights, ``shards`` the gradients, and all copies the state; 0: one level.
    """

    axis: str
    copies: int
    parameters: float
    shards: int
    groups: tuple[str, str] = ("shard", "replicate")
    secondary: int = 0
    weights: int = 0

    @property
    def shard_axis(self) -> str:
        """The axis of the ranks that divide state: the whole axis, or groups of neighbours."""
        return self.axis if self.shards == self.copies else self.groups[0]

    @property
    def sum_axis(self) -> str:
        """The axis across those groups."""
        return self.axis if self.shards == 1 else self.groups[1]

    def share(self, divided: bool, level: float = 1) -> float:
        """Parameters whose state (``level`` 1 of ZeRO; gradients 2, weights 3) one rank keeps, ``divided`` or not."""
        if not divided:
            return self.parameters
        if self.weights and level != 2:
            return self.parameters / (self.weights if level == 3 else self.copies)
        return self.parameters / self.shards
