"""Multi-head latent attention: keys and values per head in prefill, absorbed queries in decode.

DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, §2.1. The cache keeps a latent and a rotary key a token, the same for
all heads, so every tensor-parallel rank holds them. Every chunk of a prompt projects the latents of its whole context
to keys and values again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from ...operators import (
    AbsorbProduct,
    BatchQuantity,
    Gemm,
    LatentDecode,
    LatentPrefill,
    MemoryBound,
    Operator,
    Role,
    Rows,
)
from ..parts import Block, Dimensions, LatentAttention, WeightClass
from ..shard import ServingShard
from .base import ATTENTION_KINDS, AttentionKind, CacheUse, decoded, prefilled, tokens_of

if TYPE_CHECKING:
    from .sections import AttentionSection

#: Bytes of a cached element in ``fp8_ds_mla``, for a latent of 512 and a rotary key of 64: the latent in fp8 with an
#: fp32 scale every 128 elements, the rotary key in bf16 (vLLM, FlashMLA).
FP8_DS_MLA = 656.0 / 576.0


class Latent(AttentionKind):
    """Caches one latent a token."""

    name = "mla"
    divides_context = True
    divides_prompts = True
    cache_layouts: ClassVar[Mapping[str, float]] = {"fp16": 2.0, "fp8_ds_mla": FP8_DS_MLA}

    @property
    def section(self) -> type[AttentionSection]:
        from .sections import LatentSection

        return LatentSection

    def describe(self, model: Dimensions) -> dict[str, Any]:
        return {"kind": self.name, "heads": model.heads, **asdict(self.facts(model))}

    def matrix_parameters(self, model: Dimensions, block: Block) -> int:
        """Projections to the latents, from the latents to the heads, and the output projection."""
        latent = self.facts(model)
        queries = (latent.q_rank or model.hidden) * model.heads * latent.query_dim
        keys_and_values = latent.kv_rank * model.heads * (latent.nope_dim + latent.value_dim)
        output = model.heads * latent.value_dim * model.hidden
        return model.hidden * latent.down_width + queries + keys_and_values + output

    def undivided_parameters(self, model: Dimensions, block: Block) -> int:
        """Projections to the latents."""
        return model.hidden * self.facts(model).down_width

    def other_parameters(self, model: Dimensions, block: Block) -> int:
        return model.projection_biases

    def norm_parameters(self, model: Dimensions, block: Block) -> int:
        """Norms of the latents, and of Q and K over d where the model has them."""
        latent = self.facts(model)
        return self.head_norm_parameters(model, block) + latent.q_rank + latent.kv_rank

    def head_norm_parameters(self, model: Dimensions, block: Block) -> int:
        return 2 * model.head_dim if model.qk_norm else 0

    def enter(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        latent, tokens = self.facts(layer.model), tokens_of(rows)
        normed = latent.q_rank + latent.kv_rank
        size = 2.0 * tokens * (normed + latent.rope_dim) * layer.activation_bytes
        written = tokens * latent.cache_width * self.element_bytes(layer.formats.cache)
        norms = MemoryBound("rmsnorm", size + written, tokens, name="norms of latents + cache write", role=Role.NORM)
        return *layer.down_projections(tokens), norms

    def project(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        latent, tokens = self.facts(layer.model), tokens_of(rows)
        queries, keys_and_values = layer.projections(tokens)
        rope = MemoryBound(
            "rope", 2.0 * tokens * layer.heads * latent.rope_dim * layer.activation_bytes, tokens, role=Role.ROPE
        )
        operators: list[Operator] = [queries, rope]
        context = sum([(c + q) * n for q, c, n in prefilled(rows)])
        if context:
            assert isinstance(keys_and_values, Gemm)
            operators.append(keys_and_values.over(context))
        decodes = tokens_of(decoded(rows))
        if decodes:
            operators.append(self._absorb(layer, decodes, latent.kv_rank, latent.nope_dim, "absorb queries"))
        return tuple(operators)

    def attend(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        latent, operators = self.facts(layer.model), list[Operator]()
        prompts, decodes = prefilled(rows), decoded(rows)
        if prompts:
            pieces = tuple([(q, c + q) for q, c, n in prompts for _ in range(n)])
            widths = layer.heads, latent.query_dim, latent.value_dim
            operators.append(LatentPrefill(pieces, *widths, layer.wide_dtype, self.element(layer)))
        for queries in sorted({q for q, _, _ in decodes}):
            seen = tuple([(layer.held(c + q), n) for q, c, n in decodes if q == queries])
            kept = self.element(layer)
            operators.append(
                LatentDecode(seen, layer.heads, latent.kv_rank, latent.rope_dim, layer.wide_dtype, kept, queries)
            )
        return tuple(operators)

    def reads(self, operator: Operator, block: Block) -> BatchQuantity:
        """Keys and values are made of all tokens of prompts; sequences that decode absorb them."""
        if isinstance(operator, AbsorbProduct):
            return BatchQuantity.DECODING
        return BatchQuantity.LENGTHS if operator.role is Role.LATENT_KEYS_VALUES else operator.reads

    def leave(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        latent, decodes = self.facts(layer.model), tokens_of(decoded(rows))
        output = layer.output(tokens_of(rows))
        if not decodes:
            return (output,)
        return self._absorb(layer, decodes, latent.value_dim, latent.kv_rank, "values from latent"), output

    def expand(self, layer: ServingShard, tokens: int) -> tuple[Operator, ...]:
        """Keys and values of the shard's heads from ``tokens`` latents."""
        _, keys_and_values = layer.projections(tokens)
        return (keys_and_values,) if tokens else ()

    def kv_up_proj_width(self, layer: ServingShard) -> int:
        """A key with its rotary part, and a value, per head."""
        latent = self.facts(layer.model)
        return layer.heads * (latent.query_dim + latent.value_dim)

    def merged(self, model: Dimensions) -> tuple[int, int]:
        """Absorbed queries with their rotary part; outputs in the latent's space."""
        latent = self.facts(model)
        return latent.cache_width, latent.kv_rank

    def cache(self, model: Dimensions, block: Block, cache_type: str, state_type: str = "fp32") -> CacheUse:
        """A latent and a rotary key a token."""
        return CacheUse(self.facts(model).cache_width * self.element_bytes(cache_type))

    def cache_elements(self, model: Dimensions, block: Block) -> float:
        return self.facts(model).cache_width

    @staticmethod
    def element(layer: ServingShard) -> str:
        """Type of the cache by the kernels' name."""
        return "fp8" if layer.formats.cache == "fp8_ds_mla" else layer.formats.cache

    @staticmethod
    def facts(model: Dimensions) -> LatentAttention:
        assert model.latent is not None
        return model.latent

    @staticmethod
    def _absorb(layer: ServingShard, tokens: int, n: int, k: int, name: str) -> AbsorbProduct:
        weights = layer.formats.multiplied(WeightClass.ATTENTION)
        return AbsorbProduct(tokens, layer.heads, n, k, layer.wide_dtype, name=name, weights=weights)


LATENT = ATTENTION_KINDS.register(Latent())
