"""``vllm bench serve``.

First one request is sent alone to test the server. Then ``--num-prompts`` (1000) requests follow, at ``--request-rate``
with ``--burstiness`` and at most ``--max-concurrency`` under way. Ramp and drain count: throughput is over the time
from the first send to the last end. TPOT is a mean over requests.
"""

from __future__ import annotations

from pydantic import Field

from ...base.units import Count
from ..arrivals import Arrivals
from .base import USUAL_REQUESTS, Protocol


class VllmBench(Protocol):
    """vLLM's benchmark of a server."""

    name = "vllm_bench"
    pauses = True
    warm_ups: Count = Field(1, description="requests before the measured ones (its own test of the server is one)")

    def requests(self, arrivals: Arrivals, model: str | None = None) -> int:
        trace = arrivals.trace()
        return len(trace) if trace is not None else USUAL_REQUESTS

    def warm_up(self, arrivals: Arrivals) -> int:
        return self.warm_ups

    def in_words(self) -> str:
        return "as `vllm bench serve` counts: ramp and drain are in the wall, TPOT is a mean over requests"


Protocol.registry.register(VllmBench)
