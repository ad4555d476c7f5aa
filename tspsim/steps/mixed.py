"""A mixed step: chunks of prompts and decoding sequences in one pass (Agrawal et al. 2024, Sarathi-Serve, §4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from .load import Batch, Load
from .step import STEPS, ServingStep


class MixedStep(ServingStep):
    """The last chunk of every prompt, or pieces as a scheduler combines them, beside the decoding sequences."""

    name = "mixed"
    title = "mixed step"
    shards_tokens = False
    needs: ClassVar[tuple[str, ...]] = ("sequence", "batch", "context")
    takes: ClassVar[tuple[str, ...]] = ("sequences_per_replica", "cached")
    spellings: ClassVar[Mapping[str, str]] = {"chunk": "sequence"}

    def passes(self, load: Load, stages: int) -> tuple[Batch, ...]:
        decoding, chunks = load.decoding(), load.chunks()
        outputs = sum(row.sequences for row, ends in chunks if ends) + sum(row.tokens for row in decoding)
        return (Batch((*(row for row, _ in chunks), *decoding), outputs=outputs),)

    def counted(self, load: Load) -> float:
        return sum(row.tokens for row in load.kept) + load.batch * load.advance

    def in_flight(self, load: Load, stages: int) -> int:
        return 1


MIXED_STEP = STEPS.register(MixedStep())
