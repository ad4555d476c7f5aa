"""Multi-head, grouped-query and multi-query attention, in a window or over the whole context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...operators import Attention, DecodeAttention, MemoryBound, Operator, Role
from .base import AttentionKind, CacheUse, Rows, decoded, prefilled, tokens_of

if TYPE_CHECKING:
    from ..architecture import Architecture
    from ..parts import Block
    from ..serving import ServingLayer

#: Bytes of an element of K or V in a cache.
ELEMENT_BYTES: dict[str, float] = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "nvfp4": 0.5625}


class Grouped(AttentionKind):
    """K and V a head, cached."""

    name = "gqa"

    def project(self, layer: ServingLayer, rows: Rows) -> tuple[Operator, ...]:
        tokens = tokens_of(rows)
        return layer.qkv(tokens), self.rotate(layer, tokens)

    def rotate(self, layer: ServingLayer, tokens: int) -> MemoryBound:
        """Rotary embedding of Q and K, and K and V written to the cache, in one kernel."""
        moved = 2.0 * (layer.query_width + layer.kv_width) + layer.kv_width
        written = 2.0 * layer.kv_width * ELEMENT_BYTES[layer.formats.cache]
        size = tokens * (moved * layer.activation_bytes + written)
        return MemoryBound("rope", size, tokens, name="rope + cache write", role=Role.ROPE)

    def attend(self, layer: ServingLayer, rows: Rows) -> tuple[Operator, ...]:
        operators: list[Operator] = []
        cache = layer.formats.cache
        prompts, decodes = prefilled(rows), decoded(rows)
        if prompts:
            pieces = tuple((q, c + q) for q, c, n in prompts for _ in range(n))
            segments, causal = layer.windowed(pieces, True)
            heads = layer.heads, layer.kv_heads, layer.model.head_dim
            kept = None if cache == layer.wide else cache
            operators.append(Attention(segments, *heads, causal, layer.wide, kv_dtype=kept))
        for queries in sorted({q for q, _, _ in decodes}):
            seen = tuple((self._seen(layer, c + q), n) for q, c, n in decodes if q == queries)
            operators.append(
                DecodeAttention(
                    seen, layer.heads, layer.kv_heads, layer.model.head_dim, layer.wide, cache, queries=queries
                )
            )
        return tuple(operators)

    @staticmethod
    def _seen(layer: ServingLayer, context: int) -> int:
        window = layer.kind.window
        return min(context, window) if window else context

    def leave(self, layer: ServingLayer, rows: Rows) -> tuple[Operator, ...]:
        return (layer.output(tokens_of(rows)),)

    def cache(self, model: Architecture, block: Block, cache_type: str) -> CacheUse:
        """2·c elements a token."""
        return CacheUse(2.0 * model.kv_width * ELEMENT_BYTES[cache_type], block.window, heads=model.kv_heads)


GROUPED = Grouped()
