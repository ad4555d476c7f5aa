"""A shard of a decoder layer whose model is known whole, and the products of a backward."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.memo import once, remembered
from ..base.quick import replace
from ..operators import Computes, Gemm
from .architecture import Architecture
from .shard import Shard


@remembered(4096)
def gradients(product: Gemm) -> tuple[Gemm, Gemm]:
    """Of C[m, n] = A[m, k]·B[k, n]: dA = dC·Bᵀ (the activations' gradient) and dB = Aᵀ·dC (the weights').

    In narrow formats dC is quantised once, in both orientations, and A was: the second product finds them so.
    """
    m, n, k, weights = product.m, product.n, product.k, Computes.WEIGHT_GRADIENT
    return (
        replace(product, n=k, k=n, name=f"{product.name}, d input", quantised=False, computes=Computes.INPUT_GRADIENT),
        replace(product, m=k, n=n, k=m, name=f"{product.name}, d weight", quantised=True, computes=weights),
    )


@dataclass(frozen=True)
class LayerShard(Shard):
    """``1/shards`` of a decoder layer of ``model``."""

    model: Architecture

    @once
    def attention_weights(self) -> int:
        """Elements of the packed [Wq, Wk, Wv, Wo] shard: h·(2a + 2c); otherwise of the matrices that heads divide."""
        return self.model.attention_of(self.kind).shard_parameters(self)

    @once
    def down_weights(self) -> int:
        """Elements that no head divides: of projections down to latents, of indexers; 0 without any."""
        return self.model.attention_of(self.kind).undivided_parameters(self.model, self.kind)
