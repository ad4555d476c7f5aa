"""Attention of many queries, and of one or a few queries a sequence over what a cache keeps."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.quick import quick
from .base import CachedContext, Computes, MemoryBound, Operator, Role, first_three
from .dtypes import element_bytes
from .products import Gemm

#: Bytes a score that the kernels between the two products move, forward and backward: softmax with scale and mask reads
#: it and writes a probability (backward: reads that, its gradient, writes the score's), dropout another and a mask.
SCORE_BYTES = {"forward": {"softmax": 4.0, "dropout": 5.0}, "backward": {"softmax": 6.0, "dropout": 5.0}}

#: Tokens of a context whose attention hardly feels how it begins and ends, and pieces and heads that fill any device.
LONG, MANY = 2**20, 16


@quick
@dataclass(frozen=True, slots=True)
class Attention(Operator):
    """softmax(Q·Kᵀ)·V over ``segments``, in one kernel call."""

    #: ``(query tokens, context tokens)`` of every piece in the call. With ``causal`` a piece is aligned at its
    #: lower right corner, as FlashAttention does: its last query sees the whole context. A sequence shard in
    #: zigzag order is two segments.
    segments: tuple[tuple[int, int], ...]
    #: Query heads, key/value heads and the width of one, on this rank.
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    dtype: str = "bf16"
    #: ``forward`` or ``backward`` (the backward alone: five products instead of two).
    direction: str = "forward"
    name: str = "attention"
    role: Role = Role.ATTENTION
    #: What K and V are read from a cache in; None: as they are multiplied.
    kv_dtype: str | None = None

    kind = "attention"

    @property
    def computes(self) -> Computes:
        return Computes.OUTPUT if self.direction == "forward" else Computes.INPUT_GRADIENT

    @property
    def pairs(self) -> float:
        """Query-key pairs a head: q·kv, less the causal triangle q²/2."""
        return sum(q * kv - (q * q / 2.0 if self.causal else 0.0) for q, kv in self.segments)

    @property
    def flops(self) -> float:
        """4·pairs·heads·head_dim forward, 10 backward (Dao 2023, FlashAttention-2, §4.1)."""
        factor = 4.0 if self.direction == "forward" else 10.0
        return factor * self.pairs * self.heads * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """Q, K, V read once and the output written once (backward: gradients as well)."""
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
        """Long contexts, so many that every unit always has a block: with and without a mask, heads grouped and not."""
        return tuple(
            Attention(((LONG, LONG),) * MANY, MANY, kv_heads, self.head_dim, causal, self.dtype, self.direction)
            for kv_heads in (MANY // 2, MANY)
            for causal in (False, True)
        )

    def without_flash(self) -> tuple[Operator, ...]:
        """The whole square of scores, masked or not, by a batch of products a head and piece."""
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
    """Attention of ``queries`` tokens a sequence over its context, in one kernel call."""

    #: ``(context tokens, sequences)``: how many sequences of the batch have a context of so many tokens.
    rows: tuple[tuple[int, int], ...]
    #: Query heads, key/value heads and the width of one, on this rank.
    heads: int
    kv_heads: int
    head_dim: int
    #: Types that are multiplied, and that K and V are kept in.
    dtype: str = "bf16"
    kv_dtype: str = "bf16"
    name: str = "decode attention"
    role: Role = Role.ATTENTION
    #: Query tokens a sequence: 1 in decoding, drafts + 1 in verifying. The context is read once for all of them.
    queries: int = 1

    kind = "attention"

    @property
    def flops(self) -> float:
        """4·heads·head_dim a query and token of context."""
        return 4.0 * self.queries * self.context * self.heads * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """K and V read once; Q read and the output written."""
        queries = self.queries * self.batch * self.heads * (element_bytes(self.dtype) + 2.0)
        return queries * self.head_dim + self.cold_bytes

    @property
    def cold_bytes(self) -> float:
        """K and V."""
        return 2.0 * self.context * self.kv_heads * self.head_dim * element_bytes(self.kv_dtype)

    @property
    def shape(self) -> str:
        heads = f"{self.heads}/{self.kv_heads} heads of {self.head_dim}"
        return f"{self.rows_in_words}, {heads} {self.kv_dtype}"
