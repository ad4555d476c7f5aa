"""A decode step: every sequence of a batch outputs one token."""

from __future__ import annotations

from typing import ClassVar

from .load import Batch, Load
from .step import STEPS, ServingStep


class DecodeStep(ServingStep):
    """One query per sequence over its cache, or one per stream if a sequence has several.

    In a pipeline the batch is cut into as many parts as there are stages; a pass is the largest part.
    """

    name = "decode"
    title = "decode step"
    shards_tokens = False
    needs: ClassVar[tuple[str, ...]] = ("batch", "context")
    takes: ClassVar[tuple[str, ...]] = ("streams",)

    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        rows = load.decoding(self.in_flight(load, stages))
        # The streams' outputs are summed to one hidden state before the head (ParScale, §2).
        outputs = -(-sum(row.tokens for row in rows) * load.streams.outputs // load.streams.count)
        return (Batch(rows, outputs=outputs),)

    def counted(self, load: Load) -> float:
        return load.batch * load.advance

    def in_flight(self, load: Load, stages: int) -> int:
        return min(stages, load.batch)


DECODE_STEP = STEPS.register(DecodeStep())
