"""What queues and caches of an engine go by."""

from __future__ import annotations

from dataclasses import dataclass

from ..scenario.section import Section
from .blocks import States
from .requests import Request
from .speculation import AcceptanceModel


@dataclass(frozen=True)
class Settings:
    """How an engine is set."""

    #: Of its scheduler.
    options: Section
    #: Tokens that the cache of one attention replica holds; None: as many as are asked for.
    kv_tokens: int | None
    #: Tokens of a block of it.
    block_tokens: int
    #: Drafts, and how many of them are kept; None: one token a step.
    speculation: AcceptanceModel | None
    #: Of a model with linear attention; None: it has none.
    states: States | None

    @property
    def capacity_blocks(self) -> int | None:
        """Blocks of one attention replica's cache; None: no limit."""
        return None if self.kv_tokens is None else self.kv_tokens // self.block_tokens

    def most_tokens(self, request: Request) -> int:
        """Tokens that a request has room for in the cache at most: the last output is never computed on, and drafts
        are written beyond the outputs."""
        drafts = 0 if self.speculation is None else self.speculation.drafts
        return request.prompt_tokens + request.output_tokens - 1 + 2 * drafts
