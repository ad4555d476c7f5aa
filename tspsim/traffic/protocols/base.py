"""How a benchmark counts: the family of protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...base.registry import Registry
from ..arrivals import Arrivals
from ..kind import Kind

#: Requests of an open loop where nobody states how many: as of vLLM's benchmark.
USUAL_REQUESTS = 1000
#: Requests a client of a closed loop, as of InferenceX; and of few clients at least so many.
REQUESTS_A_CLIENT, FEWEST = 10, 100


class Protocol(Kind):
    """How many requests are sent, which of them count, and by which bounds.

    Attributes
    ----------
    share
        Of the requests that must keep the bounds, where a scenario does not say; None: a scenario's own default.
    apart
        Each bound is one on a percentile of its own: that share of requests keeps it, whoever keeps the others.
        Otherwise requests count that keep all.
    metric
        What the benchmark prints of times: ``mean``, ``p99``, …; answers have them all.
    """

    registry: ClassVar[Registry[Any]] = Registry("protocol", "tspsim.protocols")
    share: ClassVar[float | None] = None
    apart: ClassVar[bool] = False
    metric: ClassVar[str] = "mean"

    def refuses(self, arrivals: Arrivals) -> str | None:
        """What is wrong with arrivals under it; None where nothing is."""
        return None

    def requests(self, arrivals: Arrivals, model: str | None = None) -> int:
        """Requests that are measured, where nobody states how many; of a model, where it counts each its own way."""
        if arrivals.closed:
            return max(FEWEST, REQUESTS_A_CLIENT * int(arrivals.most or 1))
        trace = arrivals.trace()
        return len(trace) if trace is not None else USUAL_REQUESTS

    def warm_up(self, arrivals: Arrivals) -> int:
        """Requests before them that do not count."""
        return 0

    #: Warm-up requests end before the first that counts is sent; otherwise one stream holds both.
    pauses: ClassVar[bool] = False

    def ignores_eos(self) -> bool:
        """Requests say ``ignore_eos``: an engine knows that every answer is as long as it may be. Benchmarks of random
        tokens do, so that lengths are those that were asked for."""
        return True

    def cool_down(self, arrivals: Arrivals) -> int:
        """Requests at the end that do not count."""
        return 0

    def bounds(self, model: str) -> Mapping[str, float]:
        """Seconds of ``ttft`` and ``tpot`` that it asks of a model, where a scenario states none."""
        return {}


Protocol.registry.of = type[Protocol]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """A protocol's name alone."""
    return {"kind": value} if isinstance(value, str) else None
