"""Costly functions, tabulated on demand and interpolated within a stated error."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.memo import remembered

Floats = NDArray[np.float64]

#: Values of a function that are kept.
MOST = 4096
#: Largest relative error of linear interpolation between two knots.
EPSILON = 0.002


class KnotCurve:
    """A function of a positive whole number, linear between knots.

    Knots lie at powers of two and at ``breakpoints``, and between two that differ by more than a quarter of ``epsilon``
    at midpoints, until a midpoint lies within ``epsilon`` of the line; it is then a knot too, so the checked error is
    about four times that of the answer. Knots depend only on the function, not on earlier calls.

    Parameters
    ----------
    value
        The function.
    breakpoints
        Where its slope jumps.
    epsilon
        Relative error.

    Examples
    --------
    >>> calls = []
    >>> curve = KnotCurve(lambda x: calls.append(x) or 3.0 * x + 1.0)
    >>> curve(np.array([9.0, 11.5])), calls
    (array([28. , 35.5]), [8, 16, 12])
    """

    def __init__(
        self, value: Callable[[int], float], breakpoints: Sequence[int] = (), epsilon: float = EPSILON
    ) -> None:
        #: The function, whose values are kept.
        self.value, self.epsilon = remembered(MOST)(value), epsilon
        self._breakpoints = tuple(sorted(set(breakpoints)))
        self._known: dict[int, float] = {}
        self._x: Floats = np.empty(0)
        self._y: Floats = np.empty(0)
        self._knots: tuple[list[float], list[float]] = [], []
        self._covered: set[tuple[int, int]] = set()
        self._range = (0.0, -1.0)

    def __call__(self, x: Any) -> Any:
        """Values at a number, or an array of them."""
        self.cover(float(np.min(x)), float(np.max(x)))
        return np.interp(x, self._x, self._y)

    def along(self, x: Floats) -> Floats:
        """Values at ascending numbers, bit for bit those of a call."""
        low, high = float(x[0]), float(x[-1])
        if low < self._range[0] or high > self._range[1]:
            self.cover(low, high)
        return np.interp(x, self._x, self._y)

    def at(self, x: float) -> float:
        """The value at one number, bit for bit that of a call."""
        low, high = self._range
        if not low <= x <= high:
            self.cover(x, x)
        knots, values = self._knots
        index = max(0, bisect_right(knots, x) - 1)
        left = knots[index]
        if x <= left:
            return values[index]
        return (values[index + 1] - values[index]) / (knots[index + 1] - left) * (x - left) + values[index]

    def cover(self, low: float, high: float) -> None:
        """Makes knots from ``low`` to ``high``."""
        if self._range[0] <= low and high <= self._range[1]:
            return
        before = len(self._known)
        left = self._knot_below(max(1, floor(low)))
        first = left
        while True:
            right = self._knot_above(left)
            if (left, right) not in self._covered:
                self._covered.add((left, right))
                self._refine(left, right)
            if right >= ceil(high):
                break
            left = right
        if len(self._known) != before:
            self._x = np.array(sorted(self._known), dtype=np.float64)
            self._y = np.array([self._known[int(x)] for x in self._x])
            self._knots = self._x.tolist(), self._y.tolist()
        # An interval between two covered ones is covered before the range includes it.
        if not self._range[0] <= self._range[1]:
            self._range = (float(first), float(right))
        elif first <= self._range[1] and right >= self._range[0]:
            self._range = (min(self._range[0], first), max(self._range[1], right))
        else:
            self.cover(min(self._range[0], first), max(self._range[1], right))

    def _knot_below(self, x: int) -> int:
        power = 1 << (x.bit_length() - 1)
        index = bisect_left(self._breakpoints, x + 1)
        return max(power, self._breakpoints[index - 1]) if index else power

    def _knot_above(self, x: int) -> int:
        power = 1 << x.bit_length()
        index = bisect_left(self._breakpoints, x + 1)
        return min(power, self._breakpoints[index]) if index < len(self._breakpoints) else power

    def _at(self, x: int) -> float:
        if x not in self._known:
            self._known[x] = self.value(x)
        return self._known[x]

    def _refine(self, left: int, right: int) -> None:
        low, high = self._at(left), self._at(right)
        # What hardly grows is off the line by less than what it grows.
        if right - left < 2 or abs(high - low) <= self.epsilon / 4 * abs(low):
            return
        middle = (left + right) // 2
        exact = self._at(middle)
        line = low + (high - low) * (middle - left) / (right - left)
        if abs(exact - line) > self.epsilon * exact:
            self._refine(left, middle)
            self._refine(middle, right)
