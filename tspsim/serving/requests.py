"""What is asked of a service, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Request:
    """One prompt and its answer."""

    #: Its place in the traffic.
    number: int
    #: When a client sends it; nan until it is known (closed loops, turns of a conversation).
    arrival_s: float
    #: Lengths; the first output comes from the step that computes the prompt's last token.
    prompt_tokens: int
    output_tokens: int
    #: Identities of the prompt's blocks of ``block_tokens`` each, first to last, equal where prompts begin alike;
    #: empty where nothing is shared. They may go on over the answer, where a later prompt begins with it.
    blocks: tuple[int, ...] = ()
    #: Tokens of one of ``blocks``.
    block_tokens: int = 0
    #: Which its turn belongs to; None: it stands alone.
    conversation: int | None = None
    # What came of it.
    first_scheduled_s: float = field(default=float("nan"))
    first_token_s: float = field(default=float("nan"))
    end_s: float = field(default=float("nan"))
    preemptions: int = 0
    cached_tokens: int = 0
