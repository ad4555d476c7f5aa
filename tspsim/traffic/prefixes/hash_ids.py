"""Block identities from a trace."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from ...base.units import PositiveCount
from ..kind import Ints
from ..traces import RequestTrace
from .base import Prefixes, Shared


class HashIds(Prefixes):
    """Prompts share the blocks with the same identity in the trace (Mooncake's traces: 512 tokens each)."""

    name = "hash_ids"
    hash_ids: Literal[True] = Field(True, description="as the trace of the arrivals has them")
    block: Annotated[PositiveCount, Field(le=2**20)] = Field(512, description="tokens that one identity stands for")

    def needs(self, trace: RequestTrace | None) -> str | None:
        if trace is None:
            return "hash_ids come from a trace; state arrivals: {kind: trace, file: …}"
        if len(trace.hashes) != len(trace):
            return f"the trace {trace.name} has no hash_ids; leave prefix out, or state a share"
        return None

    def share(
        self, random: np.random.Generator, prompt_tokens: Ints, output_tokens: Ints, trace: RequestTrace | None
    ) -> Shared:
        assert trace is not None
        return Hashed(trace.hashes, prompt_tokens, self.block)

    def in_words(self) -> str:
        return f"prompts share blocks of {self.block:,} tokens as the trace says"


class Hashed(Shared):
    """Blocks of recorded identities. A partial last block has none, as caches hold whole blocks."""

    def __init__(self, hashes: tuple[tuple[int, ...], ...], prompt_tokens: Ints, block_tokens: int) -> None:
        self._hashes, self._prompt_tokens, self.block_tokens = hashes, prompt_tokens, block_tokens

    def blocks(self, number: int) -> tuple[int, ...]:
        return self._hashes[number][: int(self._prompt_tokens[number]) // self.block_tokens]


Prefixes.registry.register(HashIds)
