"""Clients on a clock: they send requests at given times, or when earlier ones end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import simpy

from ...traffic import DrawnRequests, Needs
from ..clock import after
from ..requests import Request
from .request_table import RequestTable
from .server_process import NO_PROCESS, ProcessTimes, ServerProcess
from .workers import Workers

Send = Callable[[Request], None]


class Clients:
    """The source of a run's requests.

    Clients send conversations, mostly of one turn. In a closed loop the next begins when one ends; otherwise
    each begins at its time, or when the limit on conversations under way allows. Warm-up conversations that end
    before the others begin are a run of their own on the same clock.

    Parameters
    ----------
    drawn
        The requests to send.
    front_end_s
        Seconds from a client's send to the engine, plus from a token to the client. Both
        are charged before the engine, so that all latencies of a client include them.
    times
        Of the server's process, which reads all requests and streams all answers.
    """

    def __init__(self, drawn: DrawnRequests, front_end_s: float = 0.0, times: ProcessTimes = NO_PROCESS) -> None:
        self.table = RequestTable(drawn)
        self._drawn, self._front_end_s, self._times = drawn, front_end_s, times
        self._conversations = drawn.conversations
        self._first = drawn.conversations_before(drawn.warm_up) if drawn.pauses else 0
        self._backlog: deque[int] = deque()
        self._under_way = self._coming = 0
        #: Conversation whose requests wait for several others → number of others that each still waits for; −1: it has
        #: ended.
        self._open: dict[int, list[int]] = {}

    @property
    def requests(self) -> RequestTable:
        """All requests to come, in order of their numbers."""
        return self.table

    def begin(self, env: simpy.Environment, send: Send) -> None:
        """Sends the first requests, and schedules those with known times."""
        self._env, self._send = env, send
        self._process = ServerProcess(env, self._times)
        self._workers = Workers(env, self._drawn.tool_workers) if self._drawn.tools else None
        self._start(0, self._first or self._conversations)

    def ended(self, request: Request) -> None:
        """A request has been answered: the next turn comes, or the next conversation."""
        self.table.close(request)
        self._process.answered(request)
        if self._drawn.follows is not None:
            if self._goes_on(request.number, self._drawn.follows):
                return
        elif (request.number + 1) % self._drawn.turns and request.number + 1 < len(self._drawn):
            self._think(request.number + 1)
            return
        self._under_way -= 1
        if self._backlog:
            self._converse(self._backlog.popleft())
        elif self._closed and self._next < self._until:
            self._next += 1
            self._converse(self._next - 1)
        elif not self._under_way and not self._coming and self._next == self._until < self._conversations:
            self._start(self._until, self._conversations)

    def _goes_on(self, number: int, follows: Sequence[Needs]) -> bool:
        """A request of a conversation has ended: sends those whose last need it was; returns whether some are open."""
        conversation = self._drawn.conversation_of(number)
        first = self._drawn.first_of(conversation)
        ended, needs = number - first, follows[conversation]
        open_ = self._open.setdefault(conversation, [len(needed) for needed in needs])
        open_[ended] = -1
        for position, needed in enumerate(needs):
            if ended in needed:
                open_[position] -= 1
                if not open_[position]:
                    self._think(first + position)
        if any(missing >= 0 for missing in open_):
            return True
        del self._open[conversation]
        return False

    def _think(self, following: int) -> None:
        """The pause between a turn and the next: think time, or a tool call that waits for a worker."""
        seconds = float(self._drawn.think_s[following])
        if self._workers is None or (self._drawn.follows is not None and not seconds):
            after(self._env, seconds, lambda: self._turn(following))
            return
        called_s = self._env.now

        def begun() -> None:
            self.table.tool_wait_s[following] = self._env.now - called_s

        self._workers.run(seconds, begun, lambda: self._turn(following))

    @property
    def _closed(self) -> bool:
        return self._drawn.arrival_s is None

    def _start(self, first: int, until: int) -> None:
        """Conversations ``first`` up to ``until``, from now on."""
        self._next, self._until, self._begin_s = first, until, self._env.now
        if not self._closed:
            self._arrive()
            return
        most = until - first if self._drawn.most is None else min(self._drawn.most, until - first)
        self._next += most
        if self._drawn.spacing_s > 0.0:
            self._coming = most
            for number in range(first, first + most):
                after(self._env, (number - first) * self._drawn.spacing_s, self._come(number))
            return
        for number in range(first, first + most):
            self._converse(number)

    def _come(self, number: int) -> Callable[[], None]:
        """A client that begins later."""

        def begin() -> None:
            self._coming -= 1
            self._converse(number)

        return begin

    def _arrive(self) -> None:
        """Begins all conversations that are due, and schedules the next."""
        times, env = self._drawn.arrival_s, self._env
        assert times is not None
        zero = self._begin_s - times[self._first if self._next >= self._first else 0]
        while self._next < self._until:
            wait_s = float(zero + times[self._next]) - env.now
            if wait_s > 0.0:
                after(self._env, wait_s, self._arrive)
                return
            self._next += 1
            if self._drawn.most is None or self._under_way < self._drawn.most:
                self._converse(self._next - 1)
            else:
                self._backlog.append(self._next - 1)

    def _converse(self, conversation: int) -> None:
        self._under_way += 1
        first, follows = self._drawn.first_of(conversation), self._drawn.follows
        for position, needed in enumerate(follows[conversation] if follows is not None else ((),)):
            if not needed:
                self._call(first + position)

    def _call(self, number: int) -> None:
        """A first request of a conversation, after its tool call if it has one."""
        if self._drawn.follows is not None and self._drawn.think_s[number]:
            self._think(number)
        else:
            self._turn(number)

    def _turn(self, number: int) -> None:
        request = self.table.open(number, self._env.now)
        self._process.read(request, self._front_end_s, lambda: self._send(request))
