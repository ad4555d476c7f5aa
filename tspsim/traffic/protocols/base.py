"""How a benchmark counts: the family of protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...base.registry import Registry
from ..arrivals import Arrivals
from ..kind import Kind

#: Requests of an open loop by default, as in vLLM's benchmark.
USUAL_REQUESTS = 1000
#: Requests per client of a closed loop, as in InferenceX; and the least number of all.
REQUESTS_A_CLIENT, FEWEST = 10, 100


class Protocol(Kind):
    """How many requests are sent, which of them count, and under which bounds.

    Attributes
    ----------
    share
        Share of requests that must keep the bounds, where a scenario states none; None: the scenario's own default.
    apart
        Whether each bound is a percentile bound of its own: that share of requests keeps it, whatever the others do.
        Otherwise a request counts if it keeps all bounds.
    metric
        The statistic that the benchmark prints: ``mean``, ``p99``, …; answers have them all.
    """

    registry: ClassVar[Registry[Any]] = Registry("protocol", "tspsim.protocols")
    share: ClassVar[float | None] = None
    apart: ClassVar[bool] = False
    metric: ClassVar[str] = "mean"

    def refuses(self, arrivals: Arrivals) -> str | None:
        """An error about arrivals that the protocol cannot use; None where it can."""
        return None

    def requests(self, arrivals: Arrivals, model: str | None = None) -> int:
        """Measured requests by default. ``model``: some benchmarks have a number by model."""
        if arrivals.closed:
            return max(FEWEST, REQUESTS_A_CLIENT * int(arrivals.most or 1))
        trace = arrivals.trace()
        return len(trace) if trace is not None else USUAL_REQUESTS

    def warm_up(self, arrivals: Arrivals) -> int:
        """Requests before the measured ones that do not count."""
        return 0

    #: Whether warm-up requests end before the first measured one is sent; otherwise one stream holds both.
    pauses: ClassVar[bool] = False

    def ignores_eos(self) -> bool:
        """Whether requests say ``ignore_eos``: every answer takes its longest length. Benchmarks of random tokens do so
        to get the lengths that they state."""
        return True

    def cool_down(self, arrivals: Arrivals) -> int:
        """Requests at the end that do not count."""
        return 0

    def bounds(self, model: str) -> Mapping[str, float]:
        """Bounds on ``ttft`` and ``tpot`` in seconds for a model, where a scenario states none."""
        return {}


Protocol.registry.of = type[Protocol]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """Reads a protocol's name alone."""
    return {"kind": value} if isinstance(value, str) else None
