"""Everything counts, from the first send to the last end."""

from __future__ import annotations

from pydantic import Field, StrictBool

from ...base.units import Count
from ..arrivals import Arrivals
from .base import Protocol


class Plain(Protocol):
    """All requests count but the first ``skip_first`` and the last ``skip_last``, which run uncounted."""

    name = "plain"
    skip_first: Count = Field(0, description="requests of the ramp that do not count")
    skip_last: Count = Field(0, description="requests of the drain that do not count")
    ignore_eos: StrictBool = Field(False, description="engines know how long answers are, as benchmarks tell them")

    def warm_up(self, arrivals: Arrivals) -> int:
        return self.skip_first

    def ignores_eos(self) -> bool:
        return self.ignore_eos

    def cool_down(self, arrivals: Arrivals) -> int:
        return self.skip_last

    def in_words(self) -> str:
        if not self.skip_first and not self.skip_last:
            return "every request counts; the wall is from the first that is sent to the last that ends, ramp and drain"
        return f"the first {self.skip_first:,} and the last {self.skip_last:,} requests run, but do not count"


Protocol.registry.register(Plain)
