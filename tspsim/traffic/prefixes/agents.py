"""Agents: tasks of several turns, between which a tool runs on a processor of a host.

A task of n turns takes n prompts with all that was said before, n answers, and n − 1 calls of a tool, each of which
waits for one of so many workers, in order (a queue of c servers). What a tool found is what is new in the next prompt
(Asgar et al. 2025, arXiv:2507.19635: models on accelerators, tools on CPUs).
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ...units import PositiveCount, Seconds
from ..kind import Floats
from .base import Prefixes
from .conversing import Conversing


class Agents(Conversing):
    """Tasks of ``turns`` requests; after each but the last a tool runs on one of the ``workers``."""

    name = "agents"
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

    def in_words(self) -> str:
        where = f" on one of {self.workers:,} workers" if self.workers else ""
        spread = {"fixed": "", "exponential": " in the mean", "lognormal": f" in the mean (σ {self.tool_sigma:g})"}
        call = f"a call of a tool of {self.tool:g} s{spread[self.tool_kind]}{where}"
        return f"tasks of {self.turns:,} turns with {call} between them, and all that was said as their prompts"


Prefixes.registry.register(Agents)
