"""Where TSP wins and where it loses: the best plan with TSP against the best without, over lengths and nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...base.errors import InputError, shorten
from ..axes import column, expand, split

_FORM = "is not of the form sequences=8Ki,128Ki,nodes=1,8,128"


class MapPoint(NamedTuple):
    """Tokens per sequence, and nodes."""

    sequence: int
    nodes: int


@dataclass(frozen=True)
class Points:
    """The axes of a map: tokens per sequence, and nodes."""

    sequences: tuple[int, ...]
    nodes: tuple[int, ...]

    def cells(self) -> list[MapPoint]:
        """Row by row, the largest cluster first: its points take longest."""
        return [MapPoint(sequence, nodes) for nodes in reversed(self.nodes) for sequence in self.sequences]


class Side(NamedTuple):
    """The best plan of a side at a point, its step, and a lower bound on the side's steps."""

    plan: str
    step_s: float
    least_s: float


@dataclass(frozen=True)
class Cell:
    """The best plan with TSP and the best without at one point; None where none fits.

    ``batch`` is in sequences, for constant tokens per step, at least one. ``sure`` is False where time ran out.
    """

    sequence: int
    nodes: int
    batch: int
    folded: Side | None
    other: Side | None
    sure: bool

    @property
    def ratio(self) -> float | None:
        """Rate with TSP over the rate without; infinite where only TSP fits.

        None where nothing fits, or time ran out before both were known.
        """
        if not self.sure and (self.folded is None or self.other is None):
            return None
        if self.folded is None:
            return 0.0 if self.other is not None else None
        return self.other.step_s / self.folded.step_s if self.other is not None else math.inf

    @property
    def proven(self) -> bool:
        """Whether no plan that was not simulated can turn a win into a loss. Where only one side fits, it has won."""
        if self.folded is None or self.other is None:
            return self.sure
        folded, other = self.folded, self.other
        return other.step_s <= folded.least_s or folded.step_s < other.least_s


def read_map(text: str) -> Points:
    """Read ``sequences=8Ki,128Ki,nodes=1,8,128``; ranges as ``--over`` takes them (``nodes=1..128*2``).

    Raises
    ------
    InputError
        Another key, no value, or a value that is no count.

    Examples
    --------
    >>> read_map("sequences=8Ki..32Ki*2,nodes=1,8")
    Points(sequences=(8192, 16384, 32768), nodes=(1, 8))
    """
    values: dict[str, list[str]] = {}
    key = ""
    try:
        for item in split(text):
            name, equals, rest = item.partition("=")
            if equals:
                key = name.strip()
                if key not in ("sequences", "nodes") or key in values:
                    raise InputError(_FORM)
                values[key] = []
                item = rest.strip()
            if not key or not item:
                raise InputError(_FORM)
            values[key] += expand(item)
        if len(values) != 2:
            raise InputError(_FORM)
        sequences, nodes = (_counts(values[name]) for name in ("sequences", "nodes"))
    except InputError as error:
        raise error.at(file=f"--map {shorten(text)}") from None
    return Points(sequences, nodes)


def _counts(texts: Sequence[str]) -> tuple[int, ...]:
    counts = []
    for text, cell in zip(texts, column(texts), strict=True):
        if isinstance(cell, bool) or not isinstance(cell, int) or cell < 1:
            raise InputError(f"'{shorten(text)}' is no count; use whole numbers such as 128Ki")
        counts.append(cell)
    return tuple(sorted(set(counts)))
