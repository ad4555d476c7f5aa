"""A service on a clock: requests come from a source, somebody serves them, and who asked is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nextafter
from typing import Protocol

import simpy
from simpy.core import EmptySchedule

from ..base.collector import no_collection
from ..base.errors import TspsimError
from .log import StepLog
from .replicas import Notice, Serves
from .requests import Request
from .transfers import CacheTransfer


class Source(Protocol):
    """Where requests come from."""

    @property
    def requests(self) -> Sequence[Request]:
        """All that will come, in order of their numbers."""

    def begin(self, env: simpy.Environment, send: Notice) -> None:
        """Arrange for what comes at known times; ``send`` is called when a request comes."""

    def ended(self, request: Request) -> None:
        """A request has been answered: the next of a closed loop comes, or the next turn of a conversation."""


class Dispatcher(Protocol):
    """Who serves requests: one pool (:class:`~tspsim.serving.replicas.ReplicaPool`), or several that work together."""

    def open(self, env: simpy.Environment, on_end: Notice, *, every_step: bool = False) -> None:
        """Put replicas on a clock; ``on_end`` is told of every request whose last token is out."""

    def take(self, request: Request) -> None:
        """A request has come."""

    @property
    def named_replicas(self) -> Sequence[tuple[str, Serves]]:
        """All its replicas, with their names."""

    @property
    def transfers(self) -> Sequence[CacheTransfer]:
        """What went between them, in the order in which it had come."""


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    #: All of the source, in order; the times of those that did not end are not numbers.
    requests: Sequence[Request]
    #: Of every replica: its runs of steps.
    logs: tuple[StepLog, ...]
    #: Caches that went between replicas and tiers.
    transfers: tuple[CacheTransfer, ...] = ()
    #: What every replica is called.
    names: tuple[str, ...] = ()
    #: Somebody stopped it: what had ended by then is kept.
    interrupted: bool = False


class Service:
    """Requests of a source, served at a desk.

    Parameters
    ----------
    source
        Where requests come from.
    desk
        Who serves them.
    env
        The clock: a new one, or that of an engine whose links are shared (:attr:`tspsim.engine.core.Engine.env`).
    every_step
        Replicas take every step by itself instead of runs of equal ones at once.
    until_s
        Time on the clock after which nothing is looked at; None: until all requests have been answered.
    progress
        Called with the share of requests that have ended, a hundred times at most.

    Examples
    --------
    >>> Service(source, Pool([Members(engine, cost, replicas=2)], "least_load")).run()      # doctest: +SKIP
    """

    def __init__(
        self,
        source: Source,
        desk: Dispatcher,
        *,
        env: simpy.Environment | None = None,
        every_step: bool = False,
        until_s: float | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.source = source
        self.desk = desk
        self.env: simpy.Environment = env if env is not None else simpy.Environment()
        self.until_s = until_s
        self.progress = progress
        self._every_step = every_step
        self._ended = 0

    def run(self) -> Outcome:
        """Serve all; an interrupt (Ctrl-C) ends the run, and what had been answered by then is kept.

        Raises
        ------
        TspsimError
            Nothing is left to happen while requests wait: a scheduler is wrong (exit code 1).
        """
        self.desk.open(self.env, self._end, every_step=self._every_step)
        self.source.begin(self.env, self.desk.take)
        if self.until_s is not None:
            # Behind all that is looked at, so that nobody goes on beyond.
            self.env.timeout(nextafter(self.until_s, inf) - self.env.now)
        interrupted = False
        with no_collection():
            try:
                self._serve()
            except KeyboardInterrupt:
                interrupted = True
        replicas = self.desk.named_replicas
        return Outcome(
            self.source.requests,
            tuple(replica.log for _, replica in replicas),
            tuple(self.desk.transfers),
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
            raise TspsimError(f"nothing is left to happen, but {left} of {every} requests have no answer") from None

    def _end(self, request: Request) -> None:
        self._ended += 1
        self.source.ended(request)
        if self.progress is not None:
            every = len(self.source.requests)
            if self._ended * 100 // every != (self._ended - 1) * 100 // every:
                self.progress(self._ended / every)
