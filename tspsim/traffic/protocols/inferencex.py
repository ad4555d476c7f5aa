"""InferenceX (SemiAnalysis): closed loops of random tokens.

Ten requests per client after two warm-up requests per client, no pause between requests, prompts and outputs uniform
from 0.8 of their length, end of sequence ignored, prefix caches off. It publishes means of TTFT and TPOT; ramp and
drain count.
"""

from __future__ import annotations

from ..arrivals import Arrivals
from .base import REQUESTS_A_CLIENT, Protocol


class InferenceX(Protocol):
    """InferenceX's closed loop."""

    name = "inferencex"
    pauses = True

    def refuses(self, arrivals: Arrivals) -> str | None:
        return None if arrivals.closed else "inferencex is a closed loop; use arrivals: {kind: closed, concurrency: …}"

    def requests(self, arrivals: Arrivals, model: str | None = None) -> int:
        return REQUESTS_A_CLIENT * int(arrivals.most or 1)

    def warm_up(self, arrivals: Arrivals) -> int:
        return 2 * int(arrivals.most or 1)

    def in_words(self) -> str:
        return (
            "as InferenceX counts: ten requests a client behind two of warm-up, ramp and drain in the wall, means of "
            "TTFT and TPOT"
        )


Protocol.registry.register(InferenceX)
