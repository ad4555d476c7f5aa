"""Multi-head, grouped-query and multi-query attention, in a window, in chunks or over the whole context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ...operators import Attention, BatchQuantity, DecodeAttention, MemoryBound, Operator, Role, Rows
from ..parts import Block, Dimensions
from ..shard import ServingShard, Shard
from .base import ATTENTION_KINDS, AttentionKind, CacheUse, decoded, prefilled, tokens_of

if TYPE_CHECKING:
    from .sections import AttentionSection


class Grouped(AttentionKind):
    """Caches K and V per head; the sigmoid of an optional gate, as wide as the queries, multiplies the output."""

    name = "gqa"
    divides_context = True
    divides_prompts = True
    cache_layouts: ClassVar[Mapping[str, float]] = {"fp16": 2.0, "int8": 1.0}

    @property
    def section(self) -> type[AttentionSection]:
        from .sections import GroupedSection

        return GroupedSection

    def describe(self, model: Dimensions) -> dict[str, Any]:
        heads = ("heads", "kv_heads", "head_dim", "qk_norm", "qk_norm_wide", "output_gate")
        names = *heads, "window", "chunk", "full_every"
        return {name: getattr(model, name) for name in names} | {"kind": self.name, "bias": model.attention_bias}

    def block(self, model: Dimensions, layer: int) -> Block:
        if model.full_every and (layer + 1) % model.full_every == 0:
            return Block(attention=self.name)
        return Block(window=model.window, chunk=model.chunk, attention=self.name)

    def period(self, model: Dimensions) -> int:
        return model.full_every or 1 if model.window or model.chunk else 1

    def matrix_parameters(self, model: Dimensions, block: Block) -> int:
        """h·(2a + 2c) for Wq, Wk, Wv, Wo, and h·a for a gate."""
        gate = model.attention_width if model.output_gate else 0
        return model.hidden * (2 * (model.attention_width + model.kv_width) + gate)

    def shard_parameters(self, layer: Shard) -> int:
        """Elements of the packed [Wq, Wk, Wv, Wo] shard; every shard has at least one KV head."""
        gate = layer.query_width if layer.model.output_gate else 0
        return layer.model.hidden * (2 * layer.query_width + 2 * layer.kv_width + gate)

    def other_parameters(self, model: Dimensions, block: Block) -> int:
        return model.projection_biases

    def norm_parameters(self, model: Dimensions, block: Block) -> int:
        """Norms of Q and K over d, or over all heads."""
        return self.divided_norm_parameters(model, block) or self.head_norm_parameters(model, block)

    def head_norm_parameters(self, model: Dimensions, block: Block) -> int:
        return 2 * model.head_dim if model.qk_norm and not model.qk_norm_wide else 0

    def divided_norm_parameters(self, model: Dimensions, block: Block) -> int:
        return model.attention_width + model.kv_width if model.qk_norm_wide else 0

    def project(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        tokens = tokens_of(rows)
        return layer.qkv(tokens), layer.rope(tokens), self.write(layer, tokens)

    def write(self, layer: ServingShard, tokens: int) -> MemoryBound:
        """Cache write of K and V, a kernel of its own in every engine: both read and written."""
        moved = 2.0 * layer.kv_width * (layer.activation_bytes + self.element_bytes(layer.formats.cache))
        return MemoryBound("cache_write", tokens * moved, tokens, name="cache write", role=Role.ROPE)

    def attend(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        operators: list[Operator] = []
        cache = layer.formats.cache
        prompts, decodes = prefilled(rows), decoded(rows)
        if prompts:
            queries = tuple([q for q, _, n in prompts for _ in range(n)])
            shown, seen, causal = self.bent(layer, queries, tuple([q + c for q, c, n in prompts for _ in range(n)]))
            segments = tuple(zip(shown, seen, strict=True))
            heads = layer.heads, layer.kv_heads, layer.model.head_dim
            kept = None if cache == layer.wide_dtype else cache
            operators.append(Attention(segments, *heads, causal, layer.wide_dtype, kv_dtype=kept))
        for own in sorted({q for q, _, _ in decodes}):
            cached = tuple((self._seen(layer, c + q), n) for q, c, n in decodes if q == own)
            operators.append(
                DecodeAttention(
                    cached, layer.heads, layer.kv_heads, layer.model.head_dim, layer.wide_dtype, cache, queries=own
                )
            )
        return tuple(operators)

    def reads(self, operator: Operator, block: Block) -> BatchQuantity:
        bends = isinstance(operator, Attention) and (block.window or block.chunk)
        return BatchQuantity.BENT_PROMPTS if bends else operator.reads

    def most_cached(self, layer: ServingShard) -> int:
        """A window, or a chunk."""
        return layer.composition.window or layer.composition.chunk

    def _seen(self, layer: ServingShard, context: int) -> int:
        most = self.most_cached(layer)
        return layer.held(min(context, most) if most else context)

    def bent(
        self, layer: ServingShard, queries: tuple[int, ...], lengths: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
        """Segments of prompts under a window, or causal pieces: whole chunks, and the rest at the end of a chunk.

        Wherever chunks begin, this is the most work; a decode query likewise sees a full chunk. So more context is
        never less work.
        """
        chunk = layer.composition.chunk
        if chunk and max(lengths) > chunk:
            pieces: list[tuple[int, int]] = []
            for query, length in zip(queries, lengths, strict=True):
                whole, rest = divmod(query, chunk)
                pieces += [(chunk, chunk)] * whole
                if rest:
                    pieces.append((rest, min(chunk, length - whole * chunk)))
            queries, lengths = zip(*pieces, strict=True)
        return layer.windowed_columns(queries, lengths, True)

    def leave(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        tokens = tokens_of(rows)
        if not layer.model.output_gate:
            return (layer.output(tokens),)
        size = 3.0 * tokens * layer.query_width * layer.activation_bytes
        return MemoryBound("swiglu", size, tokens, name="output gate", role=Role.OTHER), layer.output(tokens)

    def cache(self, model: Dimensions, block: Block, cache_type: str, state_type: str = "fp32") -> CacheUse:
        """2·c elements a token. Chunked layers keep all tokens, as vLLM does by default
        (``VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE`` is off)."""
        return CacheUse(2.0 * model.kv_width * self.element_bytes(cache_type), block.window, heads=model.kv_heads)


GROUPED = ATTENTION_KINDS.register(Grouped())
