"""Matrix products: one, equal ones in a call, and the fused kernel of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..base.quick import quick
from .base import Computes, Operator, Role
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
