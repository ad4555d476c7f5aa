"""Prompts that begin alike: system prompts, instructions, documents asked about many times."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from ...base.units import PositiveNumber
from ..kind import Ints
from ..traces import RequestTrace
from .base import Prefixes, Shared

#: Tokens of a block with an identity: the block size of most engines.
BLOCK_TOKENS = 16


class Share(Prefixes):
    """The first ``share`` of every prompt is the beginning of one of ``groups`` texts, equally likely."""

    name = "share"
    part: Annotated[float, Field(ge=0, le=1)] = Field(alias="share", description="of every prompt's tokens")
    groups: Annotated[PositiveNumber, Field(le=2**20)] = Field(1, description="different texts that prompts begin with")

    @property
    def shares(self) -> bool:
        return self.part > 0.0

    def share(
        self, random: np.random.Generator, prompt_tokens: Ints, output_tokens: Ints, trace: RequestTrace | None
    ) -> Shared:
        if not self.part:
            return Shared()
        groups = random.integers(0, self.groups, len(prompt_tokens))
        return Beginnings((self.part * prompt_tokens).astype(np.int64), groups)

    def in_words(self) -> str:
        if not self.part:
            return "no prompt begins as another"
        texts = f"one of {self.groups:,} texts" if self.groups > 1 else "one text"
        return f"{100 * self.part:g} % of every prompt is the beginning of {texts}"


class Beginnings(Shared):
    """The first ``tokens`` of each request belong to its group's text."""

    block_tokens = BLOCK_TOKENS

    def __init__(self, tokens: Ints, groups: Ints) -> None:
        self._tokens, self._groups = tokens, groups

    def blocks(self, number: int) -> tuple[int, ...]:
        first = int(self._groups[number]) << 32
        return tuple(range(first, first + int(self._tokens[number]) // self.block_tokens))


Prefixes.registry.register(Share)
