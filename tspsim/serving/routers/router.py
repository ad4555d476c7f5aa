"""What a router is: it sends each request to one of several replicas, and knows of them what a load balancer knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ...registry import Registry
from ..requests import Request


class Backend(Protocol):
    """What a router may look at: how many requests a replica has, and the tokens they still have to compute."""

    @property
    def waiting(self) -> int: ...

    @property
    def running(self) -> int: ...

    @property
    def tokens_ahead(self) -> int: ...


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


ROUTERS: Registry[Router] = Registry("router", "tspsim.routers")
