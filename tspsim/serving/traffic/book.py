"""All requests of a run, as records: objects exist only while a request is under way, and what came of those that have
ended lies on a shelf, so that memory grows by the lengths that are asked alone: 16 bytes a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ...traffic import Asked
from ...traffic.kind import Floats, Ints
from ..requests import Request
from ..shelf import PAGE, Shelf

#: What came of a request.
RECORD = np.dtype(
    [
        ("arrival_s", "f8"),
        ("first_scheduled_s", "f8"),
        ("first_token_s", "f8"),
        ("end_s", "f8"),
        ("preemptions", "i4"),
        ("cached_tokens", "i8"),
    ]
)
_pack = Struct("=ddddiq").pack_into
_NOTHING = np.array([(np.nan, np.nan, np.nan, np.nan, 0, 0)], dtype=RECORD)


class Book(Sequence[Request]):
    """Requests in order of their numbers, and what came of them.

    Attributes
    ----------
    asked
        Their lengths and what they share.
    arrival_s, first_scheduled_s, first_token_s, end_s
        Seconds of every request; nan where it has not come to that.
    preemptions, cached_tokens
        Of every request.
    tool_wait_s
        Of every turn, that the tool before it waited for a worker.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        count = len(asked)
        self.tool_wait_s = np.zeros(count)
        self._shelf = Shelf(RECORD)
        self._under_way: dict[int, Request] = {}

    def open(self, number: int, arrival_s: float) -> Request:
        """A request is sent."""
        request = self._request(number)
        request.arrival_s = arrival_s
        self._under_way[number] = request
        return request

    def close(self, request: Request) -> None:
        """It has ended: what came of it is kept."""
        self._keep(request)
        del self._under_way[request.number]

    def settle(self) -> Book:
        """With what is known of requests that have not ended."""
        for request in self._under_way.values():
            self._keep(request)
        return self

    def _keep(self, request: Request) -> None:
        page, place = divmod(request.number, PAGE)
        _pack(
            self._page(page).data.cast("B"),
            place * RECORD.itemsize,
            request.arrival_s,
            request.first_scheduled_s,
            request.first_token_s,
            request.end_s,
            request.preemptions,
            request.cached_tokens,
        )

    def _page(self, number: int) -> NDArray[Any]:
        """Records of so many requests; those that nothing has come of yet are there as well."""
        while self._shelf.pages <= number:
            self._shelf.append(np.repeat(_NOTHING, PAGE))
        return self._shelf.page(number)

    def pieces(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """What came of all, in order, some thousand at once: the number of the first, and their records."""
        if len(self):
            self._page((len(self) - 1) // PAGE)
        for number, page in enumerate(self._shelf):
            yield number * PAGE, page[: len(self) - number * PAGE]

    def _column(self, name: str) -> NDArray[Any]:
        pieces = [page[name] for _, page in self.settle().pieces()]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=RECORD[name])

    @property
    def arrival_s(self) -> Floats:
        return self._column("arrival_s")

    @property
    def first_scheduled_s(self) -> Floats:
        return self._column("first_scheduled_s")

    @property
    def first_token_s(self) -> Floats:
        return self._column("first_token_s")

    @property
    def end_s(self) -> Floats:
        return self._column("end_s")

    @property
    def preemptions(self) -> Ints:
        return self._column("preemptions")

    @property
    def cached_tokens(self) -> Ints:
        return self._column("cached_tokens")

    def _request(self, number: int) -> Request:
        asked, shared = self.asked, self.asked.shared
        return Request(
            number,
            float("nan"),
            int(asked.prompt_tokens[number]),
            int(asked.output_tokens[number]),
            shared.blocks(number),
            shared.block_tokens,
            shared.conversation(number),
            asked.ignore_eos,
        )

    def __len__(self) -> int:
        return len(self.asked)

    def __iter__(self) -> Iterator[Request]:
        return (self[number] for number in range(len(self)))

    @overload
    def __getitem__(self, place: int) -> Request: ...
    @overload
    def __getitem__(self, place: slice) -> list[Request]: ...
    def __getitem__(self, place: int | slice) -> Request | list[Request]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        number = place % len(self)
        found = self._under_way.get(number)
        if found is None:
            found = self._request(number)
            page, place = divmod(number, PAGE)
            kept = self._page(page)[place]
            found.arrival_s, found.first_scheduled_s = float(kept["arrival_s"]), float(kept["first_scheduled_s"])
            found.first_token_s, found.end_s = float(kept["first_token_s"]), float(kept["end_s"])
            found.preemptions, found.cached_tokens = int(kept["preemptions"]), int(kept["cached_tokens"])
        return found
