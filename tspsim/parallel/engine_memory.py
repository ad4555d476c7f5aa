"""Memory that an engine gives to caches, block sizes, and the tokens and sequences that it admits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, lcm
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class EngineLimits:
    """Default limits of an engine on GPUs with at least ``memory_bytes``: tokens per pass, and running sequences."""

    memory_bytes: float
    tokens: int
    sequences: int
    #: Words in the names of devices that get the limits of less memory.
    but: tuple[str, ...] = ()

    def applies_to(self, device: str) -> bool:
        """Whether the limits apply to GPUs of this name, given the memory."""
        return not any(word in device.lower() for word in self.but)


@dataclass(frozen=True)
class Pages:
    """Tokens of a block for some kinds of attention on some GPUs, as set by the engine's attention backend there."""

    tokens: int
    #: Kinds of attention; words in the names of GPUs (none: all).
    kinds: tuple[str, ...]
    devices: tuple[str, ...] = ()

    def hold(self, kind: str, device: str) -> bool:
        """Whether they apply to models of a kind on GPUs of a name."""
        return kind in self.kinds and (not self.devices or any(word in device.lower() for word in self.devices))


@dataclass(frozen=True)
class StateRule:
    """How an engine keeps states of linear attention, and which prefixes of a prompt it can reuse.

    Attributes
    ----------
    kept
        ``blocks``: in blocks of the cache; ``pool``: in memory of their own; ``never``: prefixes are not reused.
    inflates
        Blocks are enlarged so that one of an attention layer covers a state of another layer.
    align
        Kind of attention → tokens that such a block is a multiple of; default: a block's.
    inside
        Kernels that write states after blocks inside a piece of a prompt, and the tokens that blocks are then multiples
        of.
    at
        Which states of a prompt are kept: at the ends of its ``pieces``, after its ``last`` block, or after ``every``
        so many tokens.
    live
        States of a running sequence.
    copies
        States per sequence that size the pool.
    share
        Memory of the pool over that of tokens.
    grid, decoding, every
        Tokens: states of pieces of prompts are kept at multiples of ``grid``, during decoding at multiples of
        ``decoding`` (0: none), and after ``every`` so many.
    """

    kept: Literal["blocks", "pool", "never"]
    inflates: bool = False
    align: Mapping[str, int] = field(default_factory=dict)
    inside: tuple[Pages, ...] = ()
    at: Literal["pieces", "last", "every"] = "pieces"
    live: int = 1
    copies: int = 1
    share: float = 0.0
    grid: int = 0
    decoding: int = 0
    every: int = 0

    def on(self, kind: str, device: str) -> StateRule:
        """The rule for models of a kind on GPUs of a name."""
        return replace(self, inside=tuple(pages for pages in self.inside if pages.hold(kind, device)))

    def block_tokens(self, block: int, kind: str, token_bytes: float, state_bytes: float) -> int:
        """Tokens of a block if an attention layer keeps ``token_bytes`` per token and other layers ``state_bytes``.

        >>> rule = StateRule("blocks", inflates=True, align={"kda": 128})
        >>> rule.block_tokens(16, "gdn", 2048.0, 1097728.0), rule.block_tokens(16, "kda", 1152.0, 1097728.0)
        (544, 1024)
        """
        if not self.inflates or not token_bytes:
            return block
        unit = lcm(max(block, self.align.get(kind, block)), *(pages.tokens for pages in self.inside))
        return max(block, unit * ceil(state_bytes / (unit * token_bytes)))


class Budget(NamedTuple):
    """Bytes for caches on a GPU, with their 90 % interval over installations."""

    size_bytes: float
    low: float
    high: float


@dataclass(frozen=True)
class MemoryRule:
    """Memory for caches of a GPU: ``share`` · (visible − ``before``) − ``after`` − the reserve."""

    #: Share of the visible memory, less ``before``.
    share: float = 1.0
    #: Parts (``weights``, ``activations``, ``graphs``, ``context``) subtracted before and after the share is taken.
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ("weights", "activations", "graphs", "context")
    #: Bytes that the engine's scripts keep free: fixed, per token of a pass, per sequence of the largest graph, and per
    #: rank; and the least of their sum.
    reserve: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    least_reserve: float = 0.0

    def with_share(self, share: float) -> MemoryRule:
        """The rule with a share stated by the user: the engine's scripts then keep nothing free."""
        return MemoryRule(share, self.before, self.after)


#: All memory beside the parts is for caches.
ALL_FOR_CACHES = MemoryRule()
