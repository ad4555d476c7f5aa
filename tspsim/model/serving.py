"""One decoder layer as a serving step runs it: types by class of weights, and its kind of attention."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.memo import once
from ..operators import Attention, LatentPrefill, Operator, ShortConvolution
from .architecture import Architecture
from .attention import AttentionKind
from .attention.latent import Latent
from .attention.linear import Linear
from .layer import LayerShard
from .serving_shard import ServingShard


@dataclass(frozen=True)
class ServingLayer(ServingShard, LayerShard):
    """A shard of a layer whose weights and cache are in ``formats``, with what its kind of attention adds."""

    model: Architecture

    @once
    def attention_kind(self) -> AttentionKind:
        return self.model.attention_of(self.kind)

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
        operators = kind.project(self, ((tokens, 0, 1),))
        return tuple(operator for operator in operators if not isinstance(operator, ShortConvolution))

    def leaving(self, tokens: int) -> tuple[Operator, ...]:
        kind = self.attention_kind
        return kind.leave(self, ((tokens, 0, 1),)) if self.own_operators else super().leaving(tokens)
