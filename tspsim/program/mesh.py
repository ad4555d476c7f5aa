"""The rank mesh: which GPU stands where on which axis, and the process groups that follow.

A rank is its GPU's number in the cluster (node-major). The mesh is an integer array with one dimension an axis;
its entries are ranks, of the whole cluster or of a part of it. Groups along an axis are its lines.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..base.memo import once


@dataclass(frozen=True)
class Mesh:
    """Ranks by coordinates."""

    #: Names of the dimensions of ``ranks``, outermost first.
    axes: tuple[str, ...]
    #: Integer array; ``ranks[coordinates]`` is the GPU at those coordinates. Any set of GPUs, each once.
    ranks: NDArray[np.int64] = field(repr=False)
    #: Axis → the dimensions it is made of, outermost first, where it is not one itself: groups (:func:`with_groups`)
    #: share those of the others, and an axis that only a part of which is in a group has two, or three.
    made_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @once
    def sizes(self) -> Mapping[str, int]:
        """Axis → ranks of one group along it."""
        sizes = dict(zip(self.axes, self.ranks.shape, strict=True))
        return sizes | {axis: prod(sizes[part] for part in parts) for axis, parts in self.made_of.items()}

    def parts(self, axis: str) -> tuple[str, ...]:
        """The dimensions of an axis, or of those joined by ``+`` (``dp+sp``: all that hold the same weights)."""
        return tuple(part for name in axis.split("+") for part in self.made_of.get(name, (name,)))

    def groups(self, axis: str) -> NDArray[np.int64]:
        """All groups along an axis: shape (number of groups, size of the axis), members in axis order."""
        dimensions = [self.axes.index(part) for part in self.parts(axis)]
        moved = np.moveaxis(self.ranks, dimensions, list(range(-len(dimensions), 0)))
        return moved.reshape(-1, prod(self.ranks.shape[d] for d in dimensions))

    @once
    def key(self) -> Hashable:
        """Equal for equal meshes."""
        return self.axes, self.ranks.shape, self.ranks.tobytes(), tuple(sorted(self.made_of.items()))

    def per_rank(self, ranks: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
        """``values`` of ``ranks`` as an array indexed by rank, with −1 for GPUs that are not in the mesh."""
        table = np.full(int(self.ranks.max()) + 1, -1, dtype=np.int64)
        table[ranks.reshape(-1)] = values
        return table

    @once
    def positions(self) -> Mapping[str, NDArray[np.int64]]:
        """Axis → position of every rank on it (arrays indexed by rank, −1 outside the mesh)."""
        table = {}
        for axis in (*self.axes, *self.made_of):
            groups = self.groups(axis)
            table[axis] = self.per_rank(groups, np.tile(np.arange(groups.shape[1]), len(groups)))
        return table

    def coordinates(self, axes: Sequence[str]) -> tuple[list[dict[str, int]], NDArray[np.int64]]:
        """The coordinates on some axes, outermost first, that ranks have, in order; and which of them every rank has
        (by rank, −1 outside the mesh)."""
        ranks = self.ranks.reshape(-1)
        numbers = np.zeros(ranks.size, dtype=np.int64)
        for axis in axes:
            numbers = numbers * self.sizes[axis] + self.positions[axis][ranks]
        taken, which = np.unique(numbers, return_inverse=True)
        places = np.unravel_index(taken, [self.sizes[axis] for axis in axes])
        rows = zip(*(place.tolist() for place in places), strict=True)
        return [dict(zip(axes, row, strict=True)) for row in rows], self.per_rank(ranks, which)

    def group_of(self, axis: str) -> NDArray[np.int64]:
        """Number of every rank's group along an axis, as :meth:`groups` counts them (by rank, −1 outside the mesh)."""
        groups = self.groups(axis)
        return self.per_rank(groups, np.repeat(np.arange(len(groups)), groups.shape[1]))
