"""One decoder layer as a serving step runs it: types by class of weights, and its kind of attention."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.memo import once
from ..operators import Attention, Gemm, LatentPrefill, Operator, ShortConvolution
from .attention import AttentionKind
from .attention.latent import Latent
from .attention.linear import Linear
from .formats import BF16, Formats, WeightClass
from .layer import LayerShard


@dataclass(frozen=True)
class ServingLayer(LayerShard):
    """A shard of a layer whose weights and cache are in ``formats``; ``dtype`` is what attention multiplies in.

    ``context_shards`` ranks hold a part of every context's tokens each, and ``index_shards`` of the keys that an
    indexer scores; ``chooses_apart``: each attends the best of its own part. ``verified``: queries of every sequence
    that are drafts and one, 1 where nothing is drafted.
    """

    formats: Formats = BF16
    context_shards: int = 1
    verified: int = 1
    index_shards: int = 1
    chooses_apart: bool = False

    def held(self, tokens: int) -> int:
        """Of so many tokens of a context, those on the rank that has most."""
        return -(-tokens // self.context_shards)

    @once
    def attention_kind(self) -> AttentionKind:
        return self.model.attention_of(self.kind)

    def qkv(self, tokens: int) -> Gemm:
        return self._as(WeightClass.ATTENTION, super().qkv(tokens))

    def down_projections(self, tokens: int) -> tuple[Gemm, ...]:
        return tuple(self._as(WeightClass.ATTENTION, product) for product in super().down_projections(tokens))

    def projections(self, tokens: int) -> tuple[Gemm, ...]:
        return tuple(self._as(WeightClass.ATTENTION, product) for product in super().projections(tokens))

    def output(self, tokens: int) -> Gemm:
        return self._as(WeightClass.ATTENTION, super().output(tokens))

    def gate_up(self, tokens: int) -> Gemm:
        return self._as(self.mlp_class, super().gate_up(tokens))

    def down(self, tokens: int) -> Gemm:
        return self._as(self.mlp_class, super().down(tokens))

    def head(self, tokens: int) -> Gemm:
        return self._as(WeightClass.EMBEDDING, super().head(tokens))

    def attention(
        self,
        segments: tuple[tuple[int, int], ...],
        *,
        causal: bool = True,
        buckets: int = 1,
        direction: str = "forward",
    ) -> Attention | LatentPrefill:
        """Of prompts, whose sequence shards attend each other's keys: latent attention has a kernel of its own."""
        latent = self.model.latent
        if latent is None or not causal:
            return super().attention(segments, causal=causal, buckets=buckets, direction=direction)
        heads = self.heads // buckets
        return LatentPrefill(segments, heads, latent.query_dim, latent.value_dim, self.wide, Latent.element(self))

    @once
    def own_operators(self) -> bool:
        """Whether ranks with tokens of their own run the operators of its kind, not those of keys and values a head;
        convolutions, which reach over the borders between them, stand apart."""
        return self.attention_kind.chooses or isinstance(self.attention_kind, Linear)

    def entering(self, tokens: int) -> tuple[Operator, ...]:
        kind = self.attention_kind
        return kind.enter(self, ((tokens, 0, 1),)) if self.own_operators else super().entering(tokens)

    def projecting(self, tokens: int) -> tuple[Operator, ...]:
        kind = self.attention_kind
        if not self.own_operators:
            return super().projecting(tokens)
        found = kind.project(self, ((tokens, 0, 1),))
        return tuple(operator for operator in found if not isinstance(operator, ShortConvolution))

    def leaving(self, tokens: int) -> tuple[Operator, ...]:
        kind = self.attention_kind
        return kind.leave(self, ((tokens, 0, 1),)) if self.own_operators else super().leaving(tokens)

    @property
    def mlp_class(self) -> WeightClass:
        """Of the MLP that all tokens go through."""
        return WeightClass.SHARED if self.kind.experts else WeightClass.DENSE

    def _as(self, part: WeightClass, product: Gemm) -> Gemm:
        return product.read_as(self.formats.multiplied(part), self.formats.read(part))
