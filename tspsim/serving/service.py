"""A service on a clock: requests come from a source, a dispatcher serves them, and the source learns of their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nextafter
from typing import Protocol

import simpy
from simpy.core import EmptySchedule

from ..base.errors import TspsimError
from ..base.quick import no_collection
from .log import StepLog
from .replicas import Notice, ReplicaBackend
from .requests import Request
from .transfers import CacheTransfer


class Source(Protocol):
    """The source of requests."""

    @property
    def requests(self) -> Sequence[Request]:
        """All requests to come, in order of their numbers."""

    def begin(self, env: simpy.Environment, send: Notice) -> None:
        """Schedules requests with known times; ``send`` is called when a request comes."""

    def ended(self, request: Request) -> None:
        """A request has been answered: the next of a closed loop comes, or the next turn of a conversation."""


class Dispatcher(Protocol):
    """A server of requests: one pool (:class:`~tspsim.serving.replicas.ReplicaPool`), or several that work together."""

    def open(self, env: simpy.Environment, on_end: Notice, *, every_step: bool = False) -> None:
        """Puts replicas on a clock; ``on_end`` is called with every request on its last token."""

    def take(self, request: Request) -> None:
        """A request has come."""

    @property
    def named_replicas(self) -> Sequence[tuple[str, ReplicaBackend]]:
        """All its replicas with their names."""

    @property
    def transfers(self) -> Sequence[CacheTransfer]:
        """Transfers between them, in order of arrival."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    #: All requests of the source, in order; times of unfinished ones are nan.
    requests: Sequence[Request]
    #: Log of every replica.
    logs: tuple[StepLog, ...]
    #: Caches that moved between replicas and tiers.
    transfers: tuple[CacheTransfer, ...] = ()
    #: Names of the replicas.
    names: tuple[str, ...] = ()
    #: Whether it was interrupted; requests finished by then are kept.
    interrupted: bool = False


class Service:
    """Requests of a source, served by a dispatcher.

    Parameters
    ----------
    source
        The source of requests.
    dispatcher
        The server of requests.
    env
        The clock: a new one, or that of an engine with shared links (:attr:`tspsim.engine.core.Engine.env`).
    every_step
        Replicas simulate every step by itself, not runs of equal ones.
    until_s
        End time on the clock; None: until all requests have been answered.
    progress
        Called with the share of ended requests, at most a hundred times.

    Examples
    --------
    >>> Service(source, Pool([Members(engine, cost, replicas=2)], "least_load")).run()      # doctest: +SKIP
    """

    def __init__(
        self,
        source: Source,
        dispatcher: Dispatcher,
        *,
        env: simpy.Environment | None = None,
        every_step: bool = False,
        until_s: float | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.source = source
        self.dispatcher = dispatcher
        self.env: simpy.Environment = env if env is not None else simpy.Environment()
        self.until_s = until_s
        self.progress = progress
        self._every_step = every_step
        self._ended = 0

    def run(self) -> Outcome:
        """Serves all requests; an interrupt (Ctrl-C) ends the run, and finished requests are kept.

        Raises
        ------
        TspsimError
            No event is left while requests wait: a scheduler is wrong (exit code 1).
        """
        self.dispatcher.open(self.env, self._end, every_step=self._every_step)
        self.source.begin(self.env, self.dispatcher.take)
        if self.until_s is not None:
            # After the end time, so that no replica continues beyond it.
            self.env.timeout(nextafter(self.until_s, inf) - self.env.now)
        interrupted = False
        with no_collection():
            try:
                self._serve()
            except KeyboardInterrupt:
                interrupted = True
        replicas = self.dispatcher.named_replicas
        return Outcome(
            self.source.requests,
            tuple(replica.log for _, replica in replicas),
            tuple(self.dispatcher.transfers),
            tuple(name for name, _ in replicas),
            interrupted,
        )

    def _serve(self) -> None:
        """Events one after the other, until every request has been answered or the time is over."""
        env, every = self.env, len(self.source.requests)
        step, until_s = env.step, self.until_s
        try:
            while self._ended < every and (until_s is None or env.peek() <= until_s):
                step()
        except EmptySchedule:
            left = every - self._ended
            raise TspsimError(f"no event is left, but {left} of {every} requests have no answer") from None

    def _end(self, request: Request) -> None:
        self._ended += 1
        self.source.ended(request)
        if self.progress is not None:
            every = len(self.source.requests)
            if self._ended * 100 // every != (self._ended - 1) * 100 // every:
                self.progress(self._ended / every)
