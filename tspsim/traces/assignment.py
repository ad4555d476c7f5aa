"""The best assignment of kernels to operators in one order, by dynamic programming over a band of kernels.

A row holds the best worth for every number of kernels that are taken or left over. Steps repeat their layers: where the
operators of a block, the kernels in its window and the differences within the row before it are those of an earlier
block, so is what follows, and it is taken from there. All worths are whole numbers, so this is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .worth import Floats, Worth


class Taker(NamedTuple):
    """An operator: the worth of kernels to it, and the cost of leaving it without any. Operators of one ``number`` have
    the same."""

    number: int
    worth: Worth
    empty: float


class _Block(NamedTuple):
    """Operators that share a window of kernels, and the row before them, relative to its first value."""

    takers: Sequence[Taker]
    window: slice
    row: Floats
    left_over: Floats
    key: tuple[bytes, bytes, bytes]


def assigned(
    takers: Sequence[Taker], alike: NDArray[np.int64], left: Floats, begins: Sequence[int], windows: Sequence[slice]
) -> tuple[NDArray[np.int64], float]:
    """The operator of every kernel (−1: left over), and the worth of the assignment.

    Parameters
    ----------
    alike
        By kernel, a number of what makes it worth what it is to every operator.
    left
        Cost of leaving a kernel over.
    begins, windows
        The first operator of every block, and the kernels that its operators may take.
    """
    skipped = np.concatenate([[0.0], np.cumsum(left)])
    numbers = np.array([taker.number for taker in takers], np.int32)
    after: dict[tuple[bytes, bytes, bytes], Floats] = {}
    blocks: list[_Block] = []
    row, before = -skipped, slice(0, len(alike))
    for begin, end, window in zip(begins, [*begins[1:], len(takers)], windows, strict=True):
        row = _moved(row, before, window, skipped)
        base = row[0]
        relative = row - base
        key = numbers[begin:end].tobytes(), alike[window].tobytes(), relative.tobytes()
        left_over = skipped[window.start : window.stop + 1]
        left_over = left_over - left_over[0]
        blocks.append(_Block(takers[begin:end], window, relative, left_over, key))
        result = after.get(key)
        if result is None:
            result = relative
            for taker in takers[begin:end]:
                result = _row(result, taker.worth.within(window), taker.empty, left_over)[0]
            after[key] = result
        row, before = result + base, window
    own = np.full(len(alike), -1, np.int64)
    place = len(alike)
    traced: dict[tuple[tuple[bytes, bytes, bytes], int], tuple[NDArray[np.int64], int]] = {}
    for begin, block in zip(reversed(begins), reversed(blocks), strict=True):
        window = block.window
        place = min(max(place - window.start, 0), window.stop - window.start)
        path = traced.get((block.key, place))
        if path is None:
            path = traced[block.key, place] = _traced(block, place)
        given, start = path
        taken = np.flatnonzero(given >= 0)
        own[window.start + taken] = given[taken] + begin
        place = window.start + start
    return own, float(row[-1])


def _traced(block: _Block, place: int) -> tuple[NDArray[np.int64], int]:
    """The operators of a block's kernels up to a place, counted within the block, and the place before its first."""
    worths = [taker.worth.within(block.window) for taker in block.takers]
    rows = [block.row]
    for taker, worth in zip(block.takers[:-1], worths, strict=False):
        rows.append(_row(rows[-1], worth, taker.empty, block.left_over)[0])
    given = np.full(block.window.stop - block.window.start, -1, np.int64)
    for index in range(len(worths) - 1, -1, -1):
        place = _back(rows[index], worths[index], block.takers[index].empty, block.left_over, place, given, index)
    return given, place


def _moved(row: Floats, before: slice, window: slice, skipped: Floats) -> Floats:
    """The best values of a window's places, from those of the window before it: kernels behind that are left over."""
    if before == window:
        return row
    kept = row[window.start - before.start :]
    more = skipped[before.stop] - skipped[before.stop + 1 : window.stop + 1]
    return np.concatenate([kept, kept[-1] + more]) if len(more) else kept[: window.stop - window.start + 1]


def _row(before: Floats, worth: Worth, empty: float, skipped: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Best value for every number of kernels (taken or left over) after one more operator, and its terms."""
    helped, gone, most = worth.helped, worth.gone, np.maximum.accumulate
    # Helpers in front: a run begins after any earlier kernel and has only helpers so far.
    ahead = before - helped
    most(ahead, out=ahead)
    ahead += helped
    opened = ahead[:-1] + worth.first
    run = opened - gone
    most(run, out=run)
    run += gone
    ends = before - empty
    np.maximum(ends[1:], run, out=ends[1:])
    after = ends + skipped
    most(after, out=after)
    after -= skipped
    return after, ends, run, opened


def _back(
    before: Floats, worth: Worth, empty: float, skipped: Floats, place: int, takers: NDArray[np.int64], index: int
) -> int:
    """Assign kernels to an operator, from the number of kernels up to its last one; returns the number before its
    first."""
    _, ends, run, opened = _row(before, worth, empty, skipped)
    place = int(np.argmax((ends + skipped)[: place + 1]))
    if place == 0 or before[place] - empty >= run[place - 1]:
        return place
    last = place
    first = int(np.argmax((opened - worth.gone)[:last]))
    start = int(np.argmax((before - worth.helped)[: first + 1]))
    takers[start:last] = index
    return start
