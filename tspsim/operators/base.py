"""What all operators have, and what one can be in its layer.

Kernels that mostly move bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

from ..base.quick import quick
from .batch import BatchQuantity


class Sharding(StrEnum):
    """How tensor-parallel ranks divide a product's weights W[k, n]: by columns (n), by rows (k), or not at all."""

    COLUMNS = "columns"
    ROWS = "rows"
    REPLICATED = "replicated"


class Role(StrEnum):
    """What an operator is in its layer."""

    #: How its weights are divided; REPLICATED of what has none.
    sharding: Sharding
    #: Whether it multiplies the routed experts of a rank.
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
    OTHER = "other"


class Computes(StrEnum):
    """What an operator makes: of a product Y = X·W, dX = dY·Wᵀ or dW = Xᵀ·dY."""

    OUTPUT = "output"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"


class Operator(ABC):
    """One kernel call: a base for frozen (hashable) dataclasses."""

    __slots__ = ("_hash",)
    #: The family that breakdowns and ranges count it to: ``gemm``, ``attention``, ``memory_bound``, or one's own.
    kind: ClassVar[str] = "other"
    #: In attention of a serving step: what its size depends on, unless the kind of attention says otherwise
    #: (:meth:`tspsim.model.attention.base.AttentionKind.reads`).
    reads: ClassVar[BatchQuantity] = BatchQuantity.ROWS
    #: For display alone.
    name: str = "operator"
    #: What it is in the layer.
    role: Role = Role.OTHER
    #: Operand type on the matrix units; empty where it does not use them.
    dtype: str = ""

    @property
    def family(self) -> str:
        """What a measured step tells apart: the class, and of kernels that move bytes which one it is."""
        op = getattr(self, "op", "")
        return f"{type(self).__name__} {op}".strip()

    @property
    def computes(self) -> Computes:
        """What of its role it makes."""
        return Computes.OUTPUT

    @property
    def kernels(self) -> int:
        """Kernels that it is; mostly one."""
        return 1

    @property
    @abstractmethod
    def flops(self) -> float:
        """Floating-point operations."""

    @property
    @abstractmethod
    def hbm_bytes(self) -> float:
        """Bytes that must move to and from HBM."""

    @property
    def cold_bytes(self) -> float:
        """Of those, what no cache of a device holds from one step of a model to the next: weights, and the caches of
        sequences. A step that serves takes at least the time that HBM needs for it."""
        return 0.0

    @property
    @abstractmethod
    def shape(self) -> str:
        """Its sizes, for display."""

    @property
    def local_experts(self) -> int:
        """Experts of this rank that it multiplies one by one where a framework has no grouped product; mostly none."""
        return 0

    @property
    def at_best(self) -> tuple[Operator, ...]:
        """Calls of which one does as many FLOPs a second as any call that does the same work for other queries: how
        fast it can be, however tokens and heads are cut. None where nobody knows."""
        return ()

    def without_flash(self) -> tuple[Operator, ...]:
        """The kernels of a framework that writes attention's scores out."""
        return (self,)

    def unfused(self, traffic: float) -> Operator:
        """The same where eager kernels move ``traffic`` times a compiler's bytes."""
        return self


def first_of(pieces: Sequence[str]) -> str:
    """The first three, and how many more."""
    return " + ".join(pieces[:3]) + (f" + {len(pieces) - 3} more" if len(pieces) > 3 else "")


class BehindCache:
    """What attention of a few queries a sequence over a cache has: ``rows`` of (context tokens, sequences)."""

    __slots__ = ()
    reads: ClassVar[BatchQuantity] = BatchQuantity.DECODING
    rows: tuple[tuple[int, int], ...]
    queries: int

    @property
    def batch(self) -> int:
        """Sequences."""
        return sum(sequences for _, sequences in self.rows)

    @property
    def context(self) -> int:
        """Tokens of all contexts."""
        return sum(tokens * sequences for tokens, sequences in self.rows)

    @property
    def rows_in_words(self) -> str:
        return first_of([f"{sequences}×{self.queries}×{tokens}" for tokens, sequences in self.rows])


# --- kernels that mostly move bytes ---------------------------------------------------------------------------

#: Memory-bound kernels of a layer that a compiler fuses and an eager framework runs as several.
FUSED = frozenset({"add_rmsnorm", "rope", "qk_norm_rope", "swiglu", "add", "softmax"})
#: All that operators here name.
MEMORY_BOUND_OPS = FUSED | {"rmsnorm", "copy", "cache_write", "adamw"}


@quick
@dataclass(frozen=True, slots=True)
class MemoryBound(Operator):
    """A kernel whose time is the bytes it reads and writes: norm, rope, residual add, activation, lookup, copy.

    ``op`` names the kernel family (``copy``, ``add``, ``rmsnorm``, ``add_rmsnorm``, ``swiglu``, ``rope``,
    ``qk_norm_rope`` …);
    ``rows`` is its number of tokens where that matters to the kernel.
    """

    op: str
    size_bytes: float
    rows: int = 0
    flops_count: float = 0.0
    name: str = "memory"
    role: Role = Role.OTHER
    computes: Computes = Computes.OUTPUT

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
    """The kernels that choose the experts of ``tokens`` tokens among ``experts``, or the gradient of that.

    ``scores`` of them read and write a number in fp32 for every token and expert, ``few`` at most one for every choice,
    and ``searches`` look for the best scores of a token (``torch.topk``). ``token_s``: of a kernel that takes as long
    for a token whatever it moves, such as one that counts the tokens for every rank.
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
        """None of a matrix unit."""
        return 0.0

    @property
    def hbm_bytes(self) -> float:
        """Scores that are read and written, and those that are searched."""
        return 4.0 * self.tokens * self.experts * (2 * self.scores + self.searches)

    @property
    def shape(self) -> str:
        return f"{self.tokens} × {self.experts}, {self.kernels} kernels"
