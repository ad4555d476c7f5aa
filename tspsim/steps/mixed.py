"""A chunk of prompts and a batch that decodes, in one pass (Agrawal et al. 2024, Sarathi-Serve, §4)."""

from __future__ import annotations

from typing import ClassVar

from .batch import Batch
from .load import Load
from .serving import ServingStep
from .step import STEPS


class MixedStep(ServingStep):
    """The last chunk of every prompt, behind what is cached of it, beside the decoding sequences."""

    name = "mixed"
    title = "mixed step"
    shards_tokens = False
    needs: ClassVar[tuple[str, ...]] = ("sequence", "batch", "context")
    takes: ClassVar[tuple[str, ...]] = ("sequences_per_replica", "cached")

    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        ((prompt, _),) = load.chunks()
        return (Batch((prompt, *load.decoding()), outputs=load.prompts + load.batch),)

    def counted(self, load: Load) -> float:
        return float(load.prompts * load.prompt + load.batch)

    def in_flight(self, load: Load, stages: int) -> int:
        return 1


MIXED_STEP = STEPS.register(MixedStep())
