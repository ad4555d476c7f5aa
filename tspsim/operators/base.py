"""The base class of operators, their roles in a layer, and memory-bound operators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from ..base.quick import quick
from .batch import BatchQuantity, RowField


class Sharding(StrEnum):
    """How tensor-parallel ranks divide a product's weights W[k, n]: by columns (n), by rows (k) or not at all."""

    COLUMNS = "columns"
    ROWS = "rows"
    REPLICATED = "replicated"


class Role(StrEnum):
    """Role of an operator in its layer."""

    #: How tensor parallelism divides its weights; REPLICATED without weights.
    sharding: Sharding
    #: Whether it multiplies routed experts' weights.
    routed: bool

    def __new__(cls, value: str, sharding: Sharding = Sharding.REPLICATED, routed: bool = False) -> Role:
        role = str.__new__(cls, value)
        role._value_ = value
        role.sharding, role.routed = sharding, routed
        return role

    QKV = "qkv", Sharding.COLUMNS
    LATENT_DOWN = "down to latents"
    LATENT_QUERIES = "queries from latent", Sharding.COLUMNS
    LATENT_KEYS_VALUES = "keys and values from latent", Sharding.COLUMNS
    ROPE = "rope"
    ATTENTION = "attention"
    MERGE = "merge of partial attention"
    OUTPUT = "output", Sharding.ROWS
    GATE_UP = "gate and up", Sharding.COLUMNS
    ACTIVATION = "activation"
    DOWN = "down", Sharding.ROWS
    ROUTER = "router"
    EXPERT_CHOICE = "choice of experts"
    EXPERT_CAST = "cast of rows"
    EXPERT_ROWS = "rows of experts"
    EXPERTS_GATE_UP = "experts' gate and up", Sharding.COLUMNS, True
    EXPERTS_ACTIVATION = "experts' activation"
    EXPERTS_DOWN = "experts' down", Sharding.ROWS, True
    EXPERTS = "experts", Sharding.COLUMNS, True
    EXPERT_SUM = "sum of experts"
    NORM = "norm"
    EMBEDDING = "embedding"
    HEAD = "head", Sharding.COLUMNS
    LOSS = "loss"
    ADAPTER = "adapter"
    SCALE = "scale"
    OTHER = "other"


class Computes(StrEnum):
    """Result of an operator; of a product: Y = X·W, dX = dY·Wᵀ or dW = Xᵀ·dY."""

    OUTPUT = "output"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"


class Operator(ABC):
    """One kernel call. Subclasses are frozen (hashable) dataclasses."""

    __slots__ = ("_hash",)
    #: Group in breakdowns and ranges: ``gemm``, ``attention``, ``memory_bound``, or a new one.
    kind: ClassVar[str] = "other"
    #: In attention of a serving step: what its size depends on, unless the kind of attention says otherwise
    #: (:meth:`tspsim.model.attention.base.AttentionKind.reads`).
    reads: ClassVar[BatchQuantity] = BatchQuantity.ROWS
    #: The field that holds rows of the pass, of a kernel whose size depends on all rows, or on prompts that no window
    #: bends; None: no field does.
    rows_field: ClassVar[RowField | None] = None
    #: Of a kernel whose size depends on sequences that decode: whether their contexts have a part in it.
    reads_contexts: ClassVar[bool] = True
    #: Name for display; nothing depends on it.
    name: str = "operator"
    #: Role in its layer.
    role: Role = Role.OTHER
    #: Operand type on the matrix units; empty: they are not used.
    dtype: str = ""
    #: Blocks on each multiprocessor, of a grid that is as many and no more, whose blocks take rows in turn; 0: another.
    resident: int = 0
    #: Multiprocessors that its few blocks occupy; 0: all.
    units: int = 0

    @property
    def family(self) -> str:
        """Group of calls that measured steps distinguish: the class, and for memory-bound kernels their ``op``."""
        op = getattr(self, "op", "")
        return f"{type(self).__name__} {op}".strip()

    @property
    def computes(self) -> Computes:
        """Whether the operator computes an output, an input gradient or a weight gradient."""
        return Computes.OUTPUT

    @property
    def kernels(self) -> int:
        """Number of kernels; mostly 1."""
        return 1

    @property
    @abstractmethod
    def flops(self) -> float:
        """Floating-point operations."""

    @property
    @abstractmethod
    def hbm_bytes(self) -> float:
        """Bytes that must move between HBM and the device."""

    @property
    def cold_bytes(self) -> float:
        """The part of ``hbm_bytes`` that no L2 holds from one step to the next: weights, KV caches and states. A
        serving step takes at least the time that HBM needs for them."""
        return 0.0

    @property
    @abstractmethod
    def shape(self) -> str:
        """Sizes for display."""

    @property
    def local_experts(self) -> int:
        """Local experts that a framework without grouped products multiplies one by one; 0 for other operators."""
        return 0

    @property
    def peak_calls(self) -> tuple[Operator, ...]:
        """Large calls of this kind, one of which reaches the highest FLOP/s of any split of tokens and heads; empty:
        unknown."""
        return ()

    def without_flash(
        self, score_bytes: tuple[float, float] | None = None, head_bytes: tuple[float, float] = (0.0, 0.0)
    ) -> tuple[Operator, ...]:
        """Kernels of a framework that writes attention scores to HBM, and moves ``score_bytes`` a score between its
        products and ``head_bytes`` an element of heads around them, forward and backward; other operators:
        themselves."""
        return (self,)

    def unfused(self, traffic: float) -> Operator:
        """The operator in an eager framework, whose kernels move ``traffic`` times the bytes of fused ones."""
        return self


def first_three(pieces: Sequence[str]) -> str:
    """The first three pieces, and the number of further ones."""
    return " + ".join(pieces[:3]) + (f" + {len(pieces) - 3} more" if len(pieces) > 3 else "")


class CachedContext:
    """Sums over the rows of attention that reads a cache: ``rows`` are (context tokens, sequences), ``queries`` are
    query tokens a sequence."""

    __slots__ = ()
    reads: ClassVar[BatchQuantity] = BatchQuantity.DECODING
    rows: tuple[tuple[int, int], ...]
    queries: int

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return sum(sequences for _, sequences in self.rows)

    @property
    def context(self) -> int:
        """Context tokens of all sequences together."""
        return sum(tokens * sequences for tokens, sequences in self.rows)

    @property
    def rows_in_words(self) -> str:
        return first_three([f"{sequences}×{self.queries}×{tokens}" for tokens, sequences in self.rows])


# --- memory-bound kernels -------------------------------------------------------------------------------------

#: Ops that a compiler fuses into one kernel and an eager framework runs as several.
FUSED = frozenset({"add_rmsnorm", "rope", "qk_norm_rope", "swiglu", "add", "softmax"})
#: All ops of memory-bound operators in this package.
MEMORY_BOUND_OPS = FUSED | {"rmsnorm", "copy", "cast", "cast_back", "cache_write", "adamw"}


@quick
@dataclass(frozen=True, slots=True)
class MemoryBound(Operator):
    """A kernel whose time is that of its bytes: norm, rope, residual add, activation, lookup, copy."""

    #: Kernel family: one of :data:`MEMORY_BOUND_OPS`.
    op: str
    #: Bytes read and written.
    size_bytes: float
    #: Tokens; 0: they do not affect the kernel.
    rows: int = 0
    #: Floating-point operations.
    flops_count: float = 0.0
    name: str = "memory"
    role: Role = Role.OTHER
    computes: Computes = Computes.OUTPUT
    #: Its time is that of the op's own kernel and not of a copy.
    resident: int = 0
    #: Few blocks move bytes at their multiprocessors' share of the device's rate.
    units: int = 0
    #: Its time over that of a copy of its bytes.
    slower: float = 1.0
    #: Kernels among which its bytes are divided, each with a start of its own.
    calls: int = 1

    kind = "memory_bound"
    reads = BatchQuantity.TOKENS

    @property
    def flops(self) -> float:
        return self.flops_count

    @property
    def hbm_bytes(self) -> float:
        return self.size_bytes

    @property
    def shape(self) -> str:
        return f"{self.op}, {self.size_bytes / 1e6:.1f} MB"

    def unfused(self, traffic: float) -> MemoryBound:
        return replace(self, size_bytes=self.size_bytes * traffic) if self.op in FUSED else self


@quick
@dataclass(frozen=True, slots=True)
class ChoiceKernels(Operator):
    """The kernels that choose the experts of ``tokens`` tokens among ``experts``, or of the gradient of that.

    ``scores`` kernels read and write an fp32 number for every token and expert, ``few`` kernels at most one for every
    choice, and ``searches`` kernels select the best scores of a token (``torch.topk``). ``token_s``: seconds a token of
    a kernel that does not depend on bytes, such as one that counts the tokens of every rank; 0: no such kernel.
    """

    tokens: int
    experts: int
    scores: int
    few: int = 0
    searches: int = 0
    token_s: float = 0.0
    name: str = "choose experts"
    role: Role = Role.EXPERT_CHOICE
    computes: Computes = Computes.OUTPUT

    kind = "memory_bound"

    @property
    def kernels(self) -> int:
        return self.scores + self.few + self.searches + (self.token_s > 0.0)

    @property
    def flops(self) -> float:
        """0: matrix units are not used."""
        return 0.0

    @property
    def hbm_bytes(self) -> float:
        """Scores read and written by ``scores`` kernels, and read by ``searches``."""
        return 4.0 * self.tokens * self.experts * (2 * self.scores + self.searches)

    @property
    def shape(self) -> str:
        return f"{self.tokens} × {self.experts}, {self.kernels} kernels"
