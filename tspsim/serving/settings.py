"""Settings that queues and caches of an engine use."""

from __future__ import annotations

from dataclasses import dataclass

from ..scenario.section import Section
from .blocks import States
from .requests import Request
from .speculation import AcceptanceModel


@dataclass(frozen=True)
class Settings:
    """The settings of an engine."""

    #: Options of its scheduler.
    options: Section
    #: Tokens in the cache of one attention replica; None: unlimited.
    kv_tokens: int | None
    #: Tokens of a block of it.
    block_tokens: int
    #: Drafts and their acceptance; None: one token per step.
    speculation: AcceptanceModel | None
    #: Where states of linear attention are stored; None: there are none.
    states: States | None
    #: Whether the host waits in every layer of a step with prompts until it can read how many rows each expert gets:
    #: it launches the step no faster than the step runs.
    counts_on_host: bool = False
    #: Whether it reads prompts for engines that go on with their answers (a prefill pool).
    reads_only: bool = False

    @property
    def capacity_blocks(self) -> int | None:
        """Blocks of one attention replica's cache; None: no limit."""
        return None if self.kv_tokens is None else self.kv_tokens // self.block_tokens

    def most_tokens(self, request: Request) -> int:
        """Most tokens of a request in the cache: the last output is never an input, and drafts are written beyond the
        outputs."""
        drafts = 0 if self.speculation is None else self.speculation.drafts
        return request.prompt_tokens + request.output_tokens - 1 + 2 * drafts
