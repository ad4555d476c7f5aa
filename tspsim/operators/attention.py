"""Attention in prefill and training (many queries), and in decode (few queries a sequence over a KV cache)."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.quick import quick
from .base import CachedContext, Computes, MemoryBound, Operator, Role, first_three
from .dtypes import element_bytes
from .products import Gemm

#: Bytes a score that the kernels between the two products move, in bf16. Softmax with scale and mask reads a score and
#: writes a probability (backward: reads probability and gradient, writes a gradient). Dropout reads and writes a
#: probability, and writes or reads a mask of one byte.
SCORE_BYTES = {"forward": {"softmax": 4.0, "dropout": 5.0}, "backward": {"softmax": 6.0, "dropout": 5.0}}

#: Context tokens of a call whose start and end hardly count; pieces, and heads, that fill any device.
LONG, MANY = 2**20, 16


@quick
@dataclass(frozen=True, slots=True)
class Attention(Operator):
    """softmax(Q·Kᵀ)·V over ``segments``, in one kernel call."""

    #: ``(query tokens, context tokens)`` of every piece in the call. A causal piece is aligned at its lower right
    #: corner, as in FlashAttention: its last query sees the whole context. A sequence shard in zigzag order is two
    #: segments.
    segments: tuple[tuple[int, int], ...]
    #: Query heads, key/value heads and the width of one, on this rank.
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    dtype: str = "bf16"
    #: ``forward``, or ``backward`` without the forward (five products instead of two).
    direction: str = "forward"
    name: str = "attention"
    role: Role = Role.ATTENTION
    #: Type in which K and V are cached; None: ``dtype``.
    kv_dtype: str | None = None

    kind = "attention"

    @property
    def computes(self) -> Computes:
        return Computes.OUTPUT if self.direction == "forward" else Computes.INPUT_GRADIENT

    @property
    def pairs(self) -> float:
        """Query-key pairs a head: q·kv, less q²/2 under a causal mask."""
        return sum(q * kv - (q * q / 2.0 if self.causal else 0.0) for q, kv in self.segments)

    @property
    def flops(self) -> float:
        """4·pairs·heads·head_dim forward, 10·pairs·heads·head_dim backward (Dao 2023, FlashAttention-2, §4.1)."""
        factor = 4.0 if self.direction == "forward" else 10.0
        return factor * self.pairs * self.heads * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """Q, K and V read once, the output written once in bf16; backward: 2.5 times that, for the gradients."""
        element = element_bytes(self.dtype)
        queries = sum(q for q, _ in self.segments) * self.heads * self.head_dim
        context = sum(kv for _, kv in self.segments) * self.kv_heads * self.head_dim
        factor = 1.0 if self.direction == "forward" else 2.5
        return factor * (queries * (element + 2.0) + 2.0 * context * element_bytes(self.kv_dtype or self.dtype))

    @property
    def shape(self) -> str:
        pieces, mask = first_three([f"{q}×{kv}" for q, kv in self.segments]), "causal" if self.causal else "full"
        return f"{pieces} {mask}, {self.heads}/{self.kv_heads} heads of {self.head_dim} {self.dtype}"

    @property
    def peak_calls(self) -> tuple[Operator, ...]:
        """Calls of many long contexts, so that every compute unit has blocks: with and without a mask, grouped heads
        and not."""
        return tuple(
            Attention(((LONG, LONG),) * MANY, MANY, kv_heads, self.head_dim, causal, self.dtype, self.direction)
            for kv_heads in (MANY // 2, MANY)
            for causal in (False, True)
        )

    def without_flash(self) -> tuple[Operator, ...]:
        """Batched products of all scores, masked ones included, and the kernels between them."""
        kernels: list[Operator] = []
        for queries, context in dict.fromkeys(self.segments):
            batch = self.heads * self.segments.count((queries, context))
            scores, outputs = (queries, context, self.head_dim), (queries, self.head_dim, context)
            shapes = (scores, outputs) if self.direction == "forward" else (scores, outputs, outputs, outputs)
            kernels += [Gemm(m, n, k, self.dtype, batch, self.name, computes=self.computes) for m, n, k in shapes]
            for op, moved in SCORE_BYTES[self.direction].items():
                size = moved * batch * queries * context
                kernels.append(MemoryBound(op, size, batch * queries, name=f"{op} of scores"))
        return tuple(kernels)


@quick
@dataclass(frozen=True, slots=True)
class DecodeAttention(CachedContext, Operator):
    """Attention of ``queries`` tokens a sequence over its cached context, in one kernel call."""

    #: ``(context tokens, sequences with that context)``.
    rows: tuple[tuple[int, int], ...]
    #: Query heads, key/value heads and the width of one, on this rank.
    heads: int
    kv_heads: int
    head_dim: int
    #: Types of the products' operands, and of cached K and V.
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    name: str = "decode attention"
    role: Role = Role.ATTENTION
    #: Query tokens a sequence: 1 in decode, drafts + 1 in verify steps. The context is read once for all of them.
    queries: int = 1

    kind = "attention"

    @property
    def flops(self) -> float:
        """4·heads·head_dim for each query and context token."""
        return 4.0 * self.queries * self.context * self.heads * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """K and V read once, Q read and the output written in bf16."""
        queries = self.queries * self.batch * self.heads * (element_bytes(self.dtype) + 2.0)
        return queries * self.head_dim + self.cold_bytes

    @property
    def cold_bytes(self) -> float:
        """Bytes of K and V."""
        return 2.0 * self.context * self.kv_heads * self.head_dim * element_bytes(self.kv_dtype)

    @property
    def shape(self) -> str:
        heads = f"{self.heads}/{self.kv_heads} heads of {self.head_dim}"
        return f"{self.rows_in_words}, {heads} {self.kv_dtype}"
