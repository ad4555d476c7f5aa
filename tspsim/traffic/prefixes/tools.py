"""Tools that run between calls of a model, on processors of hosts: what kinds of agents have in common."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ...base.units import PositiveCount, Seconds
from ..kind import Floats
from .base import Prefixes


class WithTools(Prefixes):
    """A call of a tool waits for one of the ``workers``, in order (a queue of c servers)."""

    tool: Seconds = Field(description="that a call takes on a worker, mean")
    tool_kind: Literal["fixed", "exponential", "lognormal"] = Field("lognormal", description="how calls are spread")
    tool_sigma: Annotated[float, Field(ge=0, le=5)] = Field(1.0, description="of lognormal calls, of the logarithm")
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
        """What a call of a tool takes, and where."""
        where = f" on one of {self.workers:,} workers" if self.workers else ""
        spread = {"fixed": "", "exponential": " in the mean", "lognormal": f" in the mean (σ {self.tool_sigma:g})"}
        return f"a call of a tool of {self.tool:g} s{spread[self.tool_kind]}{where}"
