"""Round robin: a load balancer without information."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from ..requests import Request
from .router import ROUTERS, Backend, Route


class RoundRobin:
    """Request i goes to replica i modulo their number."""

    name = "round_robin"
    summary = "each replica in turn"

    def open(self, replicas: Sequence[Backend]) -> Route:
        turns = cycle(range(len(replicas)))

        def route(_request: Request) -> int:
            return next(turns)

        return route


ROUND_ROBIN = ROUTERS.register(RoundRobin())
