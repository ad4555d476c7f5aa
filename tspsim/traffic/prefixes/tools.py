"""Tool calls between model calls, on processors of hosts."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ...base.units import PositiveCount, Seconds
from ..kind import Floats
from .base import Prefixes


class WithTools(Prefixes):
    """A tool call waits for one of the ``workers``, in order (a queue of c servers)."""

    tool: Seconds = Field(description="mean time of a call on a worker")
    tool_kind: Literal["fixed", "exponential", "lognormal"] = Field("lognormal", description="how calls are spread")
    tool_sigma: Annotated[float, Field(ge=0, le=5)] = Field(1.0, description="σ of lognormal calls")
    workers: PositiveCount | None = Field(None, description="calls that run at once; default: no limit")

    @property
    def tool_workers(self) -> int | None:
        return self.workers

    @property
    def calls_tools(self) -> bool:
        return True

    def think_s(self, random: np.random.Generator, count: int) -> Floats:
        if self.tool_kind == "fixed" or not self.tool:
            return np.full(count, self.tool)
        if self.tool_kind == "exponential":
            return random.exponential(self.tool, count)
        sigma = abs(self.tool_sigma)
        return random.lognormal(float(np.log(self.tool)) - sigma**2 / 2, sigma, count)

    def tools_in_words(self) -> str:
        """The duration of a tool call, and where it runs."""
        where = f" on one of {self.workers:,} workers" if self.workers else ""
        spread = {"fixed": "", "exponential": " in the mean", "lognormal": f" in the mean (σ {self.tool_sigma:g})"}
        return f"a call of a tool of {self.tool:g} s{spread[self.tool_kind]}{where}"
