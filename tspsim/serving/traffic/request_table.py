"""All requests of a run as records: objects exist only while a request is under way, and results of ended ones lie on
spill pages, so that memory grows only by the requests' lengths: 16 bytes per request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from struct import Struct
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ...traffic import DrawnRequests
from ...traffic.kind import Floats, Ints
from ..requests import Request
from ..spill_pages import PAGE, SpillPages

#: The fields of a :class:`Request` that are its results, as they lie on pages.
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
assert RECORD.names
_results = attrgetter(*RECORD.names)
_NOTHING = np.array([(np.nan, np.nan, np.nan, np.nan, 0, 0)], dtype=RECORD)


class RequestTable(Sequence[Request]):
    """Requests in order of their numbers, with their results.

    Attributes
    ----------
    drawn
        Their lengths and shared blocks.
    arrival_s, first_scheduled_s, first_token_s, end_s
        Times of every request in seconds; nan before the event.
    preemptions, cached_tokens
        Counts of every request.
    tool_wait_s
        Wait of every turn's tool call for a worker.
    """

    def __init__(self, drawn: DrawnRequests) -> None:
        self.drawn = drawn
        count = len(drawn)
        self.tool_wait_s = np.zeros(count)
        self._spilled = SpillPages(RECORD)
        self._under_way: dict[int, Request] = {}

    def open(self, number: int, arrival_s: float) -> Request:
        """A request is sent."""
        request = self._request(number)
        request.arrival_s = arrival_s
        self._under_way[number] = request
        return request

    def close(self, request: Request) -> None:
        """A request has ended: its results are stored."""
        self._keep(request)
        del self._under_way[request.number]

    def settle(self) -> RequestTable:
        """Stores the results so far of unfinished requests."""
        for request in self._under_way.values():
            self._keep(request)
        return self

    def _keep(self, request: Request) -> None:
        page, place = divmod(request.number, PAGE)
        _pack(
            self._page(page).data.cast("B"),
            place * RECORD.itemsize,
            *_results(request),
        )

    def _page(self, number: int) -> NDArray[Any]:
        """The page of a number; pages without results are created."""
        while self._spilled.pages <= number:
            self._spilled.append(np.repeat(_NOTHING, PAGE))
        return self._spilled.page(number)

    def pieces(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """All results in order, some thousand at a time: number of the first, and their records."""
        if len(self):
            self._page((len(self) - 1) // PAGE)
        for number, page in enumerate(self._spilled):
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
        drawn, shared = self.drawn, self.drawn.shared
        return Request(
            number,
            float("nan"),
            int(drawn.prompt_tokens[number]),
            int(drawn.output_tokens[number]),
            shared.blocks(number),
            shared.block_tokens,
            shared.conversation(number),
            drawn.ignore_eos,
        )

    def __len__(self) -> int:
        return len(self.drawn)

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
        request = self._under_way.get(number)
        if request is None:
            request = self._request(number)
            page, place = divmod(number, PAGE)
            kept = self._page(page)[place]
            request.arrival_s, request.first_scheduled_s = float(kept["arrival_s"]), float(kept["first_scheduled_s"])
            request.first_token_s, request.end_s = float(kept["first_token_s"]), float(kept["end_s"])
            request.preemptions, request.cached_tokens = int(kept["preemptions"]), int(kept["cached_tokens"])
        return request
