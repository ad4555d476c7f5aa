"""Replicas of a model behind a router."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import simpy

from .engine import Engine
from .log import StepLog
from .replica import ChunkNotice, Replica
from .requests import Request
from .routers import ROUTERS, Backend
from .transfers import CacheTransfer
from .work import StepCost

#: Called with a request on an event.
Notice = Callable[[Request], None]


class Serves(Backend, Protocol):
    """A replica as its pool sees it: see :class:`tspsim.serving.replica.Replica`."""

    @property
    def log(self) -> StepLog: ...

    def submit(self, request: Request, *, computed: int = 0, behind: int = 0) -> None: ...


@dataclass(frozen=True)
class Members:
    """Equal replicas: an engine, the cost of its steps, and their number."""

    engine: Engine
    cost: StepCost
    replicas: int = 1
    #: Attention replicas per replica that step together, each with its own queue and cache.
    dp_size: int = 1
    #: Engines per replica, with so many attention replicas each, that begin every step together.
    engines: int = 1

    def build(
        self,
        env: simpy.Environment,
        on_end: Notice,
        *,
        every_step: bool = False,
        on_chunk: ChunkNotice | None = None,
        on_first_token: Notice | None = None,
    ) -> Serves:
        """One replica on a clock."""
        return Replica(
            env,
            self.engine,
            self.cost,
            dp_size=self.dp_size,
            engines=self.engines,
            on_first_token=on_first_token,
            on_end=on_end,
            on_chunk=on_chunk,
            every_step=every_step,
        )


class RoutedReplica:
    """A replica as its pool's router sees it: with requests that it was chosen for and that have not arrived, because a
    prompt is read elsewhere, or a cache is moving."""

    def __init__(self, replica: Serves) -> None:
        self._replica = replica
        self._notices: tuple[Callable[[], None], ...] = ()
        #: Number of such a request → tokens that it will have ahead; and their sum.
        self._coming: dict[int, int] = {}
        self._tokens = 0

    def chosen(self, request: Request, computed: int) -> None:
        """It was chosen for a request with ``computed`` transferred tokens."""
        tokens = request.prompt_tokens - min(computed, request.prompt_tokens - 1) + request.output_tokens
        self._coming[request.number] = tokens
        self._tokens += tokens
        self._tell()

    def come(self, request: Request) -> None:
        """A request has arrived, if it was pending."""
        if request.number in self._coming:
            self._tokens -= self._coming.pop(request.number)
            self._tell()

    def _tell(self) -> None:
        for notice in self._notices:
            notice()

    @property
    def waiting(self) -> int:
        return self._replica.waiting + len(self._coming)

    @property
    def running(self) -> int:
        return self._replica.running

    @property
    def tokens_ahead(self) -> int:
        return self._replica.tokens_ahead + self._tokens

    @property
    def now_s(self) -> float:
        return self._replica.now_s

    def ahead_at(self, time_s: float) -> int:
        return self._replica.ahead_at(time_s) + self._tokens

    def watch(self, notice: Callable[[], None]) -> None:
        self._notices += (notice,)
        self._replica.watch(notice)


class ReplicaPool:
    """Replicas behind one router, mostly equal.

    Parameters
    ----------
    members
        Its replicas, numbered in this order.
    router
        A registered name.
    name
        Name of its replicas, followed by a number.
    """

    #: Called with every request on its first token; None: not called.
    on_first_token: Notice | None = None

    def __init__(self, members: Sequence[Members], router: str = "round_robin", name: str = "replica") -> None:
        self.members = tuple(members)
        self.router = ROUTERS.get(router)
        self.name = name
        #: The replicas, once it is open.
        self.replicas: list[Serves] = []
        #: Number of a request → replica it was last sent to; −1 before.
        self.homes = array("i")

    def open(
        self, env: simpy.Environment, on_end: Notice, *, every_step: bool = False, on_chunk: ChunkNotice | None = None
    ) -> None:
        """Puts its replicas on a clock. ``on_end`` is called with every ended request, ``on_chunk`` with every chunk of
        a prompt when its step begins."""
        for member in self.members:
            for _ in range(member.replicas):
                replica = member.build(
                    env, on_end, every_step=every_step, on_chunk=on_chunk, on_first_token=self.on_first_token
                )
                self.replicas.append(replica)
        self._sent = [RoutedReplica(replica) for replica in self.replicas]
        self._route = self.router.open(self._sent)

    def take(self, request: Request) -> None:
        """A request arrives: it goes to the replica of the router's choice."""
        self.send(request)

    def send(self, request: Request) -> int:
        """The same; returns the replica's number."""
        number = self.choose(request)
        self.give(number, request)
        return number

    def choose(self, request: Request, *, computed: int = 0) -> int:
        """The replica that the router chooses; until the request arrives, it counts there with the tokens of its prompt
        that are not ``computed``."""
        if len(self.replicas) == 1:
            return 0
        number = self._route(request)
        self._sent[number].chosen(request, computed)
        return number

    def give(self, number: int, request: Request, *, computed: int = 0, behind: int = 0) -> None:
        """Gives a request to a replica, with ``computed`` transferred tokens of its prompt, the first ``behind`` of
        which its own cache had."""
        missing = request.number + 1 - len(self.homes)
        if missing > 0:
            self.homes.extend([-1] * missing)
        self.homes[request.number] = number
        self._sent[number].come(request)
        self.replicas[number].submit(request, computed=computed, behind=behind)

    @property
    def transfers(self) -> Sequence[CacheTransfer]:
        """Empty: nothing moves between its replicas."""
        return ()

    @property
    def named_replicas(self) -> list[tuple[str, Serves]]:
        """All replicas with their names."""
        return [(self.name_of(number), replica) for number, replica in enumerate(self.replicas)]

    def name_of(self, number: int) -> str:
        """Name of a replica."""
        return f"{self.name} {number}"
