"""Matrix products (plain, batched, grouped by experts, fused MoE), and attention: of many queries in prefill and
training, and of few queries a sequence over a KV cache in decode."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.quick import quick
from .base import CachedContext, Computes, MemoryBound, Operator, Role, first_three
from .batch import SEGMENTS, BatchQuantity
from .dtypes import element_bytes


@quick
@dataclass(frozen=True, slots=True)
class Gemm(Operator):
    """C[m, n] = A[m, k] · B[k, n], ``batch`` times.

    ``quantised``: the kernel before writes A in ``dtype``; otherwise quantising A is part of a narrow product.
    ``cast_apart``: other operators cast its operands, in both orientations.
    ``weight_dtype``: type that B is read in and widened from, as in weight-only kernels (None: ``dtype``).
    ``joins``: linear layers of the model of which it is one product; a framework that casts does so for each.
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
    joins: int = 1

    kind = "gemm"
    reads = BatchQuantity.TOKENS
    of_library = True

    def read_as(self, dtype: str, weight_dtype: str | None) -> Gemm:
        """The same product in other types."""
        if type(self) is not Gemm:
            return replace(self, dtype=dtype, weight_dtype=weight_dtype)
        # A third of the time of replace(): layers of serving steps consist of these products.
        return Gemm(
            self.m, self.n, self.k, dtype, self.batch, self.name, self.quantised, self.role, self.computes,
            weight_dtype, self.cast_apart, self.joins,
        )  # fmt: skip

    def over(self, m: int) -> Gemm:
        """The same product with ``m`` rows."""
        if type(self) is not Gemm:
            return replace(self, m=m)
        return Gemm(
            m, self.n, self.k, self.dtype, self.batch, self.name, self.quantised, self.role, self.computes,
            self.weight_dtype, self.cast_apart, self.joins,
        )  # fmt: skip

    @property
    def flops(self) -> float:
        """2·batch·m·n·k."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def hbm_bytes(self) -> float:
        """A and B read once in their types, C written once in bf16."""
        entering = self.m * self.k * element_bytes(self.dtype)
        return self.cold_bytes + self.batch * (entering + 2.0 * self.m * self.n)

    @property
    def cold_bytes(self) -> float:
        """Bytes of B."""
        return self.batch * self.n * self.k * element_bytes(self.weight_dtype or self.dtype)

    @property
    def shape(self) -> str:
        types = self.dtype if self.weight_dtype is None else f"{self.dtype}·{self.weight_dtype}"
        return f"{self.batch}×" * (self.batch > 1) + f"[{self.m}×{self.k}]·[{self.k}×{self.n}] {types}"


@quick
@dataclass(frozen=True, slots=True)
class GroupedGemm(Gemm):
    """``batch`` products in one call, each of ``m`` rows with its own weights: the routed experts of a rank."""

    @property
    def local_experts(self) -> int:
        return self.batch if self.role.routed else 0


@quick
@dataclass(frozen=True, slots=True)
class FusedMoE(Operator):
    """The fused MoE kernels of a serving engine in one call: all products of a rank's routed experts, and what lies
    between them."""

    #: Tokens that reach this rank, from all ranks.
    tokens: int
    #: Width of the residual stream, and columns of an expert on this rank.
    hidden: int
    expert_ffn: int
    #: Experts on this rank; experts a token chooses among those of all ranks.
    experts: int
    topk: int
    dtype: str = "bf16"
    #: Type of the stored weights (None: ``dtype``, the type of activations).
    weight_dtype: str | None = None
    name: str = "fused experts"
    role: Role = Role.EXPERTS
    #: Experts have gate, up and down instead of up and down.
    gated: bool = True
    #: (token, expert) pairs of this rank's experts; None: all ``topk`` choices of every token.
    pairs: float | None = None
    #: Distinct experts of this rank that any token chose; None: the expectation for random choices.
    touched: float | None = None
    #: Tokens were dispatched to this rank: they carry only the choices that fall on its experts.
    sent: bool = False
    #: How they came: ``contiguous`` without places kept for every expert, so that a kernel orders rows before the
    #: products; ``masked`` in places kept for every expert, of which products read those that are filled (DeepGEMM's
    #: words). Empty: neither.
    layout: str = ""

    kind = "gemm"

    @property
    def rows(self) -> float:
        """(token, expert) pairs of this rank's experts."""
        return float(self.tokens * self.topk) if self.pairs is None else self.pairs

    @property
    def experts_read(self) -> float:
        """Distinct experts of this rank whose weights are read; for random choices E·(1 − (1 − 1/E)^rows).

        If all choices fall on this rank, at least ``topk``: one token's choices are distinct.
        """
        if self.touched is not None:
            return self.touched
        random = self.experts * (1.0 - float((1.0 - 1.0 / self.experts) ** self.rows))
        return max(random, float(min(self.topk, self.experts))) if self.pairs is None else random

    @property
    def flops(self) -> float:
        """6·hidden·expert_ffn a pair, or 4·hidden·expert_ffn without a gate."""
        return 2.0 * self.matrices * self.rows * self.hidden * self.expert_ffn

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def hbm_bytes(self) -> float:
        """Weights of the experts that any token chose; tokens read once, and written once in bf16."""
        moved = min(float(self.tokens), self.rows) * self.hidden * (element_bytes(self.dtype) + 2.0)
        return self.cold_bytes + moved

    @property
    def cold_bytes(self) -> float:
        """Bytes of the weights of the experts that any token chose."""
        weights = self.experts_read * self.matrices * self.hidden * self.expert_ffn
        return weights * element_bytes(self.weight_dtype or self.dtype)

    @property
    def shape(self) -> str:
        sizes = f"{self.tokens} tokens, {self.topk} of {self.experts} experts [{self.hidden}×{self.expert_ffn}]"
        return f"{sizes} {self.weight_dtype or self.dtype}"


# --- attention ------------------------------------------------------------------------------------------------

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
    reads = BatchQuantity.PROMPTS
    rows_field = SEGMENTS

    @property
    def computes(self) -> Computes:
        return Computes.OUTPUT if self.direction == "forward" else Computes.INPUT_GRADIENT

    @property
    def pairs(self) -> float:
        """Query-key pairs a head: q·kv, less q²/2 under a causal mask."""
        # Lists, because generators take 1.5 times as long, and serving steps are priced by the thousand.
        return sum([q * kv - (q * q / 2.0 if self.causal else 0.0) for q, kv in self.segments])

    @property
    def flops(self) -> float:
        """4·pairs·heads·head_dim forward, 10·pairs·heads·head_dim backward (Dao 2023, FlashAttention-2, §4.1)."""
        factor = 4.0 if self.direction == "forward" else 10.0
        return factor * self.pairs * self.heads * self.head_dim

    @property
    def hbm_bytes(self) -> float:
        """Q, K and V read once, the output written once in bf16; backward: 2.5 times that, for the gradients."""
        element = element_bytes(self.dtype)
        queries = sum([q for q, _ in self.segments]) * self.heads * self.head_dim
        context = sum([kv for _, kv in self.segments]) * self.kv_heads * self.head_dim
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

    def without_flash(
        self, score_bytes: tuple[float, float] | None = None, head_bytes: tuple[float, float] = (0.0, 0.0)
    ) -> tuple[Operator, ...]:
        """Batched products of all scores, masked ones included, and the kernels between them, of ``score_bytes`` a
        score; and copies around them, of ``head_bytes`` an element of all query heads. Both: forward, backward."""
        kernels: list[Operator] = []
        between = SCORE_BYTES[self.direction]
        if score_bytes is not None:
            between = {"softmax": score_bytes[self.direction != "forward"]}
        for queries, context in dict.fromkeys(self.segments):
            batch = self.heads * self.segments.count((queries, context))
            scores, outputs = (queries, context, self.head_dim), (queries, self.head_dim, context)
            shapes = (scores, outputs) if self.direction == "forward" else (scores, outputs, outputs, outputs)
            kernels += [Gemm(m, n, k, self.dtype, batch, self.name, computes=self.computes) for m, n, k in shapes]
            for op, moved in between.items():
                size = moved * batch * queries * context
                kernels.append(MemoryBound(op, size, batch * queries, name=f"{op} of scores"))
        if moved := head_bytes[self.direction != "forward"]:
            rows = sum([queries for queries, _ in self.segments])
            size = moved * rows * self.heads * self.head_dim
            kernels.append(MemoryBound("copy", size, rows, name="copies of heads", computes=self.computes))
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
