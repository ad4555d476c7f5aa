"""Kinds of steps with prompts whose programs have the same instructions, and what these depend on in each."""

from __future__ import annotations

from typing import NamedTuple

from ..operators import BatchQuantity
from ..parallel.serving_engine import Captured
from ..steps import PromptChunk
from .work import StepWork

#: Tokens before the first piece of a typical step's prompts, and of the second piece; sequences that decode, their
#: contexts.
BEHIND, SECOND, BATCH, CONTEXT = 64, 160, 40, 4096


class StepComposition(NamedTuple):
    """Steps whose programs have the same instructions."""

    decodes: bool
    outputs: bool
    cached: bool
    captured: Captured

    def quantity(self, quantity: BatchQuantity) -> BatchQuantity:
        """The first of the quantities that equal this one in such steps."""
        if quantity is BatchQuantity.LENGTHS and not self.cached:
            quantity = BatchQuantity.READ
        if quantity is BatchQuantity.READ and not self.decodes:
            quantity = BatchQuantity.TOKENS
        return quantity

    def typical(self, queries: int, tokens: int) -> StepWork:
        """One of these steps, of ``tokens`` tokens: two pieces of prompts, of which as few end as can."""
        decoding = (CONTEXT,) * BATCH if self.decodes else ()
        first = tokens - SECOND - len(decoding) * queries
        ends = self.outputs and not self.decodes
        pieces = [PromptChunk(first, BEHIND if self.cached else 0, ends), PromptChunk(SECOND, 0, False)]
        return StepWork(pieces, decoding, queries)
