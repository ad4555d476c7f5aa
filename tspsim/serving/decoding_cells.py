"""A vector over decoding sequences and their mean context: lines over contexts at both ends of cells of sequences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .grid import KnotLine
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
    """

    def __init__(
        self, value: Callable[[int, int], Floats], least: float, wide: int, breakpoints: tuple[int, ...]
    ) -> None:
        self._value, self._least, self._wide, self._breakpoints = value, least, wide, breakpoints
        #: Sequences → their line over contexts.
        self._over: dict[int, KnotLine] = {}
        #: (Sequences, octave of their mean context) → the ends of their cell, and the line of the first.
        self._cells: dict[tuple[int, int], tuple[int, int, KnotLine]] = {}
        #: (First and last number of sequences, context) → whether times between them lie on a line.
        self._lines: dict[tuple[int, int, int], bool] = {}
        #: (First number of sequences of a cell, knot of a mean context) → the vector there, its growth to the next
        #: knot, to the last number, and that of one along the other.
        self._between: dict[tuple[int, int], Floats] = {}
        #: The same of the first place.
        self._corners: dict[tuple[int, int], tuple[float, ...]] = {}

    def __call__(self, batch: int, mean: float) -> Floats:
        """The vector, between the ends of a cell of sequences."""
        octave = int(mean).bit_length()
        cell = self._cells.get((batch, octave))
        if cell is None:
            cell = self._cells[batch, octave] = self._cell_of(batch, 1 << octave >> 1)
        low, high, line = cell
        if batch == low:
            return line(mean)
        share = (batch - low) / (high - low)
        first, last, start, grown = line.around(mean)
        corners = self._between.get((low, first))
        if corners is None:
            other = self._over_contexts(high).around(mean)
            if other[0] != first or other[1] != last:
                own = line(mean)
                return own + (self._over_contexts(high)(mean) - own) * share
            corners = self._between[low, first] = np.stack((start, grown, other[2] - start, other[3] - grown))
        along = (mean - first) / (last - first)
        inside: Floats = np.array((1.0, along, share, along * share)) @ corners
        return inside

    def first(self, batch: int, mean: float) -> float:
        """The first element of the vector, without an array."""
        cell = self._cells.get((batch, int(mean).bit_length()))
        if cell is not None and cell[0] < batch:
            low, high, line = cell
            first, last, _, _ = line.around(mean)
            corners = self._corners.get((low, first))
            if corners is not None:
                along, share = (mean - first) / (last - first), (batch - low) / (high - low)
                return corners[0] + along * corners[1] + share * (corners[2] + along * corners[3])
            whole = self._between.get((low, first))
            if whole is not None:
                self._corners[low, first] = tuple(whole[:, 0].tolist())
        return float(self(batch, mean)[0])

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
            self._over[batch] = KnotLine(lambda context: self._value(batch, context), self._least, self._breakpoints)
        return self._over[batch]
