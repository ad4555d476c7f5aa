"""Shards of a decoder layer of an :class:`Architecture`, in a pass and in a serving step; gradients of products."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.memo import once, remembered
from ..base.quick import replace
from ..operators import Attention, BatchQuantity, Computes, Gemm, LatentPrefill, Operator, ShortConvolution
from .architecture import Architecture
from .attention import AttentionKind
from .attention.latent import Latent
from .attention.linear import Linear
from .shard import ServingShard, Shard


@remembered(4096)
def gradients(product: Gemm) -> tuple[Gemm, Gemm]:
    """Gradients of C[m, n] = A[m, k]·B[k, n]: dA = dC·Bᵀ (of the activations) and dB = Aᵀ·dC (of the weights).

    In narrow types dC is cast once, in both orientations, for the first product; the second finds it cast.
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
        """Elements of the shard's attention matrices that heads divide: h·(2a + 2c) for packed [Wq, Wk, Wv, Wo]."""
        return self.model.attention_of(self.composition).shard_parameters(self)

    @once
    def down_weights(self) -> int:
        """Elements of attention matrices that every shard holds whole: projections to latents, indexers; else 0."""
        return self.model.attention_of(self.composition).undivided_parameters(self.model, self.composition)


# --- serving --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServingLayer(ServingShard, LayerShard):
    """A shard of a layer in a serving step, with the operators of its attention kind."""

    model: Architecture

    @once
    def attention_kind(self) -> AttentionKind:
        return self.model.attention_of(self.composition)

    def reads(self, operator: Operator) -> BatchQuantity:
        """What of a pass the size of an operator of its attention depends on."""
        return self.attention_kind.reads(operator, self.composition)

    def attention(
        self,
        segments: tuple[tuple[int, int], ...],
        *,
        causal: bool = True,
        buckets: int = 1,
        direction: str = "forward",
    ) -> Attention | LatentPrefill:
        """Attention of prompts whose sequence shards attend each other's keys; latent attention has its own kernel."""
        latent = self.model.latent
        if latent is None or not causal:
            return super().attention(segments, causal=causal, buckets=buckets, direction=direction)
        heads = self.heads // buckets
        return LatentPrefill(segments, heads, latent.query_dim, latent.value_dim, self.wide_dtype, Latent.element(self))

    @once
    def own_operators(self) -> bool:
        """Whether ranks that divide tokens run the attention kind's operators, not those of keys and values per head.
        Convolutions, which reach across the shards' borders, are not among them."""
        return self.attention_kind.selects or isinstance(self.attention_kind, Linear)

    def entering(self, tokens: int) -> tuple[Operator, ...]:
        kind = self.attention_kind
        return kind.enter(self, ((tokens, 0, 1),)) if self.own_operators else super().entering(tokens)

    def projecting(self, tokens: int) -> tuple[Operator, ...]:
        kind = self.attention_kind
        if not self.own_operators:
            return super().projecting(tokens)
        operators = kind.project(self, ((tokens, 0, 1),))
        return tuple(operator for operator in operators if not isinstance(operator, ShortConvolution))

    def leaving(self, tokens: int) -> tuple[Operator, ...]:
        kind = self.attention_kind
        return kind.leave(self, ((tokens, 0, 1),)) if self.own_operators else super().leaving(tokens)
