"""Memory that an engine gives to caches, block sizes, and the tokens and sequences that it admits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, lcm
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, PositiveInt, StrictBool

from ..base.provenance import Provenance
from ..base.stated import Source
from ..base.strict import section
from ..base.units import Bytes, PositiveCount


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Default limits of an engine on GPUs with at least ``memory_bytes``: tokens per pass, and running sequences."""

    __pydantic_config__ = section("The most of a pass, and of sequences at once, on GPUs of ``memory`` and more.")

    memory_bytes: Annotated[Bytes, Field(alias="memory")] = 0.0
    tokens: PositiveCount
    sequences: PositiveCount
    but: Annotated[
        tuple[str, ...], Field(description="words in names of GPUs that have the limits of less memory")
    ] = ()
    source: Annotated[str, Field(max_length=2000, description="version and line, where it is not that of all")] = field(
        default="", compare=False
    )

    def applies_to(self, device: str) -> bool:
        """Whether the limits apply to GPUs of this name, given the memory."""
        return not any(word in device.lower() for word in self.but)


@dataclass(frozen=True)
class Pages:
    """Tokens of a block for some kinds of attention on some GPUs, as set by the engine's attention backend there."""

    __pydantic_config__ = section(
        "Tokens of a block where an attention backend of its own runs models of some kinds of attention."
    )

    tokens: PositiveInt
    kinds: Annotated[
        tuple[str, ...],
        Field(alias="attention", min_length=1, description="kinds of attention, as models name them"),
    ]
    source: Source = field(compare=False)
    devices: Annotated[tuple[str, ...], Field(description="words in names of GPUs; default: all")] = ()
    backend: Annotated[str, Field(max_length=200, description="as the engine calls it")] = ""

    def hold(self, kind: str, device: str) -> bool:
        """Whether they apply to models of a kind on GPUs of a name."""
        return kind in self.kinds and (not self.devices or any(word in device.lower() for word in self.devices))

    def provenance(self, what: str) -> Provenance:
        """The row of a report."""
        where = " and ".join(self.kinds) + (f" on {', '.join(self.devices)}" if self.devices else "")
        pages = f"{self.tokens} tokens ({self.backend})" if self.backend else f"{self.tokens} tokens"
        return Provenance(f"{what} of {where}", pages, self.source, "library")


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

    __pydantic_config__ = section(
        "How states of linear attention are kept, and up to where a prompt's beginning is found again."
    )

    kept: Annotated[
        Literal["blocks", "pool", "never"], Field(description="in blocks of the cache, in a pool, or not at all")
    ]
    source: Source = field(compare=False)
    inflates: Annotated[
        StrictBool, Field(description="a block of an attention layer covers a state of another layer")
    ] = False
    align: Annotated[
        dict[str, PositiveInt], Field(description="kind of attention → tokens that a block is a multiple of")
    ] = field(default_factory=dict)
    inside: Annotated[
        tuple[Pages, ...],
        Field(description="kernels that write states inside a piece, and the tokens that blocks are then multiples of"),
    ] = ()
    at: Annotated[Literal["pieces", "last", "every"], Field(description="which states of a prompt are kept")] = "pieces"
    live: Annotated[PositiveInt, Field(description="states of a running sequence")] = 1
    copies: Annotated[PositiveInt, Field(description="states of the pool per sequence that may run")] = 1
    share: Annotated[float, Field(ge=0.0, le=100.0, description="memory of the pool over that of tokens")] = 0.0
    grid: Annotated[
        PositiveCount,
        Field(description="prompts' pieces keep a state at multiples of so many tokens; 0: blocks"),
    ] = 0
    decoding: Annotated[PositiveCount, Field(description="the same during decoding")] = 0
    every: Annotated[
        PositiveCount, Field(description="a state is also kept after every so many tokens of a prompt")
    ] = 0

    def on(self, kind: str, device: str) -> StateRule:
        """The rule for models of a kind on GPUs of a name."""
        return replace(self, inside=tuple(pages for pages in self.inside if pages.hold(kind, device)))

    def block_tokens(self, block: int, kind: str, token_bytes: float, state_bytes: float) -> int:
        """Tokens of a block if an attention layer keeps ``token_bytes`` per token and other layers ``state_bytes``.

        >>> rule = StateRule("blocks", "an example", inflates=True, align={"kda": 128})
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
class MemoryReserve:
    """Memory that an engine's scripts keep free: the sum of its parts, but at least ``least``."""

    __pydantic_config__ = section(
        "Memory that an engine's scripts keep free: the sum of its parts, but at least ``least``."
    )

    fixed: Bytes = 0.0
    token: Annotated[Bytes, Field(description="for every token of the largest pass")] = 0.0
    graph: Annotated[Bytes, Field(description="for every sequence of the largest graph")] = 0.0
    rank: Annotated[Bytes, Field(description="for every GPU of a replica")] = 0.0
    least: Bytes = 0.0


Part = Literal["weights", "activations", "graphs", "context"]


@dataclass(frozen=True)
class MemoryRule:
    """Memory for caches of a GPU: ``share`` · (visible − ``before``) − ``after`` − ``reserve``.

    ``before`` and ``after`` name parts that are subtracted before and after the share is taken.
    """

    __pydantic_config__ = section("Caches get ``share`` · (visible memory − ``before``) − ``after`` − ``reserve``.")

    source: Source = field(compare=False)
    share: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    before: tuple[Part, ...] = ()
    after: tuple[Part, ...] = ()
    reserve: MemoryReserve = MemoryReserve()

    def with_share(self, share: float) -> MemoryRule:
        """The rule with a share stated by the user: the engine's scripts then keep nothing free."""
        return replace(self, share=share, reserve=MemoryReserve())


#: All memory beside the parts is for caches.
ALL_FOR_CACHES = MemoryRule("no engine's rule", after=("weights", "activations", "graphs", "context"))
