"""To the replica that has least to do."""

from __future__ import annotations

from collections.abc import Sequence

from ..requests import Request
from .router import ROUTERS, Backend, Route


def load(replica: Backend) -> tuple[int, int]:
    """Requests that a replica has, then the tokens they still have to compute: what load is compared by."""
    return replica.waiting + replica.running, replica.tokens_ahead


class LeastLoad:
    """The replica with the fewest requests; of equals the one with the fewest tokens ahead; of equals the first."""

    name = "least_load"
    summary = "the replica with the fewest requests, then the fewest tokens ahead"

    def open(self, replicas: Sequence[Backend]) -> Route:
        numbers = range(len(replicas))

        def route(_request: Request) -> int:
            return min(numbers, key=lambda number: load(replicas[number]))

        return route


LEAST_LOAD = ROUTERS.register(LeastLoad())
