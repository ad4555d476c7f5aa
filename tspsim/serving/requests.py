"""A request and its result."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Request:
    """One prompt and its answer.

    Attributes
    ----------
    number
        Its number in the traffic.
    arrival_s
        Send time; nan until known (closed loops, turns of a conversation).
    prompt_tokens, output_tokens
        Lengths; the first output comes from the step that computes the prompt's last token.
    blocks
        Identities of the prompt's blocks of ``block_tokens`` each, first to last, equal where prompts share a prefix;
        empty where nothing is shared. They may extend over the answer, where a later prompt begins with it.
    block_tokens
        Tokens of one of ``blocks``.
    conversation
        Its conversation; None: it stands alone.
    ignore_eos
        Whether the answer takes its longest length, as benchmarks request.
    """

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    block_tokens: int = 0
    conversation: int | None = None
    ignore_eos: bool = False
    # Results.
    first_scheduled_s: float = field(default=float("nan"))
    first_token_s: float = field(default=float("nan"))
    end_s: float = field(default=float("nan"))
    preemptions: int = 0
    cached_tokens: int = 0

    def blocks_of(self, tokens: int) -> tuple[int, ...]:
        """Identities of the whole blocks in its first ``tokens``."""
        return self.blocks[: tokens // self.block_tokens] if self.block_tokens else ()
