"""The replica with the least load."""

from __future__ import annotations

from collections.abc import Sequence

from ..requests import Request
from .ranking import Ranking
from .router import ROUTERS, Backend, Route


class LeastLoad:
    """The replica with the fewest requests; of equals the one with the fewest tokens ahead; of equals the first."""

    name = "least_load"
    summary = "the replica with the fewest requests, then the fewest tokens ahead"

    def open(self, replicas: Sequence[Backend]) -> Route:
        ranking = Ranking(replicas)

        def route(_request: Request) -> int:
            return ranking.least()

        return route


LEAST_LOAD = ROUTERS.register(LeastLoad())
