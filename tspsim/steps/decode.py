"""Every sequence of a batch puts out one token."""

from __future__ import annotations

from typing import ClassVar

from .batch import Batch
from .load import Load
from .serving import ServingStep
from .step import STEPS


class DecodeStep(ServingStep):
    """One query a sequence over its cache. A pipeline's stages each work on a part of the batch: as many parts as
    stages are under way, one pass is one part, the one with most."""

    name = "decode"
    title = "decode step"
    shards_tokens = False
    needs: ClassVar[tuple[str, ...]] = ("batch", "context")
    takes: ClassVar[tuple[str, ...]] = ()

    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        rows = load.decoding(self.in_flight(load, stages))
        return (Batch(rows, outputs=sum(row.tokens for row in rows)),)

    def counted(self, load: Load) -> float:
        return float(load.batch)

    def in_flight(self, load: Load, stages: int) -> int:
        return min(stages, load.batch)


DECODE_STEP = STEPS.register(DecodeStep())
