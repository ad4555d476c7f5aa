"""Conversations of any kind: every turn's prompt is all that was said before, and new text."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from ...base.units import PositiveNumber
from ..kind import Ints
from ..traces import RequestTrace
from .base import Prefixes, Shared
from .share import BLOCK_TOKENS


class Conversing(Prefixes):
    """Drawn prompt lengths are those of a turn's new text; arrivals are those of conversations."""

    turns: Annotated[PositiveNumber, Field(le=10_000)] = Field(description="requests of a conversation")

    @property
    def turns_each(self) -> int:  # type: ignore[override]
        return self.turns

    def prompts(self, prompt_tokens: Ints, output_tokens: Ints) -> Ints:
        said = _by_turn(prompt_tokens + output_tokens, self.turns)
        before = np.cumsum(said, axis=1) - said
        return (before + _by_turn(prompt_tokens, self.turns)).ravel()[: len(prompt_tokens)]

    def share(
        self, random: np.random.Generator, prompt_tokens: Ints, output_tokens: Ints, trace: RequestTrace | None
    ) -> Shared:
        return Conversations(prompt_tokens + output_tokens, self.turns)


def _by_turn(tokens: Ints, turns: int) -> Ints:
    """One row per conversation; the last is filled with zeros."""
    padded = np.zeros(-(-len(tokens) // turns) * turns, dtype=np.int64)
    padded[: len(tokens)] = tokens
    return padded.reshape(-1, turns)


class Conversations(Shared):
    """Requests in the order of conversations. Blocks cover prompt and answer: engines keep decoded tokens in the cache
    (vLLM, SGLang, TensorRT-LLM), and the next turn begins with them.

    ``said`` are the tokens of every prompt and its answer.
    """

    block_tokens = BLOCK_TOKENS

    def __init__(self, said: Ints, turns: int) -> None:
        self._said, self._turns = said, turns

    def blocks(self, number: int) -> tuple[int, ...]:
        first = (number // self._turns) << 32
        return tuple(range(first, first + int(self._said[number]) // self.block_tokens))

    def conversation(self, number: int) -> int | None:
        return number // self._turns
