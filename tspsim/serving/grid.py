"""Vectors over whole numbers, tabulated on demand in cells that end at tiles of products."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

from ..base.memo import remembered
from .tables import EPSILON, Floats

#: Rows of a product's smallest tile: within a tile values are nearly linear.
TILE = 16
#: Up to this number of expert tokens every number has a value of its own.
FEW = 64
#: Rows of the largest cell.
COARSE = 256
#: Numbers whose vectors are kept.
MOST = 65_536
#: Growth beyond this factor of the argument's growth is a jump.
JUMP = 1.25

Vector = Callable[[int], Floats]
#: An element of a vector by what this is over.
AtPlace = Callable[[Any], float]


class Cells:
    """A vector over n = 1, 2, …, linear inside cells (a, b] whose ends are multiples of :data:`TILE`.

    A product's time is a staircase whose steps are tiles, so a cell has a value at both ends, a + 1 and b. A
    cell is halved until the values around its middle are within the error, and inside a tile at a jump.

    Parameters
    ----------
    value
        The vector at a number.
    least
        Reference for the error where the vector's first element is less.
    first
        Smaller numbers have no value: the first cell begins here.
    ends
        The only numbers that occur; no cells are made.
    epsilon
        Relative error around the middle of a cell that is not halved.
    """

    def __init__(
        self,
        value: Vector,
        least: float = 0.0,
        *,
        first: int = 1,
        coarse: int = COARSE,
        ends: tuple[int, ...] = (),
        epsilon: float = EPSILON / 2,
    ) -> None:
        self._at, self._least, self._first, self._coarse = remembered(MOST)(value), least, first, coarse
        self._alone, self._epsilon = bool(ends), epsilon
        self._splits: dict[tuple[int, int], bool] = {}
        #: Tile → first number of its cell, its width, the vector there, and its growth up to the last.
        self._tiles: dict[int, tuple[int, int, Floats, Floats]] = {}

    def __call__(self, n: int) -> Floats:
        tile = self._tiles.get((n - 1) // TILE)
        if tile is not None:
            low, width, start, grown = tile
            return start + grown * ((n - low) / width)
        return self._at(n) if self._alone else self._between(n)

    def tile(self, n: int) -> tuple[int, int, Floats, Floats] | None:
        """Of a number that was asked for: the first of its cell, the cell's width, the vector there and its growth;
        None where its tile has several cells."""
        return self._tiles.get((n - 1) // TILE)

    def at_place(self, place: int) -> AtPlace:
        """An element of the vector."""
        return CellsAtPlace(self, place)

    def _between(self, n: int) -> Floats:
        low, high = self._cell(n)
        start, end = self._at(low), self._at(high)
        if high == low:
            return start
        if high % TILE == 0:
            line = low, high - low, start, end - start
            for tile in range((low - 1) // TILE, high // TILE):
                if low <= max(tile * TILE + 1, self._first):
                    self._tiles[tile] = line
        return start + (end - start) * ((n - low) / (high - low))

    def _cell(self, n: int) -> tuple[int, int]:
        width = self._coarse
        start = (n - 1) // width * width
        while self._halved(start, width):
            width //= 2
            start += width * (n - 1 >= start + width)
        low, high = max(start + 1, self._first), start + width
        return min(low, high), high

    def _halved(self, start: int, width: int) -> bool:
        """Whether a cell is not linear enough."""
        key = start, width
        if key not in self._splits:
            low, high, half = max(start + 1, self._first), start + width, width // 2
            if width > TILE:
                straight = start + half > low and self._straight(low, start + half, high)
            else:
                # Inside a tile only jumps are checked: a collective that switches algorithm at some size.
                straight = low >= high or not self._jumps(low, high) or self._straight(low, start + half, high)
            self._splits[key] = not straight
        return self._splits[key]

    def _jumps(self, low: int, high: int) -> bool:
        """Whether values grow more than their argument."""
        start, end = self._at(low), self._at(high)
        grown = JUMP * abs(start) * ((high - low) / low)
        return bool((abs(end - start) - grown).max() > self._epsilon * max(float(end[0]), self._least))

    def _straight(self, low: int, middle: int, high: int) -> bool:
        start, end = self._at(low), self._at(high)
        for n in (middle, middle + 1):
            exact = self._at(n)
            line = start + (end - start) * ((n - low) / (high - low))
            if abs(exact - line).max() > self._epsilon * max(float(exact[0]), self._least):
                return False
        return True


class Tiles(Protocol):
    """A vector over numbers that is a line inside most tiles."""

    def __call__(self, n: int) -> Floats:
        """The vector."""

    def tile(self, n: int) -> tuple[int, int, Floats, Floats] | None:
        """Of a number that was asked for: the first of its line, the line's width, the vector there and its growth."""


class CellsAtPlace:
    """An element of a vector by its number, without an array.

    Parameters
    ----------
    cells
        The vector over numbers.
    place
        Index of the element.
    """

    def __init__(self, cells: Tiles, place: int) -> None:
        self._cells, self._place = cells, place
        #: Tile → its first number, its width, the element there, and its growth up to the last.
        self._lines: dict[int, tuple[int, int, float, float]] = {}

    def __call__(self, n: int) -> float:
        tile = (n - 1) // TILE
        line = self._lines.get(tile)
        if line is None:
            value = float(self._cells(n)[self._place])
            vectors = self._cells.tile(n)
            if vectors is not None:
                low, width, start, grown = vectors
                line = low, width, float(start[self._place]), float(grown[self._place])
                self._lines |= dict.fromkeys(range((low - 1) // TILE, (low + width) // TILE), line)
            return value
        low, width, start_s, grown_s = line
        return start_s + grown_s * ((n - low) / width)


class TokenVectors:
    """A vector over n = 1, 2, …: exact for few tokens, since each further expert matters, and in cells for more."""

    def __init__(self, value: Vector, least: float = 0.0, first: int = 1) -> None:
        self._value = remembered(MOST)(value)
        self._cells = Cells(self._value, least, first=max(FEW + 1, first))

    def __call__(self, n: int) -> Floats:
        return self._value(n) if n <= FEW else self._cells(n)


class Quarters:
    """A number over n = 1, 2, …, linear between knots: four per octave, and one stated.

    >>> squares = Quarters(lambda n: float(n * n), 9)
    >>> [squares(n) for n in (3, 8, 9, 10, 11, 37)]
    [9.0, 64.0, 81.0, 100.0, 122.0, 1384.0]
    """

    def __init__(self, value: Callable[[int], float], besides: int) -> None:
        self._value, self._besides = remembered(MOST)(value), besides

    def __call__(self, n: int) -> float:
        step = max(1, (1 << (n.bit_length() - 1)) // 4)
        low = n // step * step
        high, knot = low + step, self._besides
        if low < knot < high:
            low, high = (low, knot) if n < knot else (knot, high)
        start = self._value(low)
        return start if n == low else start + (self._value(high) - start) * ((n - low) / (high - low))


class KnotLine:
    """A vector over x ≥ 0, linear between knots: 0, powers of two, and midpoints as in
    :class:`~tspsim.serving.tables.KnotCurve`."""

    def __init__(self, value: Vector, least: float, breakpoints: tuple[int, ...] = ()) -> None:
        #: The vector at a knot, exact.
        self.at = remembered(MOST)(value)
        self._least, self._breakpoints = least, breakpoints
        #: Bits of a number → knots there, and of each interval its ends, the vector at the first, and its growth.
        self._stretches: dict[int, tuple[list[int], list[tuple[int, int, Floats, Floats]]]] = {}
        #: The last interval used: its knots, the vector at the first, and its growth to the next.
        self._last: tuple[int, int, Floats, Floats] | None = None

    def __call__(self, x: float) -> Floats:
        low, high, start, grown = self.around(x)
        return start if x == low else start + grown * ((x - low) / (high - low))

    def around(self, x: float) -> tuple[int, int, Floats, Floats]:
        """The interval of a number: its knots, the vector at the first, and its growth to the next."""
        last = self._last
        if last is None or not last[0] <= x < last[1]:
            knots, intervals = self._stretch(int(x))
            last = self._last = intervals[min(max(1, bisect_right(knots, x)), len(intervals)) - 1]
        return last

    def _stretch(self, x: int) -> tuple[list[int], list[tuple[int, int, Floats, Floats]]]:
        power = x.bit_length()
        if power not in self._stretches:
            low, high = (1 << power >> 1), 1 << power
            knots = sorted({low, high, *(length for length in self._breakpoints if low < length < high)})
            for left, right in pairwise(tuple(knots)):
                self._refine(left, right, knots)
            knots.sort()
            vectors = [self.at(knot) for knot in knots]
            ends = zip(pairwise(knots), pairwise(vectors), strict=True)
            self._stretches[power] = knots, [(left, right, start, end - start) for (left, right), (start, end) in ends]
        return self._stretches[power]

    def _refine(self, left: int, right: int, knots: list[int]) -> None:
        low, high = self.at(left), self.at(right)
        if right - left < 2:
            return
        middle = (left + right) // 2
        exact = self.at(middle)
        knots.append(middle)
        line = low + (high - low) * ((middle - left) / (right - left))
        if abs(exact - line).max() > EPSILON * max(float(exact[0]), self._least):
            self._refine(left, middle, knots)
            self._refine(middle, right, knots)


def around(cached: int) -> tuple[int, int]:
    """Tabulated contexts of prompts around a context: two per octave.

    >>> around(0), around(64), around(100), around(5000)
    ((0, 0), (64, 96), (96, 128), (4096, 6144))
    """
    if not cached:
        return 0, 0
    power = 1 << (cached.bit_length() - 1)
    middle = power + power // 2
    return (power, max(middle, power + 1)) if cached < middle else (middle, 2 * power)
