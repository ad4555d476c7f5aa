"""AIPerf (before: genai-perf): a warm-up phase that drains, then a measured phase.

Its inter-token latency is (E2E − TTFT)/(outputs − 1) of a request: the TPOT of this answer.
"""

from __future__ import annotations

from pydantic import Field

from ...base.units import Count
from ..arrivals import Arrivals
from .base import Protocol


class AIPerf(Protocol):
    """NVIDIA's client."""

    name = "aiperf"
    pauses = True
    warm_ups: Count = Field(0, description="--warmup-request-count")

    def warm_up(self, arrivals: Arrivals) -> int:
        return self.warm_ups

    def in_words(self) -> str:
        return (
            f"as AIPerf counts: {self.warm_ups:,} requests of warm-up end before the measured phase, whose ramp and "
            "drain are in the wall"
        )


Protocol.registry.register(AIPerf)
