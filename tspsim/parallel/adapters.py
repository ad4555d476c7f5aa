"""Low-rank adapters beside frozen weights (LoRA): what they add to a layer's products and what freezing leaves out.

Beside a product X[m, k]·W[k, n] of rank-r adapters stand P = X·A[k, r] and Y += P·B[r, n] (Hu et al. 2021, LoRA, §4.1).
Backward, W is frozen: dX = dY·Wᵀ stays, dW = Xᵀ·dY falls away, and dP = dY·Bᵀ, dB = Pᵀ·dY, dA = Xᵀ·dP and
dX += dP·Aᵀ come in. Adapters are kept and multiplied in bf16, whatever the weights are in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..model.layer import LayerShard
from ..operators import Gemm, MemoryBound, Operator

#: What an adapter can stand beside: the products of a layer as :class:`~tspsim.model.layer.LayerShard` names them.
TARGETS = {
    "qkv": "QKV projection",
    "output": "output projection",
    "gate_up": "gate and up",
    "down": "down projection",
}
ELEMENT_BYTES = 2.0


@dataclass(frozen=True)
class Adapters:
    """Adapters of ``rank`` beside the products in ``targets`` (keys of :data:`TARGETS`)."""

    rank: int
    targets: tuple[str, ...]

    def parameters(self, layer: LayerShard) -> int:
        """Of one layer's shard: r·(k + n) a product."""
        products = {"qkv": layer.qkv, "output": layer.output, "gate_up": layer.gate_up, "down": layer.down}
        shapes = [products[target](1) for target in self.targets]
        return sum(self.rank * (product.k + product.n) for product in shapes)

    def attach(self, operators: Iterable[Operator]) -> Iterator[Operator]:
        """The operators of a frozen layer with those of its adapters."""
        adapted = {TARGETS[target] for target in self.targets}
        for operator in operators:
            if not isinstance(operator, Gemm):
                yield operator
                continue
            product, _, gradient = operator.name.partition(", ")
            if gradient == "d weight":
                continue
            yield operator
            if product in adapted:
                yield from self.backward(operator) if gradient else self.forward(operator)

    def forward(self, product: Gemm) -> Iterator[Operator]:
        """Of Y[m, n] = X[m, k]·W: P, its product with B, and their sum with Y."""
        m, n, k, r = product.m, product.n, product.k, self.rank
        yield Gemm(m, r, k, name="adapter down")
        yield Gemm(m, n, r, name="adapter up")
        yield added(m, n)

    def backward(self, gradient: Gemm) -> Iterator[Operator]:
        """Of dX[m, k] = dY[m, n]·Wᵀ, whose own shape is [m, k] with depth n."""
        m, n, k, r = gradient.m, gradient.k, gradient.n, self.rank
        yield Gemm(m, r, n, name="adapter up, d input")
        yield Gemm(r, n, m, name="adapter up, d weight")
        yield Gemm(k, r, m, name="adapter down, d weight")
        yield Gemm(m, k, r, name="adapter down, d input")
        yield added(m, k)


def added(rows: int, columns: int) -> MemoryBound:
    """A sum into a tensor: reads two, writes one."""
    return MemoryBound("add", 3.0 * rows * columns * ELEMENT_BYTES, rows, name="add adapter")
