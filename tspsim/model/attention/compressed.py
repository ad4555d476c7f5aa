"""Compressed attention: one cache entry for several tokens, and a window of the latest tokens (DeepSeek-V4).

A token's key and value are one latent, as wide as a head, that all heads share. Every layer keeps the latents of its
window. A layer also keeps one entry every 4 tokens (neighbouring entries overlap; an indexer selects among them), one
entry every 128 tokens (all are attended), or nothing more (Hugging Face transformers, deepseek_v4; vLLM's cache entry).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...operators import Gemm, MemoryBound, Operator, Role, Rows, SparseAttention
from ..parts import Block, CompressedAttention, Dimensions, WeightClass
from ..shard import ServingShard
from .base import ATTENTION_KINDS, CacheUse, attended, product, tokens_of
from .sparse_latent import IndexedAttention, index_entry, indexer_of, key_bytes

if TYPE_CHECKING:
    from .sections import AttentionSection

#: Bytes of a cached element: an entry has 448 elements in fp8, 64 rotary ones in bf16 and 8 bytes of scales (vLLM).
FP8_ENTRY = 584.0 / 512.0


class Compressed(IndexedAttention):
    """Caches one latent for several tokens, and a window."""

    name = "csa"
    full_sequences = False
    divides_context = True
    cache_layouts: ClassVar[Mapping[str, float]] = {"bf16": 2.0, "fp8": FP8_ENTRY, "fp8_ds_mla": FP8_ENTRY}

    @property
    def section(self) -> type[AttentionSection]:
        from .sections import CompressedSection

        return CompressedSection

    def describe(self, model: Dimensions) -> dict[str, Any]:
        facts, indexing = facts_of(model), indexer_of(model)
        return {
            "kind": self.name, "heads": model.heads, "head_dim": model.head_dim, "rope_dim": facts.rope_dim,
            "q_rank": facts.q_rank, "output_groups": facts.output_groups, "output_rank": facts.output_rank,
            "window": facts.window, "compression": list(facts.ratios), "indexed": facts.indexed,
            "index_heads": indexing.heads, "index_dim": indexing.head_dim, "index_topk": indexing.topk,
        }  # fmt: skip

    @property
    def cache_types(self) -> Mapping[str, float]:
        """Only layouts of this kind: an entry has rotary elements in bf16, and scales."""
        return self.cache_layouts

    def block(self, model: Dimensions, layer: int) -> Block:
        facts = facts_of(model)
        ratio = facts.ratios[layer % len(facts.ratios)]
        return Block(attention=self.name, indexer=ratio == facts.indexed, compression=ratio)

    def further_block(self, model: Dimensions) -> Block:
        """A multi-token-prediction module keeps only its window (the last published ratio is 0)."""
        return Block(attention=self.name, compression=0)

    def period(self, model: Dimensions) -> int:
        return len(facts_of(model).ratios)

    # --- parameters -----------------------------------------------------------------------------------------

    def matrix_parameters(self, model: Dimensions, block: Block) -> int:
        """Latents, queries, the grouped output projection, the compressor, the indexer and its compressor."""
        facts, indexing = facts_of(model), indexer_of(model)
        entering = facts.q_rank + model.head_dim + self.compressor_columns(model, block)
        ranks = facts.output_groups * facts.output_rank
        output = model.attention_width * facts.output_rank + ranks * model.hidden
        total = model.hidden * entering + facts.q_rank * model.attention_width + output
        if block.indexer:
            columns = indexing.heads + self.overlap(block) * 2 * indexing.head_dim
            total += facts.q_rank * indexing.heads * indexing.head_dim + model.hidden * columns
        return total

    def undivided_parameters(self, model: Dimensions, block: Block) -> int:
        """Latents, compressors and the indexer: everything but queries and the output projection."""
        facts = facts_of(model)
        queries = facts.q_rank * model.attention_width
        output = model.attention_width * facts.output_rank + facts.output_groups * facts.output_rank * model.hidden
        return self.matrix_parameters(model, block) - queries - output

    def other_parameters(self, model: Dimensions, block: Block) -> int:
        """A sink per head, and the compressors' embeddings of positions inside an entry."""
        width = model.head_dim if block.compression else 0
        width += indexer_of(model).head_dim if block.indexer else 0
        return model.heads + block.compression * self.overlap(block) * width

    def norm_parameters(self, model: Dimensions, block: Block) -> int:
        """Norms of both latents and of compressed entries."""
        compressed = model.head_dim if block.compression else 0
        return (
            facts_of(model).q_rank + model.head_dim + compressed + (indexer_of(model).head_dim if block.indexer else 0)
        )

    @staticmethod
    def overlap(block: Block) -> int:
        """Entries that a token goes into: neighbouring ones overlap where an indexer chooses."""
        return 2 if block.indexer else 1

    def compressor_columns(self, model: Dimensions, block: Block) -> int:
        """Columns that become entries, and their weights."""
        return 2 * self.overlap(block) * model.head_dim if block.compression else 0

    # --- serving steps --------------------------------------------------------------------------------------

    def enter(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        model, block, tokens = layer.model, layer.composition, tokens_of(rows)
        facts, indexing, entry = facts_of(model), indexer_of(model), self.entry_bytes(model, layer.formats.cache)
        width, columns = facts.q_rank + model.head_dim, self.compressor_columns(model, block)
        name = "norms of latents + cache write"
        size = tokens * (2.0 * width * layer.activation_bytes + entry)
        operators: list[Operator] = [
            product(layer, tokens, width, model.hidden, "down to latents", Role.LATENT_DOWN),
            MemoryBound("rmsnorm", size, tokens, name=name, role=Role.NORM),
        ]
        if columns:
            size = tokens * (columns * layer.activation_bytes + entry / block.compression)
            operators += [
                product(layer, tokens, columns, model.hidden, "compressor", Role.LATENT_DOWN),
                MemoryBound("softmax", size, tokens, name="compress + cache write", role=Role.NORM),
            ]
        if block.indexer:
            keys = self.overlap(block) * 2 * indexing.head_dim
            operators += index_entry(layer, tokens, facts.q_rank, keys)
        return tuple(operators)

    def project(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        facts, tokens = facts_of(layer.model), tokens_of(rows)
        size = 2.0 * tokens * layer.heads * facts.rope_dim * layer.activation_bytes
        return (
            product(layer, tokens, layer.query_width, facts.q_rank, "queries from latent", Role.LATENT_QUERIES),
            MemoryBound("rope", size, tokens, role=Role.ROPE),
        )

    def attend_selected(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        model, block = layer.model, layer.composition
        facts, indexing = facts_of(model), indexer_of(model)
        widths = layer.heads, model.head_dim, model.head_dim
        entry, kept = self.entry_bytes(model, layer.formats.cache), self.element(layer)
        of_window = SparseAttention(
            attended(rows),
            *widths,
            facts.window,
            entry_bytes=entry,
            dtype=layer.wide_dtype,
            kv_dtype=kept,
            shards=layer.context_shards,
        )
        if not block.compression:
            return (of_window,)
        topk, apart = (indexing.topk, layer.selects_apart) if block.indexer else (0, False)
        stride = block.compression
        return (replace(of_window, topk=topk, compression=stride, window=facts.window, apart=apart),)

    def boundary_elements(self, model: Dimensions, block: Block) -> float:
        """Latents of a window; where entries overlap, also the compressors' columns of one entry."""
        latest = facts_of(model).window * model.head_dim
        if self.overlap(block) == 1:
            return latest
        columns = self.compressor_columns(model, block) + 2 * self.overlap(block) * indexer_of(model).head_dim
        return latest + block.compression * columns

    def leave(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Output projection: every group of heads to its rank, then all groups to h."""
        facts, tokens = facts_of(layer.model), tokens_of(rows)
        groups = max(1, facts.output_groups // layer.shards)
        dtype = layer.formats.multiplied(WeightClass.ATTENTION)
        down = Gemm(
            tokens,
            facts.output_rank,
            layer.query_width // groups,
            dtype,
            groups,
            name="output, down by groups",
            role=Role.LATENT_QUERIES,
            weight_dtype=layer.formats.read(WeightClass.ATTENTION),
        )
        width = groups * facts.output_rank
        return down, product(layer, tokens, layer.model.hidden, width, "output projection", Role.OUTPUT)

    @staticmethod
    def element(layer: ServingShard) -> str:
        """Type of the cache by the kernels' name."""
        return "fp8" if layer.formats.cache == "fp8_ds_mla" else layer.formats.cache

    # --- work and cache -------------------------------------------------------------------------------------

    def entry_bytes(self, model: Dimensions, cache_type: str) -> float:
        """Bytes of a cache entry, whether of one token or of several."""
        return model.head_dim * self.element_bytes(cache_type)

    def breakpoints(self, model: Dimensions, block: Block) -> tuple[int, ...]:
        chosen = (indexer_of(model).topk * block.compression,) if block.indexer else ()
        return facts_of(model).window, *chosen

    def cache(self, model: Dimensions, block: Block, cache_type: str, state_type: str = "fp32") -> CacheUse:
        """Compressed entries with their index keys, and the window; inputs of an unfinished entry are not counted."""
        facts, entry = facts_of(model), self.entry_bytes(model, cache_type)
        if not block.compression:
            return CacheUse(entry, window=facts.window)
        shared = key_bytes(indexer_of(model)) / block.compression if block.indexer else 0.0
        return CacheUse(
            entry / block.compression, shared_token_bytes=shared, latest=facts.window, latest_token_bytes=entry
        )

    def cache_elements(self, model: Dimensions, block: Block) -> float:
        return model.head_dim / block.compression if block.compression else 0.0

    def pair_flops(self, model: Dimensions, block: Block, pairs: float) -> float:
        """4·a for a latent of the window and for an attended entry; the indexer's 2·head_dim a head over all
        entries."""
        facts, indexing = facts_of(model), indexer_of(model)
        attended, scored = min(pairs, facts.window), 0.0
        if block.compression:
            entries = pairs / block.compression
            attended += min(entries, indexing.topk) if block.indexer else entries
            scored = 2.0 * indexing.heads * indexing.head_dim * entries if block.indexer else 0.0
        return 4.0 * model.attention_width * attended + scored


def facts_of(model: Dimensions) -> CompressedAttention:
    assert model.compressed is not None
    return model.compressed


COMPRESSED = ATTENTION_KINDS.register(Compressed())
