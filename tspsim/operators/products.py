"""Matrix products: plain, batched, grouped by experts, and the fused MoE kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.quick import quick
from .base import Computes, Operator, Role
from .dtypes import element_bytes


@quick
@dataclass(frozen=True, slots=True)
class Gemm(Operator):
    """C[m, n] = A[m, k] · B[k, n], ``batch`` times.

    ``quantised``: the kernel before writes A in ``dtype``; otherwise quantising A is part of a narrow product.
    ``weight_dtype``: type that B is read in and widened from, as in weight-only kernels (None: ``dtype``).
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

    kind = "gemm"

    def read_as(self, dtype: str, weight_dtype: str | None) -> Gemm:
        """The same product in other types."""
        if type(self) is not Gemm:
            return replace(self, dtype=dtype, weight_dtype=weight_dtype)
        # A third of the time of replace(): layers of serving steps consist of these products.
        return Gemm(
            self.m, self.n, self.k, dtype, self.batch, self.name, self.quantised, self.role, self.computes, weight_dtype
        )

    def over(self, m: int) -> Gemm:
        """The same product with ``m`` rows."""
        if type(self) is not Gemm:
            return replace(self, m=m)
        return Gemm(
            m, self.n, self.k, self.dtype, self.batch, self.name, self.quantised, self.role, self.computes,
            self.weight_dtype,
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
