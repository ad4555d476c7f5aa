"""Replicas of a model behind a router: the simplest place where requests are served."""

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
from .transfers import Transfer
from .work import StepCost

#: What is called with a request when something has happened to it.
Notice = Callable[[Request], None]


class Serves(Backend, Protocol):
    """What a replica is to whom it serves: see :class:`tspsim.serving.replica.Replica`."""

    @property
    def log(self) -> StepLog: ...

    def submit(self, request: Request, *, computed: int = 0) -> None: ...


@dataclass(frozen=True)
class Members:
    """Equal replicas: an engine, what its steps cost, and how many there are.

    Attributes
    ----------
    lanes
        Attention replicas of each that step together, each with its own queue and cache.
    """

    engine: Engine
    cost: StepCost
    replicas: int = 1
    lanes: int = 1

    def build(
        self,
        env: simpy.Environment,
        on_end: Notice,
        *,
        every_step: bool = False,
        on_chunk: ChunkNotice | None = None,
        on_first_token: Notice | None = None,
    ) -> Serves:
        """One of them, on a clock."""
        return Replica(
            env,
            self.engine,
            self.cost,
            lanes=self.lanes,
            on_first_token=on_first_token,
            on_end=on_end,
            on_chunk=on_chunk,
            every_step=every_step,
        )


class Pool:
    """Replicas behind one router, mostly equal ones.

    Parameters
    ----------
    members
        What stands in it; replicas are numbered through in this order.
    router
        A registered name.
    name
        What its replicas are called by, with their number.

    Attributes
    ----------
    replicas
        Once it is open.
    homes
        By request's number, that of the replica it was last sent to; −1 before.
    """

    #: Told of every request whose first token is out; None: nobody is.
    on_first_token: Notice | None = None

    def __init__(self, members: Sequence[Members], router: str = "round_robin", name: str = "replica") -> None:
        self.members = tuple(members)
        self.router = ROUTERS.get(router)
        self.name = name
        self.replicas: list[Serves] = []
        self.homes = array("i")

    def open(
        self,
        env: simpy.Environment,
        on_end: Notice,
        *,
        every_step: bool = False,
        on_chunk: ChunkNotice | None = None,
    ) -> None:
        """Put its replicas on a clock; ``on_end`` is told of every request that has ended, ``on_chunk`` of every piece
        of a prompt when its step begins."""
        for each in self.members:
            for _ in range(each.replicas):
                made = each.build(
                    env, on_end, every_step=every_step, on_chunk=on_chunk, on_first_token=self.on_first_token
                )
                self.replicas.append(made)
        self._route = self.router.open(self.replicas)

    def take(self, request: Request) -> None:
        """A request has come: it goes to the replica of the router's choice."""
        self.send(request)

    def send(self, request: Request) -> int:
        """The same; returns the replica's number."""
        number = self.choose(request)
        self.give(number, request)
        return number

    def choose(self, request: Request) -> int:
        """The replica that the router sends it to."""
        return self._route(request) if len(self.replicas) > 1 else 0

    def give(self, number: int, request: Request, *, computed: int = 0) -> None:
        """To that replica, which knows ``computed`` tokens of its prompt already."""
        missing = request.number + 1 - len(self.homes)
        if missing > 0:
            self.homes.extend([-1] * missing)
        self.homes[request.number] = number
        self.replicas[number].submit(request, computed=computed)

    @property
    def transfers(self) -> Sequence[Transfer]:
        """Nothing goes between its replicas."""
        return ()

    @property
    def named_replicas(self) -> list[tuple[str, Serves]]:
        """All, with their names."""
        return [(self.name_of(number), replica) for number, replica in enumerate(self.replicas)]

    def name_of(self, number: int) -> str:
        """What a replica is called."""
        return f"{self.name} {number}"
