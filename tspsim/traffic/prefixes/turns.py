"""Conversations: every turn's prompt is all that was said before, and new text."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from ...base.units import Seconds
from ..kind import Floats
from .base import Prefixes
from .conversing import Conversing


class Turns(Conversing):
    """Conversations of ``turns`` requests; the next turn is sent after a think time.

    Drawn prompt lengths are those of a turn's new text; arrivals are those of conversations.
    """

    name = "turns"
    think: Seconds = Field(0.0, description="from a turn's last token to the next turn, mean")
    think_kind: Literal["fixed", "exponential"] = Field("fixed", description="how think times are spread")

    def think_s(self, random: np.random.Generator, count: int) -> Floats:
        if self.think_kind == "exponential":
            return random.exponential(self.think, count)
        return np.full(count, self.think)

    def in_words(self) -> str:
        pause = f"{self.think:g} s after the one before" + (" in the mean" if self.think_kind == "exponential" else "")
        return f"conversations of {self.turns:,} turns, each sent {pause}, with all that was said as its prompt"


Prefixes.registry.register(Turns)
