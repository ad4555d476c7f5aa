"""Lengths of a file, in the order of its rows."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from ...base.units import PositiveCount
from ..kind import Ints
from ..traces import read_trace
from .base import Lengths


class ListedLengths(Lengths):
    """The lengths of a trace, first row to last, then again. Prompts and outputs of one file stay together."""

    name = "file"
    file: Annotated[str, Field(min_length=1, max_length=1000)] = Field(
        description="CSV or JSON lines, or the name of a catalog trace; its times are not used"
    )
    cap: PositiveCount | None = Field(None, description="longer ones are cut to so many tokens")

    def draw(self, random: np.random.Generator, count: int, column: str) -> Ints:
        trace = read_trace(self.file)
        own = trace.prompt_tokens if column == "prompt_tokens" else trace.output_tokens
        tokens = np.resize(own, count)
        return np.minimum(tokens, self.cap) if self.cap else tokens

    def in_words(self) -> str:
        return f"as in {self.file}" + (f", cut to {self.cap:,}" if self.cap else "")


Lengths.registry.register(ListedLengths)
