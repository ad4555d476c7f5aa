"""Operators of the routed experts of one rank.

Letters: E experts, k experts a token, R rows ((token, expert) pairs) of the rank's experts, f_e columns of an expert on
this rank. One grouped product of equal parts multiplies all experts of a rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.memo import once
from ..operators import Computes, FusedMoE, Gemm, GroupedGemm, MemoryBound, Role, element_bytes
from .architecture import Architecture
from .parts import Experts

#: Bytes that the selection kernel moves for each token and expert.
CHOICE_BYTES = 12.0


@dataclass(frozen=True)
class RoutedShard:
    """``local`` experts of a rank with ``rows`` rows each, and 1/``columns`` of their columns."""

    model: Architecture
    #: Experts of which this rank has the weights, or a part of the columns.
    local: int
    #: Rows of each expert.
    rows: int
    #: Ranks over which an expert's columns are divided.
    columns: int = 1
    #: Type of the products' operands.
    dtype: str = "bf16"
    #: Bytes of an activation element.
    activation_bytes: float = 2.0
    #: Type of a served model's stored experts; None: ``dtype``.
    weight_dtype: str | None = None

    @once
    def experts(self) -> Experts:
        assert self.model.experts is not None
        return self.model.experts

    @once
    def all_rows(self) -> int:
        """R: rows of all experts."""
        return self.local * self.rows

    @once
    def width(self) -> int:
        return self.experts.width // self.columns

    def router(self, tokens: int) -> Gemm:
        """Scores of all experts, at least in bf16 (DeepSeek-V3, arXiv:2412.19437, §3.3.1: gating keeps its precision,
        and fp8 checkpoints keep its weights)."""
        kept = self.weight_dtype is None and element_bytes(self.dtype) >= element_bytes("bf16")
        dtype = self.dtype if kept else "bf16"
        return Gemm(tokens, self.experts.count, self.model.hidden, dtype, name="router", role=Role.ROUTER)

    def fused(
        self,
        tokens: int,
        pairs: float | None = None,
        touched: float | None = None,
        *,
        sent: bool = False,
        layout: str = "",
    ) -> FusedMoE:
        """The fused MoE kernels of a serving engine: selection, sorting, products and sum.

        ``pairs`` are (token, expert) pairs of this rank's experts, ``touched`` its distinct experts among them (None:
        of random choices). ``sent``: tokens were dispatched here, without choices of other ranks' experts;
        ``layout``: :attr:`~tspsim.operators.FusedMoE.layout` of their rows.
        """
        experts, kept = self.experts, self.weight_dtype
        return FusedMoE(
            tokens, self.model.hidden, self.width, self.local, experts.topk, self.dtype,
            None if kept == self.dtype else kept, gated=self.model.gated, pairs=pairs, touched=touched, sent=sent,
            layout=layout,
        )  # fmt: skip

    def choose(self, tokens: int) -> MemoryBound:
        """Selection of experts and their weights: the fp32 scores are read twice and written once."""
        size = CHOICE_BYTES * tokens * self.experts.count
        return MemoryBound("softmax", size, tokens, name="choose experts", role=Role.EXPERT_CHOICE)

    def copy(
        self, rows: float, name: str, computes: Computes = Computes.OUTPUT, element_bytes: float | None = None
    ) -> MemoryBound:
        """Permutation of rows of the residual stream: read and written with ``element_bytes`` an element (None: an
        activation's)."""
        size = 2.0 * rows * self.model.hidden * (element_bytes or self.activation_bytes)
        return MemoryBound("copy", size, round(rows), name=name, role=Role.EXPERT_ROWS, computes=computes)

    def order(self, arrived: float, name: str, computes: Computes = Computes.OUTPUT) -> MemoryBound:
        """Rows of experts from arrived tokens, each read once and written for every expert of it here."""
        size = (arrived + self.all_rows) * self.model.hidden * self.activation_bytes
        return MemoryBound("copy", size, self.all_rows, name=name, role=Role.EXPERT_ROWS, computes=computes)

    def cast(self, rows: float, name: str, element_bytes: float) -> MemoryBound:
        """Rows read as activations and written with ``element_bytes`` an element."""
        size = rows * self.model.hidden * (self.activation_bytes + element_bytes)
        return MemoryBound("cast", size, round(rows), name=name, role=Role.EXPERT_CAST)

    def sum_rows(self, rows: float, tokens: int) -> MemoryBound:
        """Weighted sum of ``rows`` rows into ``tokens`` rows."""
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

    def weights_gradient(self) -> MemoryBound:
        """Gradients of the tokens' weights: of every row the sum of products of an activation and its gradient."""
        return self._between(2.0, "d weights of experts", Computes.INPUT_GRADIENT)

    def _product(self, n: int, k: int, name: str, role: Role) -> GroupedGemm:
        return GroupedGemm(self.rows, n, k, self.dtype, self.local, name=name, role=role)

    def _between(self, moved: float, name: str, computes: Computes = Computes.OUTPUT) -> MemoryBound:
        size, role = moved * self.all_rows * self.width * self.activation_bytes, Role.EXPERTS_ACTIVATION
        return MemoryBound("swiglu", size, self.all_rows, name=name, role=role, computes=computes)
