"""Latent attention (MLA): prefill with keys and values per head, decode with the latents themselves.

DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, §2.1: a token's K and V are one latent of ``latent_dim`` elements and a
rotary key of ``rope_dim``, shared by all heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.quick import quick
from .base import CachedContext, Operator, Role, first_three
from .batch import SEGMENTS, BatchQuantity
from .dtypes import element_bytes


@quick
@dataclass(frozen=True, slots=True)
class LatentPrefill(Operator):
    """Causal softmax(Q·Kᵀ)·V with a key and a value per head, of different widths, in one kernel call."""

    #: ``(query tokens, context tokens)`` of every piece, aligned at its lower right corner.
    segments: tuple[tuple[int, int], ...]
    #: Heads on this rank, of queries, keys and values.
    heads: int
    #: Width of a head's query and key, and of its value.
    key_dim: int
    value_dim: int
    #: Types of the products' operands, and of the cache.
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    name: str = "latent attention"
    role: Role = Role.ATTENTION

    kind = "attention"
    reads = BatchQuantity.PROMPTS
    rows_field = SEGMENTS

    @property
    def pairs(self) -> float:
        """Query-key pairs a head: q·kv, less q²/2."""
        return sum(q * kv - q * q / 2.0 for q, kv in self.segments)

    @property
    def flops(self) -> float:
        """2·pairs·heads·(key_dim + value_dim)."""
        return 2.0 * self.pairs * self.heads * (self.key_dim + self.value_dim)

    @property
    def hbm_bytes(self) -> float:
        """Queries, keys and values read once, the output written in bf16."""
        element, heads = element_bytes(self.dtype), self.heads
        queries = sum(q for q, _ in self.segments) * heads * (self.key_dim * element + 2.0 * self.value_dim)
        return queries + sum(kv for _, kv in self.segments) * heads * (self.key_dim + self.value_dim) * element

    @property
    def shape(self) -> str:
        pieces = first_three([f"{q}×{kv}" for q, kv in self.segments])
        return f"{pieces} causal, {self.heads} heads of {self.key_dim}/{self.value_dim} {self.dtype}"


@quick
@dataclass(frozen=True, slots=True)
class LatentDecode(CachedContext, Operator):
    """Attention of ``queries`` tokens a sequence over its cached latents, in one kernel call.

    All query heads share one key (latent and rotary part) and one value (the latent) a token.
    """

    #: ``(context tokens, sequences with that context)``.
    rows: tuple[tuple[int, int], ...]
    #: Query heads on this rank.
    heads: int
    #: Widths of a cached token's latent and rotary key.
    latent_dim: int = 512
    rope_dim: int = 64
    #: Types of the products' operands, and of the cache.
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    #: Query tokens a sequence: 1 in decode, drafts + 1 in verify steps.
    queries: int = 1
    name: str = "latent decode attention"
    role: Role = Role.ATTENTION

    kind = "attention"

    @property
    def flops(self) -> float:
        """2·(2·latent_dim + rope_dim) for each query, head and context token."""
        return 2.0 * self.queries * self.context * self.heads * (2.0 * self.latent_dim + self.rope_dim)

    @property
    def hbm_bytes(self) -> float:
        """Latents read once; queries read and outputs written in bf16."""
        element, wide = element_bytes(self.dtype), self.latent_dim + self.rope_dim
        queries = self.queries * self.batch * self.heads * (wide * element + 2.0 * self.latent_dim)
        return queries + self.cold_bytes

    @property
    def cold_bytes(self) -> float:
        """Bytes of the latents."""
        return self.context * (self.latent_dim + self.rope_dim) * element_bytes(self.kv_dtype)

    @property
    def shape(self) -> str:
        latents = f"latents of {self.latent_dim}+{self.rope_dim} {self.kv_dtype}"
        return f"{self.rows_in_words}, {self.heads} heads over {latents}"


@quick
@dataclass(frozen=True, slots=True)
class AbsorbProduct(Operator):
    """``heads`` products [tokens, k]·[k, n] in one call, each head with its own matrix.

    They project queries into the latent's space before decode attention (k = nope_dim, n = latent_dim), and outputs
    back to values after it (k = latent_dim, n = value_dim). ``weights`` is the type of the attention's other products;
    some engines multiply these in it too.
    """

    tokens: int
    heads: int
    n: int
    k: int
    dtype: str = "bf16"
    name: str = "absorb"
    role: Role = Role.LATENT_KEYS_VALUES
    weights: str = ""

    kind = "gemm"
    reads = BatchQuantity.TOKENS
    reads_contexts = False

    @property
    def flops(self) -> float:
        """2·heads·tokens·n·k."""
        return 2.0 * self.heads * self.tokens * self.n * self.k

    @property
    def hbm_bytes(self) -> float:
        """Both operands read once, the result written in bf16."""
        element = element_bytes(self.dtype)
        return self.heads * ((self.tokens * self.k + self.n * self.k) * element + 2.0 * self.tokens * self.n)

    @property
    def cold_bytes(self) -> float:
        """Bytes of the heads' matrices."""
        return self.heads * self.n * self.k * element_bytes(self.dtype)

    @property
    def shape(self) -> str:
        return f"{self.heads}×[{self.tokens}×{self.k}]·[{self.k}×{self.n}] {self.dtype}"
