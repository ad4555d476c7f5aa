"""Matrix products: one, equal ones in a call, and the fused kernel of experts."""

from __future__ import annotations

from dataclasses import dataclass

from .base import DTYPE_BYTES, Computes, Operator, Role


@dataclass(frozen=True, slots=True)
class Gemm(Operator):
    """C[m, n] = A[m, k] · B[k, n], ``batch`` times.

    ``quantised``: A comes in ``dtype`` from the kernel before; otherwise quantising it is part of a narrow product.
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

    kind = "gemm"

    @property
    def flops(self) -> float:
        """2·m·n·k a product."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def hbm_bytes(self) -> float:
        """A and B read once in the operand's type, C written once in bf16."""
        element = DTYPE_BYTES[self.dtype]
        return self.batch * ((self.m * self.k + self.n * self.k) * element + 2.0 * self.m * self.n)

    @property
    def shape(self) -> str:
        return f"{self.batch}×" * (self.batch > 1) + f"[{self.m}×{self.k}]·[{self.k}×{self.n}] {self.dtype}"


@dataclass(frozen=True, slots=True)
class GroupedGemm(Gemm):
    """``batch`` products of one call, each of ``m`` rows with weights of its own: the routed experts of a rank."""

    @property
    def local_experts(self) -> int:
        return self.batch if self.role.routed else 0


@dataclass(frozen=True, slots=True)
class FusedMoE(Operator):
    """Both products of all routed experts of a gated layer and what is between, in one call (inference).

    ``tokens`` tokens choose ``topk`` of ``experts`` at random; weights are kept as ``weight_dtype`` (None: ``dtype``).
    """

    tokens: int
    hidden: int
    expert_ffn: int
    experts: int
    topk: int
    dtype: str = "bf16"
    weight_dtype: str | None = None
    name: str = "fused experts"
    role: Role = Role.EXPERTS

    kind = "gemm"

    @property
    def flops(self) -> float:
        """2·3·hidden·expert_ffn for each token and each of its experts."""
        return 6.0 * self.tokens * self.topk * self.hidden * self.expert_ffn

    @property
    def hbm_bytes(self) -> float:
        """Weights of the experts that any token chose, tokens read and written once."""
        touched = self.experts * (1.0 - (1.0 - self.topk / self.experts) ** self.tokens)
        weights = touched * 3.0 * self.hidden * self.expert_ffn * DTYPE_BYTES[self.weight_dtype or self.dtype]
        return weights + self.tokens * self.hidden * (DTYPE_BYTES[self.dtype] + 2.0)

    @property
    def shape(self) -> str:
        sizes = f"{self.tokens} tokens, {self.topk} of {self.experts} experts [{self.hidden}×{self.expert_ffn}]"
        return f"{sizes} {self.weight_dtype or self.dtype}"
