"""Replicas of a model behind a router: the simplest place where requests are served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import simpy

from .requests import Request
from .routers import ROUTERS
from .work import StepCost

if TYPE_CHECKING:
    from .engine import Engine

#: What is called with a request when something has happened to it.
Notice = Callable[[Request], None]


class Serves(Protocol):
    """What a replica is to whom it serves: see :class:`tspsim.serving.replica.Replica`."""

    log: Any

    @property
    def waiting(self) -> int: ...

    @property
    def running(self) -> int: ...

    @property
    def tokens_ahead(self) -> int: ...

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

    def build(self, env: simpy.Environment, on_first_token: Notice, on_end: Notice, every_step: bool) -> Serves:
        """One of them, on a clock."""
        from .replica import Replica

        return Replica(
            env,
            self.engine,
            self.cost,
            lanes=self.lanes,
            on_first_token=on_first_token,
            on_end=on_end,
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
        What its replicas are called by, with their number, where there are several pools.

    Attributes
    ----------
    replicas
        Once it is open.
    homes
        Request's number → number of the replica it was last sent to.
    """

    def __init__(self, members: Sequence[Members], router: str = "round_robin", name: str = "") -> None:
        self.members = tuple(members)
        self.router = ROUTERS.get(router)
        self.name = name
        self.replicas: list[Serves] = []
        self.homes: dict[int, int] = {}

    def open(self, env: simpy.Environment, on_end: Notice, *, every_step: bool = False) -> None:
        """Put its replicas on a clock; ``on_end`` is told of every request that has ended."""
        for each in self.members:
            self.replicas += [each.build(env, _nothing, on_end, every_step) for _ in range(each.replicas)]
        self._route = self.router.open(self.replicas)

    def take(self, request: Request) -> None:
        """A request has come: it goes to the replica of the router's choice."""
        self.send(request)

    def send(self, request: Request, *, computed: int = 0) -> int:
        """The same for one of whose prompt ``computed`` tokens are known; returns the replica's number."""
        number = self._route(request) if len(self.replicas) > 1 else 0
        self.homes[request.number] = number
        self.replicas[number].submit(request, computed=computed)
        return number

    @property
    def transfers(self) -> tuple[()]:
        """Nothing goes between its replicas."""
        return ()

    @property
    def named_replicas(self) -> list[tuple[str, Serves]]:
        """All, with their names."""
        name = f"{self.name} " if self.name else "replica "
        return [(f"{name}{number}", replica) for number, replica in enumerate(self.replicas)]


def _nothing(_request: Request) -> None:
    """Nobody waits for it."""
