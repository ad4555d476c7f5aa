"""What a router is: it sends each request to one of several replicas, and knows of them what a load balancer knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ...base.registry import Registry
from ..requests import Request


class Backend(Protocol):
    """What a router may look at: how many requests a replica has, and the tokens they still have to compute."""

    @property
    def waiting(self) -> int:
        """Requests that are not admitted."""

    @property
    def running(self) -> int:
        """Requests that are."""

    @property
    def tokens_ahead(self) -> int:
        """Tokens to be computed for them, now."""

    @property
    def now_s(self) -> float:
        """What the clock shows."""

    def ahead_at(self, time_s: float) -> int:
        """What ``tokens_ahead`` has fallen to at a time to come, if whoever watches is not told before."""

    def watch(self, notice: Callable[[], None]) -> None:
        """Call ``notice`` whenever its requests, or what they have ahead, may have changed otherwise than by steps that
        go on as they were planned."""


#: The number of the replica that a request goes to.
Route = Callable[[Request], int]


class Router(Protocol):
    """A way to choose; it holds no state itself, so that one object serves every run."""

    @property
    def name(self) -> str:
        """What scenarios call it."""

    @property
    def summary(self) -> str:
        """In a few words, for lists."""

    def open(self, replicas: Sequence[Backend]) -> Route:
        """Begin to route over some replicas: what is learnt on the way lives in what is returned."""


ROUTERS: Registry[Router] = Registry("router", "tspsim.routers", Router)
