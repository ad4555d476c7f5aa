"""Requests that count and ended, and what each of them waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..traffic.kind import Floats, Ints
from .shelf import MOST_PAGES, PAGE
from .streams import ValueStream
from .traffic import Book


@dataclass(frozen=True)
class Waits:
    """Requests that count and ended: columns in order of their numbers; times in seconds."""

    sent_s: Floats
    scheduled_s: Floats
    first_token_s: Floats
    end_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    preemptions: Ints
    cached_tokens: Ints

    @classmethod
    def of(cls, book: Book) -> Waits:
        """Of a run's book; of a long one columns are in memory only while somebody looks at them."""
        kept = KeptWaits(book.settle())
        return kept if len(book) > PAGE * MOST_PAGES else kept.whole()

    def pieces(self) -> Iterator[Waits]:
        """The same in order, some thousand requests at once where they are many."""
        yield self

    def stream(self, values: Callable[[Waits], Floats]) -> ValueStream:
        """Values of all requests, of those that have one, which can be read again."""

        def read() -> Iterator[Floats]:
            for piece in self.pieces():
                found = values(piece)
                yield found[np.isfinite(found)]

        return ValueStream(read)

    def total(self, values: Callable[[Waits], NDArray[Any]]) -> int:
        """Sum of whole numbers, or of what is true, over all requests."""
        return sum(int(values(piece).sum()) for piece in self.pieces())

    def ends(self, few: int) -> tuple[Waits, Waits]:
        """The first so many of them, and the last."""
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
        """Some of them."""
        return Waits(*(getattr(self, each.name)[chosen] for each in fields(Waits)))

    def where(self, chosen: NDArray[np.bool_]) -> Waits:
        """Those that are chosen."""
        return Waits(*(getattr(self, each.name)[chosen] for each in fields(Waits)))

    def __len__(self) -> int:
        return len(self.sent_s)

    @property
    def ttft_s(self) -> Floats:
        return self.first_token_s - self.sent_s

    @property
    def e2e_s(self) -> Floats:
        return self.end_s - self.sent_s

    @property
    def tpot_s(self) -> Floats:
        return tpot_s(self.first_token_s, self.end_s, self.output_tokens)

    @property
    def first_s(self) -> float:
        """When the first was sent; there is one."""
        return min(float(piece.sent_s.min()) for piece in self.pieces() if len(piece))

    @property
    def last_sent_s(self) -> float:
        """When the last was sent; there is one."""
        return max(float(piece.sent_s.max()) for piece in self.pieces() if len(piece))

    @property
    def first_end_s(self) -> float:
        """When the first of them ended; there is one."""
        return min(float(piece.end_s.min()) for piece in self.pieces() if len(piece))

    @property
    def last_s(self) -> float:
        """When the last ended; there is one."""
        return max(float(piece.end_s.max()) for piece in self.pieces() if len(piece))

    @property
    def wall_s(self) -> float:
        return self.last_s - self.first_s if len(self) else 0.0

    def good(self, bounds: Mapping[str, float]) -> NDArray[np.bool_]:
        """Which keep all bounds: seconds of ``ttft``, ``tpot``, ``e2e``."""
        waits = {"ttft": self.ttft_s, "tpot": np.nan_to_num(self.tpot_s), "e2e": self.e2e_s}
        kept = np.ones(len(self), dtype=bool)
        for name, seconds in bounds.items():
            kept &= waits[name] <= seconds
        return kept


def kept_share(waits: Waits, bounds: Mapping[str, float], apart: bool) -> float:
    """Share of requests that keep bounds: all of them, or ``apart`` the one that fewest keep."""
    if not len(waits):
        return 0.0

    def kept(some: Mapping[str, float]) -> float:
        return waits.total(lambda piece: piece.good(some)) / len(waits)

    return min(kept({name: seconds}) for name, seconds in bounds.items()) if apart else kept(bounds)


class KeptWaits(Waits):
    """Those of a book: a column is put together when it is asked for."""

    def __init__(self, book: Book) -> None:
        object.__setattr__(self, "_book", book)
        object.__setattr__(self, "_count", sum(len(piece) for piece in self.pieces()))

    def pieces(self) -> Iterator[Waits]:
        book: Book = self.__dict__["_book"]
        asked = book.asked
        for first, records in book.pieces():
            numbers = np.arange(first, first + len(records))
            counted = (numbers >= asked.counted.start) & (numbers < asked.counted.stop)
            chosen = np.flatnonzero(counted & np.isfinite(records["end_s"]))
            yield Waits(
                records["arrival_s"][chosen],
                records["first_scheduled_s"][chosen],
                records["first_token_s"][chosen],
                records["end_s"][chosen],
                asked.prompt_tokens[numbers[chosen]],
                asked.output_tokens[numbers[chosen]],
                records["preemptions"][chosen],
                records["cached_tokens"][chosen],
            )

    def whole(self) -> Waits:
        """The same in memory."""
        return joined(self.pieces())

    def __len__(self) -> int:
        return int(self.__dict__["_count"])


def joined(pieces: Iterable[Waits]) -> Waits:
    """One behind the other, in memory."""
    known = list(pieces)
    if not known:
        none, nothing = np.empty(0), np.empty(0, dtype=np.int64)
        return Waits(none, none, none, none, nothing, nothing, nothing, nothing)
    return Waits(*(np.concatenate([getattr(piece, each.name) for piece in known]) for each in fields(Waits)))


def _column(name: str) -> property:
    return property(lambda self: getattr(self.whole(), name))


for _each in fields(Waits):
    setattr(KeptWaits, _each.name, _column(_each.name))


def tpot_s(first_token_s: Floats, end_s: Floats, output_tokens: Ints) -> Floats:
    """(e − f)/(n − 1) of every request; nan of those with one output."""
    gaps = np.where(output_tokens > 1, output_tokens - 1, 1)
    return np.where(output_tokens > 1, (end_s - first_token_s) / gaps, np.nan)
