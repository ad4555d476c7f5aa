"""A prefill step: prompts are read whole, or in chunks over the tokens cached so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from .load import Batch, Load
from .step import STEPS, ServingStep


class PrefillStep(ServingStep):
    """All prompts of a replica at once. Chunked, each pass reads one chunk of every prompt, so that the step's time is
    the time to the first token."""

    name = "prefill"
    title = "prefill"
    needs: ClassVar[tuple[str, ...]] = ("sequence",)
    takes: ClassVar[tuple[str, ...]] = ("sequences_per_replica", "chunk", "cached")
    spellings: ClassVar[Mapping[str, str]] = {"batch": "sequences_per_replica", "context": "sequence"}

    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        return tuple(Batch((row,), outputs=load.prompts if last else 0) for row, last in load.chunks())

    def counted(self, load: Load) -> float:
        return float(load.prompts * load.prompt)

    def in_flight(self, load: Load, stages: int) -> int:
        return 1


PREFILL_STEP = STEPS.register(PrefillStep())
