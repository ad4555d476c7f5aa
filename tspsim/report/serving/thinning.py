"""Logs of any length as a few hundred columns: exact integrals over time, not samples."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .view import KINDS, Floats, StepRuns


@dataclass(frozen=True)
class Columns:
    """A log cut into columns of time: means over each column's time, with idle time as zero."""

    #: One edge more than columns.
    edges_s: Floats
    #: Kind of step → share of each column that the engine spent in it; the rest is idle.
    share: dict[int, Floats]
    waiting: Floats
    #: The longest queue in the column.
    most_waiting: Floats
    sequences: Floats
    used_tokens: Floats


def columns(steps: StepRuns, edges_s: Floats) -> Columns:
    """A log over ascending ``edges_s``: integrals of piecewise constant functions, so that sums are exact."""
    width = np.diff(edges_s)
    length = steps.end_s - steps.start_s

    def mean(value: Floats) -> Floats:
        """The mean of a value that holds during each run and is zero between runs."""
        if not len(steps):
            return np.zeros(len(width))
        total = np.concatenate(([0.0], np.cumsum(value * length)))
        moments = np.column_stack((steps.start_s, steps.end_s)).ravel()
        integral = np.column_stack((total[:-1], total[1:])).ravel()
        means: Floats = np.diff(np.interp(edges_s, moments, integral)) / width
        return means

    share = {kind: np.clip(mean((steps.kind == kind).astype(float)), 0.0, 1.0) for kind in KINDS}
    return Columns(
        edges_s,
        share,
        mean(steps.waiting.astype(float)),
        largest(steps, steps.waiting.astype(float), edges_s),
        mean(steps.sequences.astype(float)),
        mean(steps.used_tokens.astype(float)),
    )


def largest(steps: StepRuns, value: Floats, edges_s: Floats) -> Floats:
    """The largest ``value`` of a run that overlaps each column; zero where none does."""
    most = np.zeros(len(edges_s) - 1)
    if not len(steps):
        return most
    last = len(most) - 1
    first_column = np.clip(np.searchsorted(edges_s, steps.start_s, "right") - 1, 0, last)
    last_column = np.clip(np.searchsorted(edges_s, steps.end_s, "left") - 1, 0, last)
    seen = (steps.end_s > edges_s[0]) & (steps.start_s < edges_s[-1])
    first_column, last_column, value = first_column[seen], last_column[seen], value[seen]
    np.maximum.at(most, first_column, value)
    np.maximum.at(most, last_column, value)
    wide = last_column > first_column + 1
    for begin, end, height in zip(first_column[wide], last_column[wide], value[wide], strict=True):
        np.maximum(most[begin:end], height, out=most[begin:end])
    return most


def edges(all_steps: list[StepRuns], from_s: float, to_s: float, most: int) -> Floats:
    """Edges of at most ``most`` columns: the begins and ends of runs if those are few, else equidistant."""
    inside = [steps.within(from_s, to_s) for steps in all_steps]
    if sum(map(len, inside)) * 2 < most:
        moments = [times for steps in inside for times in (steps.start_s, steps.end_s)]
        at = np.unique(np.clip(np.concatenate([*moments, [from_s, to_s]]), from_s, to_s))
        # Runs that follow each other without a wait share a time, to rounding.
        apart = np.concatenate(([True], np.diff(at) > 1e-9 * max(to_s - from_s, 1e-30)))
        at = at[apart]
        if len(at) > 1:
            return at
    return np.linspace(from_s, to_s, most + 1)


def thinned(count: int, most: int) -> NDArray[np.int64]:
    """Places of at most ``most`` of ``count`` sorted values, including the first and the last.

    >>> thinned(10, 4).tolist(), thinned(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def packed(values: Any, dtype: str = "f4") -> dict[str, str]:
    """An array in plotly's text form: a type and its bytes in base64.

    >>> packed([1, 2], "u1")
    {'dtype': 'u1', 'bdata': 'AQI='}
    """
    array = np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<"))
    return {"dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode("ascii")}
