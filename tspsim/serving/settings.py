"""What queues and caches of an engine go by."""

from __future__ import annotations

from dataclasses import dataclass

from ..scenario.section import Section
from .requests import Request


@dataclass(frozen=True)
class Settings:
    """How an engine is set.

    Attributes
    ----------
    options
        Of its scheduler.
    kv_tokens
        Tokens that the cache of one attention replica holds; None: as many as are asked for.
    block_tokens
        Tokens of a block of it.
    """

    options: Section
    kv_tokens: int | None
    block_tokens: int

    @property
    def capacity_blocks(self) -> int | None:
        """Blocks of one attention replica's cache; None: no limit."""
        return None if self.kv_tokens is None else self.kv_tokens // self.block_tokens

    def most_tokens(self, request: Request) -> int:
        """Tokens that a request has in the cache at most: the last output is never computed on."""
        return request.prompt_tokens + request.output_tokens - 1
