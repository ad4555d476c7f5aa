"""The routed experts that stand on one rank, as operators.

Letters: E experts, k of them a token, R rows (assignments of tokens to experts) that meet the rank's experts, f_e
columns of an expert on this rank. Experts of a rank are multiplied in one grouped product of equal parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.memo import once
from ..operators import Computes, FusedMoE, Gemm, GroupedGemm, MemoryBound, Role, element_bytes
from .architecture import Architecture
from .parts import Experts

#: Bytes of a token and an expert that the kernel moves which chooses.
CHOICE_BYTES = 12.0


@dataclass(frozen=True)
class RoutedShard:
    """``local`` experts on a rank, each with ``rows`` rows, their columns cut into ``columns`` parts."""

    model: Architecture
    #: Experts whose weights, or a part of whose columns, are here.
    local: int
    #: Rows that one of them multiplies.
    rows: int
    #: Ranks that one expert's columns are spread over.
    columns: int = 1
    dtype: str = "bf16"
    activation_bytes: float = 2.0
    #: What a served model keeps its experts in; None: ``dtype``, the type they are multiplied in.
    weight_dtype: str | None = None

    @once
    def experts(self) -> Experts:
        assert self.model.experts is not None
        return self.model.experts

    @once
    def all_rows(self) -> int:
        """R."""
        return self.local * self.rows

    @once
    def width(self) -> int:
        return self.experts.width // self.columns

    def router(self, tokens: int) -> Gemm:
        """Scores of all experts; never in a narrow type (DeepSeek-V3, arXiv:2412.19437, §3.3.1: gating keeps its
        precision, as checkpoints in fp8 keep its weights)."""
        kept = self.weight_dtype is None and element_bytes(self.dtype) >= element_bytes("bf16")
        dtype = self.dtype if kept else "bf16"
        return Gemm(tokens, self.experts.count, self.model.hidden, dtype, name="router", role=Role.ROUTER)

    def fused(
        self, tokens: int, pairs: float | None = None, touched: float | None = None, *, sent: bool = False
    ) -> FusedMoE:
        """All of it in a serving engine's one kernel: choice, order, products and sum; ``pairs`` of a token and one of
        its experts that meet this rank's, ``touched`` experts of it (None: those of random choices). ``sent``: tokens
        come for their experts here alone."""
        experts, kept = self.experts, self.weight_dtype
        return FusedMoE(
            tokens, self.model.hidden, self.width, self.local, experts.topk, self.dtype,
            None if kept == self.dtype else kept, gated=self.model.gated, pairs=pairs, touched=touched, sent=sent,
        )  # fmt: skip

    def choose(self, tokens: int) -> MemoryBound:
        """Scores to the chosen experts and their weights: the fp32 scores are read twice and written once."""
        size = CHOICE_BYTES * tokens * self.experts.count
        return MemoryBound("softmax", size, tokens, name="choose experts", role=Role.EXPERT_CHOICE)

    def copy(
        self, rows: float, name: str, computes: Computes = Computes.OUTPUT, element_bytes: float | None = None
    ) -> MemoryBound:
        """Rows of the residual stream put in another order: read and written, in ``element_bytes`` an element (None:
        an activation's)."""
        size = 2.0 * rows * self.model.hidden * (element_bytes or self.activation_bytes)
        return MemoryBound("copy", size, round(rows), name=name, role=Role.EXPERT_ROWS, computes=computes)

    def cast(self, rows: float, name: str, element_bytes: float) -> MemoryBound:
        """Rows read as they are and written in ``element_bytes`` an element."""
        size = rows * self.model.hidden * (self.activation_bytes + element_bytes)
        return MemoryBound("copy", size, round(rows), name=name, role=Role.EXPERT_CAST)

    def sum_rows(self, rows: float, tokens: int) -> MemoryBound:
        """Weighted sum of ``rows`` into ``tokens`` of them."""
        size = (rows + tokens) * self.model.hidden * self.activation_bytes
        return MemoryBound("add", size, tokens, name="sum of experts", role=Role.EXPERT_SUM)

    def gate_up(self) -> GroupedGemm:
        columns = self.width * (2 if self.model.gated else 1)
        return self._product(columns, self.model.hidden, "experts' gate and up", Role.EXPERTS_GATE_UP)

    def activation(self) -> MemoryBound:
        return self._between(3.0 if self.model.gated else 2.0, "experts' activation")

    def activation_backward(self) -> MemoryBound:
        return self._between(5.0 if self.model.gated else 3.0, "experts' activation backward", Computes.INPUT_GRADIENT)

    def down(self) -> GroupedGemm:
        return self._product(self.model.hidden, self.width, "experts' down projection", Role.EXPERTS_DOWN)

    def _product(self, n: int, k: int, name: str, role: Role) -> GroupedGemm:
        return GroupedGemm(self.rows, n, k, self.dtype, self.local, name=name, role=role)

    def _between(self, moved: float, name: str, computes: Computes = Computes.OUTPUT) -> MemoryBound:
        size, role = moved * self.all_rows * self.width * self.activation_bytes, Role.EXPERTS_ACTIVATION
        return MemoryBound("swiglu", size, self.all_rows, name=name, role=role, computes=computes)
