"""Kernels and transfers of steps whose sizes depend on one number, between programs that are written for few numbers.

A step's program states the sizes of its kernels. They are linear in the tokens that pass, or nearly (experts whose
weights are read); seconds are not: a product's are a staircase of tiles. So programs are written at both ends of a
block of numbers, sizes are interpolated between them, and seconds are priced at these sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from ..base.memo import remembered
from ..hardware.over_tokens import OverTokens
from ..operators import Gemm
from ..parallel.serving_engine import Captured
from ..program.layout import StageCall, Timed
from .grid import COARSE, MOST, TILE, AtPlace, Cells, CellsAtPlace
from .programs import StepPrograms
from .tables import EPSILON, Floats

#: Numbers of the widest block, and tiles whose products are priced together.
WIDE, TOGETHER = 8192, 8
#: Where between the ends of a block it is held against programs.
CHECKED = (1 / 16, 1 / 4)
#: Growth of a block's second half over that of its first from which it is a line.
STRAIGHT = 1.0 - 1e-9


class UnlikeError(Exception):
    """Programs of some sizes have other instructions than that of a typical step."""


class SizedCall(NamedTuple):
    """A kernel, or a transfer, by a number.

    Attributes
    ----------
    at
        What it is at a number.
    even
        Whether all of its sizes are whole numbers that grow by as much with each.
    """

    at: Callable[[int], Timed]
    even: bool


def sized(numbers: tuple[int, int, int], calls: tuple[Timed, Timed, Timed]) -> SizedCall | None:
    """The kernel, or the transfer, that is one of three at each of three numbers, in order; None where nothing is known
    in between: names differ, or a whole number grows unevenly.

    >>> tall = sized((1, 6, 11), tuple(Gemm(m, 64, 64) for m in (10, 15, 20)))
    >>> tall.at(5).m, tall.even
    (14, True)
    >>> sized((1, 6, 11), tuple(Gemm(m, 64, 64) for m in (10, 17, 20)))
    """
    between = Between(numbers, whole=isinstance(calls[0], Gemm))
    try:
        at = between.value(calls)
    except UnlikeSizesError:
        return None
    return SizedCall(at, between.even)


def rows_of(product: Timed) -> float:
    """Rows of a product."""
    assert isinstance(product, Gemm)
    return float(product.m)


class UnlikeSizesError(Exception):
    """Nothing lies between values."""


class Between:
    """Values between those at three numbers.

    Parameters
    ----------
    numbers
        In order, the second in the middle.
    whole
        Whether whole numbers must grow by as much with each; otherwise they are rounded.
    """

    def __init__(self, numbers: tuple[int, int, int], *, whole: bool) -> None:
        self.first, self.middle, self.last = numbers
        self._whole = whole
        #: Whether all values so far are whole, and grow by as much with each number.
        self.even = True

    def value(self, values: Sequence[Any]) -> Callable[[int], Any]:
        """The value at a number."""
        low, middle, high = values
        if low == middle == high:
            return lambda _: low
        if not type(low) is type(middle) is type(high) or isinstance(low, bool | str):
            raise UnlikeSizesError
        first, width = self.first, self.last - self.first
        if isinstance(low, int):
            growth, rest = divmod(high - low, width)
            if not rest and middle == low + growth * (self.middle - first):
                return lambda n: low + growth * (n - first)
            if self._whole:
                raise UnlikeSizesError
            return lambda n: round(low + (high - low) * ((n - first) / width))
        if isinstance(low, float):
            self.even = False
            return self._curve(low, middle, high)
        cls, own = type(low), values_of(low)
        fields_of = list(zip(*map(values_of, values), strict=True))
        grown = [(i, self.value(parts)) for i, parts in enumerate(fields_of) if not parts[0] == parts[1] == parts[2]]

        def value(n: int) -> Any:
            parts = own.copy()
            for place, at in grown:
                parts[place] = at(n)
            return cls(*parts)

        return value

    def _curve(self, low: float, middle: float, high: float) -> Callable[[int], float]:
        """A line, or what approaches an end by the same share with each number, as distinct experts among random
        choices do: both are exact where sizes are so."""
        first, half, width = self.first, self.middle - self.first, self.last - self.first
        grown, more = middle - low, high - middle
        share = more / grown if grown else 0.0
        if 2 * half != width or not 0.0 < share < STRAIGHT:
            return lambda n: low + (high - low) * ((n - first) / width)
        scale = grown / (1.0 - share)
        return lambda n: low + scale * (1.0 - share ** ((n - first) / half))


def values_of(thing: Any) -> list[Any]:
    """What makes an object, in order."""
    cls = type(thing)
    if cls not in _names:
        _names[cls] = names_of(cls)
    names = _names[cls]
    if names is not None:
        return [getattr(thing, name) for name in names]
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return list(thing)
    raise UnlikeSizesError


#: Of every class met so far.
_names: dict[type, tuple[str, ...] | None] = {}


def names_of(cls: type) -> tuple[str, ...] | None:
    """The fields that make an object of a dataclass, in order; None for other classes."""
    if not is_dataclass(cls) or any(own.kw_only or not own.init for own in fields(cls)):
        return None
    return tuple([own.name for own in fields(cls)])


class SizedBlock(NamedTuple):
    """A part's calls between two numbers.

    Attributes
    ----------
    first, last
        Numbers whose programs are written.
    calls
        Each call by a number; None: as the number's own program has it.
    stages
        The stage of each.
    products, rows, over
        Positions of calls that are priced over many numbers at once; their rows at zero, and the growth of these; their
        seconds by their rows.
    others
        Positions of all others.
    """

    first: int
    last: int
    calls: list[SizedCall | None]
    stages: list[int]
    products: list[int]
    rows: tuple[Floats, Floats]
    over: OverTokens
    others: list[int]

    def even(self, position: int) -> bool:
        """Whether a call's sizes are whole numbers that grow by as much with each."""
        call = self.calls[position]
        return call is not None and call.even


class SizedCells:
    """A vector over n = 1, 2, …: the seconds of a part's calls from every place of a step on.

    Products are linear inside tiles, and exact at both ends of each. What all others take is linear in
    :class:`~tspsim.serving.grid.Cells`.

    Parameters
    ----------
    programs, captured
        What prices the calls.
    follows
        How often each call runs from every place on.
    calls_of
        The part's calls in the program of a step of a size.
    least, first, coarse
        Those of :class:`~tspsim.serving.grid.Cells`.
    few
        Up to this number each has a program and a vector of its own.
    wide
        Numbers of the widest block.
    """

    def __init__(
        self,
        programs: StepPrograms,
        captured: Captured,
        follows: Floats,
        calls_of: Callable[[int], list[StageCall]],
        least: float = 0.0,
        *,
        first: int = 1,
        few: int = 0,
        coarse: int = COARSE,
        wide: int = WIDE,
    ) -> None:
        first, self._few, self._alone = max(first, few + 1), few, remembered(MOST)(self._own)
        self._programs, self._captured, self._follows = programs, captured, follows
        self._calls_of = remembered(MOST)(calls_of)
        self._least, self._first, self._wide = least, first, wide
        self._others = Cells(self._others_at, least, first=first, coarse=coarse)
        #: (Number before the first, width) → the block; None where it is halved.
        self._blocks: dict[tuple[int, int], SizedBlock | None] = {}
        #: Of few numbers, where some calls are as their own programs have them.
        self._bent: SizedBlock | None = None
        #: Tile → seconds of products at its first and its last number, from every place on.
        self._products: dict[int, tuple[Floats, Floats]] = {}
        #: Tile → its first number, its width, the vector there, and its growth up to the last; None: no line.
        self._tiles: dict[int, tuple[int, int, Floats, Floats] | None] = {}

    def __call__(self, n: int) -> Floats:
        if n <= self._few:
            return self._alone(n)
        line = self.tile(n)
        if line is None:
            start, end = self._of_products((n - 1) // TILE)
            return self._others(n) + (start + (end - start) * ((n - 1) % TILE / (TILE - 1)))
        low, width, start, grown = line
        return start + grown * ((n - low) / width)

    def tile(self, n: int) -> tuple[int, int, Floats, Floats] | None:
        """The first number of its tile, the width, the vector there and its growth; None where its tile is no line."""
        if n <= self._few:
            return None
        tile = (n - 1) // TILE
        if tile not in self._tiles:
            self._tiles[tile] = self._line_of(tile)
        return self._tiles[tile]

    def at_place(self, place: int) -> AtPlace:
        """An element of the vector."""
        return CellsAtPlace(self, place)

    def alike(self, n: int) -> range:
        """Tiles whose calls beside products lie on one line with those of a number's tile: they are as quickly made."""
        tile = (n - 1) // TILE
        self._others((tile + 1) * TILE)
        cell = self._others.tile((tile + 1) * TILE)
        return range(tile, tile + 1) if cell is None else range((cell[0] - 1) // TILE, (cell[0] + cell[1]) // TILE)

    def _own(self, n: int) -> Floats:
        """The vector of a number's own program."""
        taken_s = self._programs.taken_s(self._calls_of(n), self._captured)
        assert taken_s is not None
        sums: Floats = self._follows @ np.array(taken_s)
        return sums

    def _line_of(self, tile: int) -> tuple[int, int, Floats, Floats] | None:
        low, high = tile * TILE + 1, (tile + 1) * TILE
        self._others(high)
        cell = self._others.tile(high)
        if cell is None:
            return None
        begins, width, start, grown = cell
        first, last = self._of_products(tile)
        first = first + (start + grown * ((low - begins) / width))
        last = last + (start + grown * ((high - begins) / width))
        return low, TILE - 1, first, last - first

    def _of_products(self, tile: int) -> tuple[Floats, Floats]:
        """Seconds of products at the first and the last number of a tile."""
        if tile not in self._products:
            start, width, block = self._block((tile + 1) * TILE)
            wide = min(TOGETHER * TILE, width)
            begins = start + (tile * TILE - start) // wide * wide + np.arange(1.0, wide, TILE)
            numbers = np.concatenate([begins, begins + (TILE - 1)])
            at_none, grown = block.rows
            seconds_s = block.over(np.maximum(1.0, at_none + grown * numbers))
            vectors = np.ascontiguousarray((self._follows[:, block.products] @ seconds_s).T)
            for place, ends in enumerate(zip(*np.split(vectors, 2), strict=True)):
                self._products[int(begins[place]) // TILE] = ends
        return self._products[tile]

    def _others_at(self, n: int) -> Floats:
        """Seconds of all others at a number."""
        _, _, block = self._block(n)
        taken_s = self._programs.taken_s(self._calls_in(block, n, block.others), self._captured)
        assert taken_s is not None
        sums: Floats = self._follows[:, block.others] @ np.array(taken_s)
        return sums

    def calls(self, n: int) -> list[StageCall]:
        """All calls at a number."""
        if n <= self._few:
            return self._calls_of(n)
        _, _, block = self._block(n)
        return self._calls_in(block, n, range(len(block.calls)))

    def _calls_in(self, block: SizedBlock, n: int, places: Iterable[int]) -> list[StageCall]:
        written = None if block.first < n < block.last else self._calls_of(n)
        calls: list[StageCall] = []
        for place in places:
            call = block.calls[place]
            if written is None and call is None:
                written = self._calls_of(n)
            if written is not None:
                calls.append(written[place])
            elif call is not None:
                calls.append(StageCall(call.at(n), block.stages[place]))
        return calls

    def prepare(self) -> None:
        """Writes the programs of the first numbers."""
        n = self._first
        while n <= self._wide:
            start, width, block = self._block(n)
            n = (COARSE if block is self._bent else start + width) + 1

    def _block(self, n: int) -> tuple[int, int, SizedBlock]:
        """The widest block around a number between whose ends sizes are interpolated: the number before its first, its
        width, and what is in it. Sizes that are no lines bend where numbers are few."""
        width = self._wide
        while True:
            start = (n - 1) // width * width
            if start >= width or width in (self._wide, TILE):
                if (start, width) not in self._blocks:
                    self._blocks[start, width] = self._tried(start, width)
                block = self._blocks[start, width]
                if block is not None:
                    return start, width, block
            if n <= COARSE and self._bent is not None:
                return 0, self._wide, self._bent
            width //= 2

    def _tried(self, start: int, width: int) -> SizedBlock | None:
        """The block of these numbers; None where it is halved."""
        try:
            block = self._block_of(max(start + 1, self._first), start + width)
            off = set[int]() if width == TILE else self._off(block)
        except UnlikeError:
            if width == TILE:
                raise
            return None
        if off and start == 0 and width == self._wide and all(not block.even(i) for i in off):
            calls = [None if i in off else call for i, call in enumerate(block.calls)]
            self._bent = block._replace(calls=calls)
        return None if off else block

    def _block_of(self, first: int, last: int) -> SizedBlock:
        numbers = first, (first + last) // 2, last
        lows, middles, highs = map(self._calls_of, numbers)
        calls: list[SizedCall | None] = [None] * len(lows)
        if first < last:
            triples = zip(lows, middles, highs, strict=True)
            calls = [sized(numbers, (low.what, middle.what, high.what)) for low, middle, high in triples]
        even = {i: low.what for i, low in enumerate(lows) if (call := calls[i]) is not None and call.even}
        over, products = self._programs.over_tokens(even, self._captured)
        low, high = (np.array([[rows_of(ends[i].what)] for i in products]).reshape(-1, 1) for ends in (lows, highs))
        grown = (high - low) / max(1, last - first)
        others = [i for i in range(len(calls)) if i not in products]
        stages = [stage for _, stage in lows]
        return SizedBlock(first, last, calls, stages, products, (low - first * grown, grown), over, others)

    def _off(self, block: SizedBlock) -> set[int]:
        """Calls that do not take as long at interpolated sizes as in programs of their own."""
        off = set[int]()
        for n in checked(block.first, block.last):
            written = self._calls_of(n)
            calls = {
                i: StageCall(call.at(n), block.stages[i]) for i, call in enumerate(block.calls) if call is not None
            }
            unlike = [i for i, call in calls.items() if call.what != written[i].what]
            exact_s = self._programs.taken_s([written[i] for i in unlike], self._captured)
            taken_s = self._programs.taken_s([calls[i] for i in unlike], self._captured)
            apart_s = self._follows[:, unlike] * (np.array(taken_s) - np.array(exact_s))
            most_s = abs(apart_s).max(axis=0, initial=0.0)
            off.update(i for i, own_s in zip(unlike, most_s, strict=True) if own_s > EPSILON / 4 * self._least)
        return off


def checked(first: int, last: int) -> list[int]:
    """Numbers inside a block whose programs are compared with what lies between its ends and its middle.

    >>> checked(65, 8192), checked(513, 576), checked(17, 17)
    ([572, 2096], [516, 528], [])
    """
    width = last - first
    return sorted({first + int(width * share) for share in CHECKED} - {first}) if width else []
