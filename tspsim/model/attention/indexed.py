"""What kinds of attention with an indexer have in common: its keys, its scores, and the selection.

An indexer scores the entries of a query's context and selects the best; attention reads these alone.
"""

from __future__ import annotations

from abc import abstractmethod

from ...operators import Gemm, Indexer, MemoryBound, Operator, Role, Rows
from ..parts import Block, Dimensions, IndexerSpec
from ..shard import ServingShard
from .base import AttentionKind, attended, product


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
        if not layer.kind.indexer:
            return ()
        indexing = indexer_of(layer.model)
        shape = indexing.heads, indexing.head_dim, indexing.topk
        tokens = layer.kind.compression or 1
        return (Indexer(attended(rows), *shape, tokens, key_bytes(indexing), shards=layer.index_shards),)

    @abstractmethod
    def attend_selected(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Attention to what was selected."""

    def index_topk(self, model: Dimensions, block: Block) -> int:
        return indexer_of(model).topk if block.indexer else 0

    def index_key_elements(self, model: Dimensions, block: Block) -> float:
        return indexer_of(model).head_dim / (block.compression or 1) if block.indexer else 0.0


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
