"""Sparse latent attention: an indexer selects the tokens a query attends (DeepSeek Sparse Attention).

DeepSeek-AI 2025, DeepSeek-V3.2, §2.1. A layer with an indexer caches an index key for every token and scores all of
them; a layer without one uses the selection of the layer before it. Prefill and decode both attend latents with
absorbed queries, as engines do.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...operators import BatchQuantity, Gemm, Indexer, MemoryBound, Operator, Role, Rows, SparseAttention
from ..parts import Block, Dimensions, IndexerSpec
from ..shard import ServingShard
from .base import ATTENTION_KINDS, AttentionKind, CacheUse, Model, attended, product, tokens_of
from .latent import LATENT, Latent

if TYPE_CHECKING:
    from .sections import AttentionSection


def indexer_of(model: Dimensions) -> IndexerSpec:
    assert model.indexing is not None
    return model.indexing


def key_bytes(indexing: IndexerSpec) -> float:
    """Bytes of a cached index key: fp8, and a scale of 4 bytes a block of 128 elements (vLLM, SGLang)."""
    return indexing.head_dim + 4.0 * -(-indexing.head_dim // 128)


class IndexedAttention(AttentionKind):
    """Attention to what an indexer selects, in the layers that have one (:attr:`Block.indexer`)."""

    divides_prompts = True
    selects = True

    def attend(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        return *self.select(layer, rows), *self.attend_selected(layer, rows)

    def select(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Scores of this rank's entries, and the selection among them."""
        if not layer.composition.indexer:
            return ()
        indexing = indexer_of(layer.model)
        shape = indexing.heads, indexing.head_dim, indexing.topk
        tokens = layer.composition.compression or 1
        return (Indexer(attended(rows), *shape, tokens, key_bytes(indexing), shards=layer.index_shards),)

    @abstractmethod
    def attend_selected(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Attention to what was selected."""

    def index_topk(self, model: Dimensions, block: Block) -> int:
        return indexer_of(model).topk if block.indexer else 0

    def index_key_elements(self, model: Dimensions, block: Block) -> float:
        return indexer_of(model).head_dim / (block.compression or 1) if block.indexer else 0.0


class SparseLatent(IndexedAttention, Latent):
    """Caches one latent a token; a query attends the ``topk`` best."""

    name = "dsa"

    @property
    def section(self) -> type[AttentionSection]:
        from .sections import SparseSection

        return SparseSection

    def describe(self, model: Dimensions) -> dict[str, Any]:
        indexing = indexer_of(model)
        return super().describe(model) | {
            "kind": self.name, "index_heads": indexing.heads, "index_dim": indexing.head_dim,
            "index_topk": indexing.topk, "index_every": indexing.every, "index_shared_from": indexing.shared_from,
        }  # fmt: skip

    def block(self, model: Dimensions, layer: int) -> Block:
        return Block(attention=self.name, indexer=indexer_of(model).owned(layer))

    def further_block(self, model: Dimensions) -> Block:
        """A multi-token-prediction module owns an indexer."""
        return Block(attention=self.name, indexer=True)

    def period(self, model: Dimensions) -> int:
        return indexer_of(model).every

    def for_full_sequences(self, model: Model) -> Model:
        """Attention to the whole context, without indexers."""
        indexing = indexer_of(model)
        left_out = self._index_matrices(model) / 1e6
        note = (
            f"Attention reads the whole context, not the {indexing.topk} tokens an indexer chooses, and the indexer's "
            f"{left_out:.1f} M parameters a layer are left out."
        )
        return replace(model, attention=LATENT.name, indexing=None, note=f"{model.note} {note}".strip())

    # --- parameters -----------------------------------------------------------------------------------------

    def matrix_parameters(self, model: Dimensions, block: Block) -> int:
        """Matrices of latent attention and of the indexer: its queries, its key, and a weight a head."""
        indexer = self._index_matrices(model) if block.indexer else 0
        return super().matrix_parameters(model, block) + indexer

    def undivided_parameters(self, model: Dimensions, block: Block) -> int:
        """Projections to the latents, and the indexer."""
        return super().undivided_parameters(model, block) + (self._index_matrices(model) if block.indexer else 0)

    def norm_parameters(self, model: Dimensions, block: Block) -> int:
        """Latent attention's norms, and the norm with bias of the index key."""
        return super().norm_parameters(model, block) + (2 * indexer_of(model).head_dim if block.indexer else 0)

    def _index_matrices(self, model: Dimensions) -> int:
        indexing, entering = indexer_of(model), self.facts(model).q_rank or model.hidden
        return entering * indexing.heads * indexing.head_dim + model.hidden * (indexing.head_dim + indexing.heads)

    # --- serving steps --------------------------------------------------------------------------------------

    def enter(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        operators = super().enter(layer, rows)
        if not layer.composition.indexer:
            return operators
        return *operators, *index_entry(layer, tokens_of(rows), self.facts(layer.model).q_rank or layer.model.hidden)

    def project(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        latent, tokens = self.facts(layer.model), tokens_of(rows)
        queries, _ = layer.projections(tokens)
        size = 2.0 * tokens * layer.heads * latent.rope_dim * layer.activation_bytes
        rope = MemoryBound("rope", size, tokens, role=Role.ROPE)
        return queries, rope, self._absorb(layer, tokens, latent.kv_rank, latent.nope_dim, "absorb queries")

    def reads(self, operator: Operator, block: Block) -> BatchQuantity:
        """Prompts absorb keys and values too."""
        return operator.reads

    def attend_selected(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        latent, indexing = self.facts(layer.model), indexer_of(layer.model)
        attention = SparseAttention(
            attended(rows),
            layer.heads,
            latent.cache_width,
            latent.kv_rank,
            indexing.topk,
            entry_bytes=latent.cache_width * self.element_bytes(layer.formats.cache),
            dtype=layer.wide_dtype,
            kv_dtype=self.element(layer),
            shards=layer.context_shards,
            apart=layer.selects_apart,
        )
        return (attention,)

    def expand(self, layer: ServingShard, tokens: int) -> tuple[Operator, ...]:
        """Empty: prompts attend latents too."""
        return ()

    def leave(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        latent, tokens = self.facts(layer.model), tokens_of(rows)
        values = self._absorb(layer, tokens, latent.value_dim, latent.kv_rank, "values from latent")
        return values, layer.output(tokens)

    def kv_up_proj_width(self, layer: ServingShard) -> int:
        """0: prompts attend latents too."""
        return 0

    # --- work and cache -------------------------------------------------------------------------------------

    def breakpoints(self, model: Dimensions, block: Block) -> tuple[int, ...]:
        return (indexer_of(model).topk,)

    def cache(self, model: Dimensions, block: Block, cache_type: str, state_type: str = "fp32") -> CacheUse:
        """A latent and a rotary key a token, and an index key in layers with an indexer."""
        shared = key_bytes(indexer_of(model)) if block.indexer else 0.0
        return replace(super().cache(model, block, cache_type), shared_token_bytes=shared)

    def pair_flops(self, model: Dimensions, block: Block, pairs: float) -> float:
        """Latent attention over at most ``topk`` tokens; the indexer's 2·head_dim a head over all."""
        indexing = indexer_of(model)
        scored = 2.0 * indexing.heads * indexing.head_dim * pairs if block.indexer else 0.0
        return super().pair_flops(model, block, min(pairs, indexing.topk)) + scored


def index_entry(layer: ServingShard, tokens: int, entering: int, key_columns: int = 0) -> tuple[Operator, ...]:
    """Operators that make an indexer's queries, keys and head weights of ``tokens`` tokens.

    One kernel rotates and quantises them and writes the keys to the cache. ``entering`` is the width of the queries'
    input; ``key_columns`` are the columns of the key projection (0: the key's width).
    """
    indexing = indexer_of(layer.model)
    queries = indexing.heads * indexing.head_dim
    columns = (key_columns or indexing.head_dim) + indexing.heads
    products: tuple[Gemm, ...] = (
        product(layer, tokens, queries, entering, "indexer's queries", Role.LATENT_DOWN),
        product(layer, tokens, columns, layer.model.hidden, "indexer's key and weights", Role.LATENT_DOWN),
    )
    read = (queries + columns) * layer.activation_bytes
    size = tokens * (read + queries + key_bytes(indexing) + 4.0 * indexing.heads)
    return *products, MemoryBound("rope", size, tokens, name="indexer's rope + cache write", role=Role.ROPE)


SPARSE_LATENT = ATTENTION_KINDS.register(SparseLatent())
