"""Matrix products: one, equal ones in a call, the fused kernel of experts; and attention, which is two of them: of many
queries, or of one or a few queries a sequence over what a cache keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.quick import quick
from .base import BehindCache, Computes, MemoryBound, Operator, Role, first_of
from .batch import BatchQuantity
from .dtypes import element_bytes


@quick
@dataclass(frozen=True, slots=True)
class Gemm(Operator):
    """C[m, n] = A[m, k] · B[k, n], ``batch`` times.

    ``quantised``: A comes in ``dtype`` from the kernel before; otherwise quantising it is part of a narrow product.
    ``cast_apart``: operators of their own cast what it reads, in both orientations.
    ``weight_dtype``: what B is read in (None: ``dtype``) and widened from on the way, as weight-only kernels do.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    batch: int = 1
    name: str = "gemm"
    quantised: bool = False
    role: Role = Role.OTHER
    computes: Computes = Computes.OUTPUT
    weight_dtype: str | None = None
    cast_apart: bool = False

    kind = "gemm"
    reads = BatchQuantity.TOKENS

    def read_as(self, dtype: str, weight_dtype: str | None) -> Gemm:
        """The same in other types."""
        if type(self) is not Gemm:
            return replace(self, dtype=dtype, weight_dtype=weight_dtype)
        # What replace does, in a third of its time: layers of serving steps are made of these.
        return Gemm(
            self.m, self.n, self.k, dtype, self.batch, self.name, self.quantised, self.role, self.computes,
            weight_dtype, self.cast_apart,
        )  # fmt: skip

    def over(self, m: int) -> Gemm:
        """The same of so many rows."""
        if type(self) is not Gemm:
            return replace(self, m=m)
        return Gemm(
            m, self.n, self.k, self.dtype, self.batch, self.name, self.quantised, self.role, self.computes,
            self.weight_dtype, self.cast_apart,
        )  # fmt: skip

    @property
    def flops(self) -> float:
        """2·m·n·k a product."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def hbm_bytes(self) -> float:
        """A and B read once in their types, C written once in bf16."""
        entering = self.m * self.k * element_bytes(self.dtype)
        return self.cold_bytes + self.batch * (entering + 2.0 * self.m * self.n)

    @property
    def cold_bytes(self) -> float:
        """B."""
        return self.batch * self.n * self.k * element_bytes(self.weight_dtype or self.dtype)

    @property
    def shape(self) -> str:
        types = self.dtype if self.weight_dtype is None else f"{self.dtype}·{self.weight_dtype}"
        return f"{self.batch}×" * (self.batch > 1) + f"[{self.m}×{self.k}]·[{self.k}×{self.n}] {types}"


@quick
@dataclass(frozen=True, slots=True)
class GroupedGemm(Gemm):
    """``batch`` products of one call, each of ``m`` rows with weights of its own: the routed experts of a rank."""

    @property
    def local_experts(self) -> int:
        return self.batch if self.role.routed else 0


@quick
@dataclass(frozen=True, slots=True)
class FusedMoE(Operator):
    """All products of the routed experts of a rank and what is between, in one call (inference)."""

    #: Tokens that come here, whichever ranks they are of.
    tokens: int
    #: Width of the residual stream, and columns of an expert on this rank.
    hidden: int
    expert_ffn: int
    #: Experts on this rank, and how many a token chooses of those of all ranks.
    experts: int
    topk: int
    dtype: str = "bf16"
    #: What weights are kept in (None: ``dtype``, the type of activations).
    weight_dtype: str | None = None
    name: str = "fused experts"
    role: Role = Role.EXPERTS
    #: Gate, up and down instead of up and down.
    gated: bool = True
    #: Pairs of a token and one of its experts that meet this rank's experts; None: all choices fall here.
    pairs: float | None = None
    #: Distinct experts of this rank that any token chose; None: as many as random choices touch.
    touched: float | None = None
    #: Tokens were sent here for the experts that they chose here: their other choices do not come along.
    sent: bool = False

    kind = "gemm"

    @property
    def rows(self) -> float:
        """Pairs of a token and an expert here."""
        return float(self.tokens * self.topk) if self.pairs is None else self.pairs

    @property
    def experts_read(self) -> float:
        """Distinct experts of this rank whose weights are read: E·(1 − (1 − 1/E)^rows) of random choices.

        Where all choices fall here, at least those of one token, which are distinct.
        """
        if self.touched is not None:
            return self.touched
        random = self.experts * (1.0 - float((1.0 - 1.0 / self.experts) ** self.rows))
        return max(random, float(min(self.topk, self.experts))) if self.pairs is None else random

    @property
    def flops(self) -> float:
        """2·3·hidden·expert_ffn for each pair (2·2 without a gate)."""
        return 2.0 * self.matrices * self.rows * self.hidden * self.expert_ffn

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def hbm_bytes(self) -> float:
        """Weights of the experts that any token chose, tokens read and written once."""
        moved = min(float(self.tokens), self.rows) * self.hidden * (element_bytes(self.dtype) + 2.0)
        return self.cold_bytes + moved

    @property
    def cold_bytes(self) -> float:
        """Weights of the experts that any token chose."""
        weights = self.experts_read * self.matrices * self.hidden * self.expert_ffn
        return weights * element_bytes(self.weight_dtype or self.dtype)

    @property
    def shape(self) -> str:
        sizes = f"{self.tokens} tokens, {self.topk} of {self.experts} experts [{self.hidden}×{self.expert_ffn}]"
        return f"{sizes} {self.weight_dtype or self.dtype}"


# --- attention ------------------------------------------------------------------------------------------------

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
    reads = BatchQuantity.PROMPTS

    @property
    def computes(self) -> Computes:
        return Computes.OUTPUT if self.direction == "forward" else Computes.INPUT_GRADIENT

    @property
    def pairs(self) -> float:
        """Query-key pairs a head: q·kv, less the causal triangle q²/2."""
        # Lists: generators take half as long again, and steps that serve are priced by the thousand.
        return sum([q * kv - (q * q / 2.0 if self.causal else 0.0) for q, kv in self.segments])

    @property
    def flops(self) -> float:
        """4·pairs·heads·head_dim forward, 10 backward (Dao 2023, FlashAttention-2, §4.1)."""
        factor = 4.0 if self.direction == "forward" else 10.0
        return factor * self.pairs * self.heads * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """Q, K, V read once and the output written once (backward: gradients as well)."""
        element = element_bytes(self.dtype)
        queries = sum([q for q, _ in self.segments]) * self.heads * self.head_dim
        context = sum([kv for _, kv in self.segments]) * self.kv_heads * self.head_dim
        factor = 1.0 if self.direction == "forward" else 2.5
        return factor * (queries * (element + 2.0) + 2.0 * context * element_bytes(self.kv_dtype or self.dtype))

    @property
    def shape(self) -> str:
        pieces, mask = first_of([f"{q}×{kv}" for q, kv in self.segments]), "causal" if self.causal else "full"
        return f"{pieces} {mask}, {self.heads}/{self.kv_heads} heads of {self.head_dim} {self.dtype}"

    @property
    def at_best(self) -> tuple[Operator, ...]:
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
class DecodeAttention(BehindCache, Operator):
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
