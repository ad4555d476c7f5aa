"""A vector over decoding sequences and their mean context: lines over contexts at both ends of cells of sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from .grid import AtPlace, KnotLine
from .tables import EPSILON, Floats


class DecodingCells:
    """The part of steps that depends on decoding sequences.

    Parameters
    ----------
    value
        The vector at a number of sequences and a context.
    least
        Reference for the error where the vector's first element is less.
    wide
        Sequences of the widest cell: a tile of products, halved where another wave of attention begins inside it.
    breakpoints
        Contexts with a knot.
    reads_contexts
        Whether the vector depends on the context.
    """

    def __init__(
        self,
        value: Callable[[int, int], Floats],
        least: float,
        wide: int,
        breakpoints: tuple[int, ...],
        *,
        reads_contexts: bool = True,
    ) -> None:
        self._value, self._least, self._wide, self._breakpoints = value, least, wide, breakpoints
        self._reads_contexts = reads_contexts
        #: Sequences → their line over contexts.
        self._over: dict[int, KnotLine] = {}
        #: (Sequences, octave of their mean context) → the ends of their cell, and the line of the first.
        self._cells: dict[tuple[int, int], tuple[int, int, KnotLine]] = {}
        #: (First and last number of sequences, context) → whether times between them lie on a line.
        self._lines: dict[tuple[int, int, int], bool] = {}
        #: (First number of sequences of a cell, knot of a mean context) → the vector there, its growth to the next
        #: knot, to the last number, and that of one along the other; None where the last number has other knots.
        self._corners: dict[tuple[int, int], Floats | None] = {}

    def __call__(self, batch: int, mean: float) -> Floats:
        """The vector, between the ends of a cell of sequences."""
        low, high, line = self.cell(batch, mean)
        if batch == low:
            return line(mean)
        first, last, corners = self.corners(low, high, line, mean)
        share = (batch - low) / (high - low)
        if corners is None:
            own = line(mean)
            return own + (self._over_contexts(high)(mean) - own) * share
        along = (mean - first) / (last - first)
        inside: Floats = np.array((1.0, along, share, along * share)) @ corners
        return inside

    def point(self, batch: int, mean: float) -> DecodingPoint:
        """Where so many sequences are in their cell."""
        low, high, line = self.cell(batch, mean)
        if batch == low:
            first, last, start, grown = line.around(mean)
            return DecodingPoint((low, first, True), (mean - first) / (last - first), 0.0, (start, grown))
        first, last, corners = self.corners(low, high, line, mean)
        if corners is None:
            return DecodingPoint(None, 0.0, 0.0, (self(batch, mean),))
        along, share = (mean - first) / (last - first), (batch - low) / (high - low)
        return DecodingPoint((low, first, False), along, share, corners)

    def at_place(self, place: int) -> AtPlace:
        """An element of the vector by a point."""
        return DecodingAtPlace(place)

    def cell(self, batch: int, mean: float) -> tuple[int, int, KnotLine]:
        """The first and the last number of sequences of a cell, and the line of the first over contexts."""
        octave = int(mean).bit_length()
        cell = self._cells.get((batch, octave))
        if cell is None:
            cell = self._cells[batch, octave] = self._cell_of(batch, 1 << octave >> 1)
        return cell

    def corners(self, low: int, high: int, line: KnotLine, mean: float) -> tuple[int, int, Floats | None]:
        """The interval of a mean context, and the vectors at its corners; None where both ends of the cell have other
        intervals."""
        first, last, start, grown = line.around(mean)
        key = low, first
        if key not in self._corners:
            other = self._over_contexts(high).around(mean)
            alike = other[0] == first and other[1] == last
            self._corners[key] = np.stack((start, grown, other[2] - start, other[3] - grown)) if alike else None
        return first, last, self._corners[key]

    def _cell_of(self, batch: int, context: int) -> tuple[int, int, KnotLine]:
        """The first and the last number of sequences of a batch's cell, as judged at one context, and the line of the
        first."""
        low = (batch - 1) // self._wide * self._wide + 1
        high = low + self._wide - 1
        while high - low > 1 and not self._straight(low, high, context):
            middle = (low + high) // 2
            low, high = (low, middle) if batch <= middle else (middle + 1, high)
        return low, high, self._over_contexts(low)

    def _straight(self, low: int, high: int, context: int) -> bool:
        """Whether numbers of sequences between two take times on the line between these."""
        key = low, high, context
        if key not in self._lines:
            start, end = self._over_contexts(low).at(context), self._over_contexts(high).at(context)
            middle = (low + high) // 2
            straight = True
            for number in (middle, middle + 1):
                exact = self._over_contexts(number).at(context)
                line = start + (end - start) * ((number - low) / (high - low))
                straight = straight and abs(exact - line).max() <= EPSILON / 2 * max(float(exact[0]), self._least)
            self._lines[key] = bool(straight)
        return self._lines[key]

    def _over_contexts(self, batch: int) -> KnotLine:
        if batch not in self._over:
            self._over[batch] = KnotLine(self._values_of(batch), self._least, self._breakpoints)
        return self._over[batch]

    def _values_of(self, batch: int) -> Callable[[int], Floats]:
        """The vector over contexts."""
        if self._reads_contexts:
            return lambda context: self._value(batch, context)
        value = self._value(batch, 1)
        return lambda _: value


class DecodingPoint(NamedTuple):
    """Sequences that decode, and their mean context, in a cell of the vector.

    Attributes
    ----------
    key
        The first number of sequences of the cell, the knot of the mean context, and whether they are that first number;
        None where no cell has them.
    along, share
        How far they are between knots, and between numbers of sequences.
    vectors
        Those at the corners (:meth:`DecodingCells.corners`); without a cell the vector itself.
    """

    key: tuple[int, int, bool] | None
    along: float
    share: float
    vectors: Iterable[Floats]


class DecodingAtPlace:
    """An element of the vector, without an array.

    Parameters
    ----------
    place
        Index of the element.
    """

    def __init__(self, place: int) -> None:
        self._place = place
        #: Key of a point → the element at its corners.
        self._corners: dict[tuple[int, int, bool], list[float]] = {}

    def __call__(self, point: DecodingPoint) -> float:
        key, along, share, vectors = point
        if key is None:
            (vector,) = vectors
            return float(vector[self._place])
        corners = self._corners.get(key)
        if corners is None:
            corners = self._corners[key] = [float(vector[self._place]) for vector in vectors]
        if len(corners) == 2:
            return corners[0] + corners[1] * along
        return corners[0] + along * corners[1] + share * (corners[2] + along * corners[3])
