"""What of a GPU's memory an engine gives to caches, in which blocks, and how many tokens and sequences it takes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, lcm
from typing import Literal, NamedTuple


@dataclass(frozen=True)
class EngineLimits:
    """What an engine takes on at once by default on GPUs of ``memory_bytes`` and more: tokens in a pass, sequences."""

    memory_bytes: float
    tokens: int
    sequences: int
    #: Words of the names of devices that are treated as if they had less memory.
    but: tuple[str, ...] = ()

    def holds_on(self, device: str) -> bool:
        """Whether GPUs of this name have them, given the memory."""
        return not any(word in device.lower() for word in self.but)


@dataclass(frozen=True)
class Pages:
    """Tokens of a block where models of some kinds of attention run on some GPUs: the attention backend that an engine
    takes there has pages of so many."""

    tokens: int
    #: Kinds of attention; and words of the names of GPUs (none: all).
    kinds: tuple[str, ...]
    devices: tuple[str, ...] = ()

    def hold(self, kind: str, device: str) -> bool:
        """Whether models of a kind have them on GPUs of a name."""
        return kind in self.kinds and (not self.devices or any(word in device.lower() for word in self.devices))


@dataclass(frozen=True)
class StateRule:
    """How an engine keeps states of layers of linear attention, and up to where it finds a prompt's beginning.

    Attributes
    ----------
    kept
        ``blocks``: in blocks of the cache; ``pool``: in memory of their own; ``never``: nothing is found again.
    inflates
        Blocks are made so large that one of a layer with attention covers a state of another.
    align
        Tokens that such a block is a multiple of, by kind of attention; those of a block where a kind has none.
    inside
        Kernels that write the state behind a block from inside of a piece of a prompt, and the tokens that blocks are
        multiples of for them.
    at
        Which states of a prompt are kept: where its ``pieces`` end, behind its ``last`` block, or behind ``every`` so
        many tokens.
    live
        States of a sequence that runs.
    copies
        And those that the number of sequences that run is reckoned with, where states have a pool.
    share
        Memory of that pool over that of tokens.
    grid, decoding, every
        Tokens: of pieces of prompts states are kept down to a multiple of ``grid``, while answers are put out at one of
        ``decoding`` (0: none), and behind ``every`` so many.
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
        """Tokens of a block, of which a layer with attention keeps ``token_bytes`` each, beside states of others.

        >>> rule = StateRule("blocks", inflates=True, align={"kda": 128})
        >>> rule.block_tokens(16, "gdn", 2048.0, 1097728.0), rule.block_tokens(16, "kda", 1152.0, 1097728.0)
        (544, 1024)
        """
        if not self.inflates or not token_bytes:
            return block
        unit = lcm(max(block, self.align.get(kind, block)), *(pages.tokens for pages in self.inside))
        return max(block, unit * ceil(state_bytes / (unit * token_bytes)))


class Budget(NamedTuple):
    """Bytes for caches on a GPU, and between which nine of ten installations are expected."""

    size_bytes: float
    low: float
    high: float


@dataclass(frozen=True)
class MemoryRule:
    """What of a GPU's memory holds caches: ``share`` · (visible − ``before``) − ``after`` − the reserve."""

    #: Of the visible memory, or of what is left of it.
    share: float = 1.0
    #: Names of parts (``weights``, ``activations``, ``graphs``, ``context``) taken off before the share is, and out of
    #: it.
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ("weights", "activations", "graphs", "context")
    #: Bytes, bytes for every token of a pass, for every sequence of the largest graph, and for every rank, which
    #: scripts of the engine keep free; and the least of their sum.
    reserve: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    least_reserve: float = 0.0

    def with_share(self, share: float) -> MemoryRule:
        """The rule where a user states the share: an engine's scripts then keep nothing free by themselves."""
        return MemoryRule(share, self.before, self.after)


#: What the parts leave holds caches, all of it.
ALL_FOR_CACHES = MemoryRule()
