"""What a router is: it sends each request to one of several replicas, and knows of them what a load balancer knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ...registry import Registry
from ..requests import Request


class Backend(Protocol):
    """What a router may look at: how many requests a replica has, and the tokens they still have to compute.

    Attributes
    ----------
    waiting, running
        Requests that are not admitted, and those that are.
    tokens_ahead
        Tokens to be computed for them, now.
    now_s
        What the clock shows.
    """

    @property
    def waiting(self) -> int: ...

    @property
    def running(self) -> int: ...

    @property
    def tokens_ahead(self) -> int: ...

    @property
    def now_s(self) -> float: ...

    def ahead_at(self, time_s: float) -> int:
        """What ``tokens_ahead`` has fallen to at a time to come, if whoever watches is not told before."""
        ...

    def watch(self, notice: Callable[[], None]) -> None:
        """Call ``notice`` whenever its requests, or what they have ahead, may have changed otherwise than by steps that
        go on as they were planned."""
        ...


#: The number of the replica that a request goes to.
Route = Callable[[Request], int]


class Router(Protocol):
    """A way to choose; it holds no state itself, so that one object serves every run.

    Attributes
    ----------
    name
        What scenarios call it.
    summary
        In a few words, for lists.
    """

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    def open(self, replicas: Sequence[Backend]) -> Route:
        """Begin to route over some replicas: what is learnt on the way lives in what is returned."""
        ...


ROUTERS: Registry[Router] = Registry("router", "tspsim.routers", Router)
