"""Requests that count and ended, with their latencies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..traffic.kind import Floats, Ints
from .spill_pages import MOST_PAGES, PAGE
from .streams import ValueStream
from .traffic import RequestTable


@dataclass(frozen=True)
class Waits:
    """Requests that count and ended: columns in order of their numbers; times in seconds."""

    arrival_s: Floats
    first_scheduled_s: Floats
    first_token_s: Floats
    end_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    preemptions: Ints
    cached_tokens: Ints

    @classmethod
    def of(cls, table: RequestTable) -> Waits:
        """The requests of a run's table; in a long run columns are in memory only while they are used."""
        kept = KeptWaits(table.settle())
        return kept if len(table) > PAGE * MOST_PAGES else kept.whole()

    def pieces(self) -> Iterator[Waits]:
        """The same in order, some thousand requests at a time where they are many."""
        yield self

    def stream(self, values: Callable[[Waits], Floats]) -> ValueStream:
        """Finite values of all requests, which can be read repeatedly."""

        def read() -> Iterator[Floats]:
            for piece in self.pieces():
                numbers = values(piece)
                yield numbers[np.isfinite(numbers)]

        return ValueStream(read)

    def total(self, values: Callable[[Waits], NDArray[Any]]) -> int:
        """Sum of whole numbers, or of truth values, over all requests."""
        return sum(int(values(piece).sum()) for piece in self.pieces())

    def ends(self, few: int) -> tuple[Waits, Waits]:
        """The first ``few`` requests, and the last."""
        first: list[Waits] = []
        last: deque[Waits] = deque()
        for piece in self.pieces():
            if sum(map(len, first)) < few:
                first.append(piece)
            last.append(piece)
            while sum(map(len, last)) - len(last[0]) >= few:
                last.popleft()
        return joined(first).part(slice(few)), joined(last).part(slice(-few, None))

    def part(self, chosen: slice) -> Waits:
        """A slice of them."""
        return Waits(*(getattr(self, column.name)[chosen] for column in fields(Waits)))

    def where(self, chosen: NDArray[np.bool_]) -> Waits:
        """The chosen ones."""
        return Waits(*(getattr(self, column.name)[chosen] for column in fields(Waits)))

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def ttft_s(self) -> Floats:
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> Floats:
        return self.end_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        return tpot_s(self.first_token_s, self.end_s, self.output_tokens)

    @property
    def first_s(self) -> float:
        """When the first was sent; there must be one."""
        return min(float(piece.arrival_s.min()) for piece in self.pieces() if len(piece))

    @property
    def last_sent_s(self) -> float:
        """When the last was sent; there must be one."""
        return max(float(piece.arrival_s.max()) for piece in self.pieces() if len(piece))

    @property
    def first_end_s(self) -> float:
        """When the first of them ended; there must be one."""
        return min(float(piece.end_s.min()) for piece in self.pieces() if len(piece))

    @property
    def last_s(self) -> float:
        """When the last ended; there must be one."""
        return max(float(piece.end_s.max()) for piece in self.pieces() if len(piece))

    @property
    def wall_s(self) -> float:
        return self.last_s - self.first_s if len(self) else 0.0

    def good(self, bounds: Mapping[str, float]) -> NDArray[np.bool_]:
        """Which requests keep all bounds on ``ttft``, ``tpot``, ``e2e``."""
        waits = {"ttft": self.ttft_s, "tpot": np.nan_to_num(self.tpot_s), "e2e": self.e2e_s}
        kept = np.ones(len(self), dtype=bool)
        for name, seconds in bounds.items():
            kept &= waits[name] <= seconds
        return kept


def kept_share(waits: Waits, bounds: Mapping[str, float], apart: bool) -> float:
    """Share of requests that keep bounds: all of them, or with ``apart`` the bound that fewest keep."""
    if not len(waits):
        return 0.0

    def kept(some: Mapping[str, float]) -> float:
        return waits.total(lambda piece: piece.good(some)) / len(waits)

    return min(kept({name: seconds}) for name, seconds in bounds.items()) if apart else kept(bounds)


class KeptWaits(Waits):
    """Requests of a table; a column is assembled when it is used."""

    def __init__(self, table: RequestTable) -> None:
        object.__setattr__(self, "_table", table)
        object.__setattr__(self, "_count", sum(len(piece) for piece in self.pieces()))

    def pieces(self) -> Iterator[Waits]:
        table: RequestTable = self.__dict__["_table"]
        drawn = table.drawn
        for first, records in table.pieces():
            numbers = np.arange(first, first + len(records))
            counted = (numbers >= drawn.counted.start) & (numbers < drawn.counted.stop)
            chosen = np.flatnonzero(counted & np.isfinite(records["end_s"]))
            lengths = drawn.prompt_tokens[numbers[chosen]], drawn.output_tokens[numbers[chosen]]
            results = {name: records[name][chosen] for name in records.dtype.names or ()}
            yield Waits(prompt_tokens=lengths[0], output_tokens=lengths[1], **results)

    def whole(self) -> Waits:
        """The same in memory."""
        return joined(self.pieces())

    def __len__(self) -> int:
        return int(self.__dict__["_count"])


def joined(pieces: Iterable[Waits]) -> Waits:
    """Pieces joined in memory."""
    parts = list(pieces)
    if not parts:
        none, nothing = np.empty(0), np.empty(0, dtype=np.int64)
        return Waits(none, none, none, none, nothing, nothing, nothing, nothing)
    return Waits(*(np.concatenate([getattr(piece, column.name) for piece in parts]) for column in fields(Waits)))


def _column(name: str) -> property:
    return property(lambda self: getattr(self.whole(), name))


for _field in fields(Waits):
    setattr(KeptWaits, _field.name, _column(_field.name))


def tpot_s(first_token_s: Floats, end_s: Floats, output_tokens: Ints) -> Floats:
    """(e − f)/(n − 1) of every request; nan with one output."""
    gaps = np.where(output_tokens > 1, output_tokens - 1, 1)
    return np.where(output_tokens > 1, (end_s - first_token_s) / gaps, np.nan)
