"""Small services for tests: sources whose requests are written out, and replicas that are a single server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from tspsim.serving.replicas import Members
from tspsim.serving.requests import Request


class Listed:
    """Requests at stated times; a conversation's next turn comes when the one before has ended."""

    def __init__(self, requests: Iterable[Request]) -> None:
        self.requests = list(requests)

    def begin(self, env: simpy.Environment, send: Callable[[Request], None]) -> None:
        for request in self.requests:
            due = env.timeout(request.arrival_s - env.now)
            due.callbacks.append(lambda _event, request=request: send(request))

    def ended(self, request: Request) -> None:
        pass


class Closed:
    """So many requests under way at any time, all sent at the beginning or when another ends."""

    def __init__(self, requests: Sequence[Request], concurrency: int) -> None:
        self.requests = list(requests)
        self._concurrency = concurrency

    def begin(self, env: simpy.Environment, send: Callable[[Request], None]) -> None:
        self._env, self._send = env, send
        self._left = deque(self.requests)
        for _ in range(min(self._concurrency, len(self.requests))):
            env.timeout(0.0).callbacks.append(lambda _event: self._next())

    def ended(self, request: Request) -> None:
        self._next()

    def _next(self) -> None:
        if self._left:
            request = self._left.popleft()
            request.arrival_s = self._env.now
            self._send(request)


class OneServer:
    """A replica that does one request after the other, each in ``seconds(request)``."""

    def __init__(self, env: simpy.Environment, seconds: Callable[[Request], float], on_end: Any, on_chunk: Any) -> None:
        self.env, self.seconds, self.on_end, self.on_chunk = env, seconds, on_end, on_chunk
        self.queue: deque[Request] = deque()
        self.busy = False
        self.log: list[tuple[int, float]] = []
        self.notices: list[Callable[[], None]] = []

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def running(self) -> int:
        return int(self.busy)

    @property
    def tokens_ahead(self) -> int:
        return sum(request.prompt_tokens + request.output_tokens for request in self.queue)

    @property
    def now_s(self) -> float:
        return self.env.now

    def ahead_at(self, time_s: float) -> int:
        return self.tokens_ahead

    def watch(self, notice: Callable[[], None]) -> None:
        self.notices.append(notice)

    def _tell(self) -> None:
        for notice in self.notices:
            notice()

    def submit(self, request: Request, *, computed: int = 0, behind: int = 0) -> None:
        self.queue.append(request)
        if not self.busy:
            self._begin()
        self._tell()

    def _begin(self) -> None:
        self.busy = True
        request = self.queue.popleft()
        request.first_scheduled_s = self.env.now
        due = self.env.timeout(self.seconds(request))
        if self.on_chunk is not None:
            self.on_chunk(request, 0, request.prompt_tokens, self.env.now + self.seconds(request))
        due.callbacks.append(lambda _event: self._end(request))

    def _end(self, request: Request) -> None:
        request.first_token_s = request.end_s = self.env.now
        self.log.append((request.number, self.env.now))
        self.busy = False
        if self.queue:
            self._begin()
        self._tell()
        self.on_end(request)


@dataclass(frozen=True)
class Servers(Members):
    """Members of a pool that are single servers."""

    seconds: Callable[[Request], float] = lambda request: float(request.output_tokens)

    def build(self, env: simpy.Environment, on_end: Any, **told: Any) -> OneServer:
        return OneServer(env, self.seconds, on_end, told.get("on_chunk"))


def servers(count: int, seconds: Callable[[Request], float] | None = None) -> Servers:
    made = {"seconds": seconds} if seconds else {}
    return Servers(engine=None, cost=None, replicas=count, **made)  # type: ignore[arg-type]
