"""All requests of a run, as columns: objects exist only while a request is under way, so that memory grows by 64 bytes
a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from ...traffic import Asked
from ..requests import Request


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
        self.arrival_s = np.full(count, np.nan)
        self.first_scheduled_s = np.full(count, np.nan)
        self.first_token_s = np.full(count, np.nan)
        self.end_s = np.full(count, np.nan)
        self.preemptions = np.zeros(count, dtype=np.int32)
        self.cached_tokens = np.zeros(count, dtype=np.int64)
        self.tool_wait_s = np.zeros(count)
        self._under_way: dict[int, Request] = {}

    def open(self, number: int, arrival_s: float) -> Request:
        """A request is sent."""
        request = self._request(number)
        request.arrival_s = self.arrival_s[number] = arrival_s
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
        number = request.number
        self.first_scheduled_s[number] = request.first_scheduled_s
        self.first_token_s[number] = request.first_token_s
        self.end_s[number] = request.end_s
        self.preemptions[number] = request.preemptions
        self.cached_tokens[number] = request.cached_tokens

    def _request(self, number: int) -> Request:
        asked, shared = self.asked, self.asked.shared
        return Request(
            number,
            float(self.arrival_s[number]),
            int(asked.prompt_tokens[number]),
            int(asked.output_tokens[number]),
            shared.blocks(number),
            shared.block_tokens,
            shared.conversation(number),
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
            found.first_scheduled_s = float(self.first_scheduled_s[number])
            found.first_token_s = float(self.first_token_s[number])
            found.end_s = float(self.end_s[number])
            found.preemptions = int(self.preemptions[number])
            found.cached_tokens = int(self.cached_tokens[number])
        return found
