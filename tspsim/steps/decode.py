"""Every sequence of a batch puts out one token."""

from __future__ import annotations

from typing import ClassVar

from .load import Batch, Load
from .step import STEPS, ServingStep


class DecodeStep(ServingStep):
    """One query a sequence over its cache, or one a stream where several work for it. A pipeline's stages each work on
    a part of the batch: as many parts as stages are under way, one pass is one part, the one with most."""

    name = "decode"
    title = "decode step"
    shards_tokens = False
    needs: ClassVar[tuple[str, ...]] = ("batch", "context")
    takes: ClassVar[tuple[str, ...]] = ("streams",)

    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        rows = load.decoding(self.in_flight(load, stages))
        # What streams put out together is one hidden state before the head (ParScale, §2).
        outputs = -(-sum(row.tokens for row in rows) * load.streams.outputs // load.streams.count)
        return (Batch(rows, outputs=outputs),)

    def counted(self, load: Load) -> float:
        return load.batch * load.advance

    def in_flight(self, load: Load, stages: int) -> int:
        return min(stages, load.batch)


DECODE_STEP = STEPS.register(DecodeStep())
