"""A router: it sends each request to one of several replicas, with a load balancer's information."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ...base.registry import Registry
from ..requests import Request


class Backend(Protocol):
    """A router's view of a replica: its requests, and their tokens still to compute."""

    @property
    def waiting(self) -> int:
        """Requests that are not admitted."""

    @property
    def running(self) -> int:
        """Requests that are admitted."""

    @property
    def tokens_ahead(self) -> int:
        """Tokens still to compute for them, now."""

    @property
    def now_s(self) -> float:
        """Time of the clock."""

    def ahead_at(self, time_s: float) -> int:
        """Value of ``tokens_ahead`` at a later time, if no notice comes before."""

    def watch(self, notice: Callable[[], None]) -> None:
        """Calls ``notice`` whenever its requests, or their tokens ahead, may have changed otherwise than by planned
        steps."""


#: The number of the replica that a request goes to.
Route = Callable[[Request], int]


class Router(Protocol):
    """A routing policy; it is stateless, so that one object serves every run."""

    @property
    def name(self) -> str:
        """Its name in scenarios."""

    @property
    def summary(self) -> str:
        """A few words for lists."""

    def open(self, replicas: Sequence[Backend]) -> Route:
        """Begins to route over replicas; the returned function holds the state."""


ROUTERS: Registry[Router] = Registry("router", "tspsim.routers", Router)
