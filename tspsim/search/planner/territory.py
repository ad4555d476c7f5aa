"""Where TSP wins and where it loses: the best plan with TSP against the best without, over lengths and nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InputError, shorten
from ..axes import column, expand, split

if TYPE_CHECKING:
    from .branch import Best, Search

_FORM = "is not of the form sequences=8Ki,128Ki,nodes=1,8,128"


@dataclass(frozen=True)
class Points:
    """What a map spans: tokens a sequence, and nodes."""

    sequences: tuple[int, ...]
    nodes: tuple[int, ...]


@dataclass(frozen=True)
class Cell:
    """The best plan with TSP and the best without at one point; None where none fits.

    ``batch`` is in sequences: as many as keep the tokens of a step, at least one. ``sure`` is False where time ran out.
    """

    sequence: int
    nodes: int
    batch: int
    folded: tuple[str, float] | None
    other: tuple[str, float] | None
    sure: bool

    @property
    def ratio(self) -> float | None:
        """Rate with TSP over that without; infinite where only TSP fits.

        None where nothing fits, or time ran out before both were known.
        """
        if not self.sure and (self.folded is None or self.other is None):
            return None
        if self.folded is None:
            return 0.0 if self.other is not None else None
        return self.other[1] / self.folded[1] if self.other is not None else math.inf


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


def best_of(search: Search, folded: bool) -> Best:
    """The fastest plan with TSP, or without."""
    return search.best(1, admit=lambda job: (job.plan.tsp > 1) == folded)


def cell(search: Search, sequence: int, nodes: int) -> Cell:
    """Both at one point."""
    found = [best_of(search, folded) for folded in (True, False)]
    named = [(best.plans[0].candidate.name, best.plans[0].step_s) if best.plans else None for best in found]
    return Cell(sequence, nodes, search.space.batch, named[0], named[1], all(best.complete for best in found))

