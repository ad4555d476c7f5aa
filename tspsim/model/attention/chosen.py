"""Latent attention to the tokens that an indexer chooses (DeepSeek Sparse Attention).

DeepSeek-AI 2025, DeepSeek-V3.2, §2.1. A layer that owns an indexer keeps a key of its own for every token and scores
them all; one that owns none takes the choice of the layer before it. Prefill and decoding both attend latents with
absorbed queries, as engines run it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...operators import BatchQuantity, Gemm, Indexer, MemoryBound, Operator, Role, SparseAttention
from ..parts import Block, Dimensions, Indexing
from ..shard import ServingShard
from .base import ATTENTION_KINDS, CacheUse, Model, Rows, attended, product, tokens_of
from .latent import LATENT, Latent

if TYPE_CHECKING:
    from .sections import AttentionSection


def indexing_of(model: Dimensions) -> Indexing:
    assert model.indexing is not None
    return model.indexing


def key_bytes(indexing: Indexing) -> float:
    """Bytes of an indexer's key in a cache: fp8, and a scale of four bytes a block of 128 (vLLM, SGLang)."""
    return indexing.head_dim + 4.0 * -(-indexing.head_dim // 128)


class Chosen(Latent):
    """One latent a token, cached, of which a query attends the best."""

    name = "dsa"
    divides_prompts = True
    chooses = True

    @property
    def section(self) -> type[AttentionSection]:
        from .sections import SparseSection

        return SparseSection

    def describe(self, model: Dimensions) -> dict[str, Any]:
        indexing = indexing_of(model)
        return super().describe(model) | {
            "kind": self.name, "index_heads": indexing.heads, "index_dim": indexing.head_dim,
            "index_topk": indexing.topk, "index_every": indexing.every, "index_shared_from": indexing.shared_from,
        }  # fmt: skip

    def block(self, model: Dimensions, layer: int) -> Block:
        return Block(attention=self.name, indexer=indexing_of(model).owned(layer))

    def further_block(self, model: Dimensions) -> Block:
        """It owns an indexer, whoever does before it."""
        return Block(attention=self.name, indexer=True)

    def period(self, model: Dimensions) -> int:
        return indexing_of(model).every

    def whole_pass(self, model: Model) -> Model:
        """Attention to the whole context, without indexers."""
        indexing = indexing_of(model)
        left_out = self._index_matrices(model) / 1e6
        note = (
            f"Attention reads the whole context, not the {indexing.topk} tokens an indexer chooses, and the indexer's "
            f"{left_out:.1f} M parameters a layer are left out."
        )
        return replace(model, attention=LATENT.name, indexing=None, note=f"{model.note} {note}".strip())

    # --- parameters -----------------------------------------------------------------------------------------

    def matrix_parameters(self, model: Dimensions, block: Block) -> int:
        """Of latent attention, and of the indexer: queries from the queries' latent, a key and a weight a head."""
        indexer = self._index_matrices(model) if block.indexer else 0
        return super().matrix_parameters(model, block) + indexer

    def undivided_parameters(self, model: Dimensions, block: Block) -> int:
        """Projections down to the latents, and the indexer."""
        return super().undivided_parameters(model, block) + (self._index_matrices(model) if block.indexer else 0)

    def norm_parameters(self, model: Dimensions, block: Block) -> int:
        """The indexer's key has a norm with a bias."""
        return super().norm_parameters(model, block) + (2 * indexing_of(model).head_dim if block.indexer else 0)

    def _index_matrices(self, model: Dimensions) -> int:
        indexing, entering = indexing_of(model), self.facts(model).q_rank or model.hidden
        return entering * indexing.heads * indexing.head_dim + model.hidden * (indexing.head_dim + indexing.heads)

    # --- serving steps --------------------------------------------------------------------------------------

    def enter(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        operators = super().enter(layer, rows)
        if not layer.kind.indexer:
            return operators
        return *operators, *index_entry(layer, tokens_of(rows), self.facts(layer.model).q_rank or layer.model.hidden)

    def project(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        latent, tokens = self.facts(layer.model), tokens_of(rows)
        queries, _ = layer.projections(tokens)
        size = 2.0 * tokens * layer.heads * latent.rope_dim * layer.activation_bytes
        rope = MemoryBound("rope", size, tokens, role=Role.ROPE)
        return queries, rope, self._absorb(layer, tokens, latent.kv_rank, latent.nope_dim, "absorb queries")

    def attend(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        return *self.choose(layer, rows), *self.attend_chosen(layer, rows)

    def reads(self, operator: Operator, block: Block) -> BatchQuantity:
        """Prompts absorb keys and values too."""
        return operator.reads

    def choose(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        """Scores of the keys that this rank has, and the best of those."""
        if not layer.kind.indexer:
            return ()
        indexing = indexing_of(layer.model)
        shape = indexing.heads, indexing.head_dim, indexing.topk
        return (Indexer(attended(rows), *shape, key_bytes=key_bytes(indexing), shards=layer.index_shards),)

    def attend_chosen(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        latent, indexing = self.facts(layer.model), indexing_of(layer.model)
        attention = SparseAttention(
            attended(rows),
            layer.heads,
            latent.cache_width,
            latent.kv_rank,
            indexing.topk,
            entry_bytes=latent.cache_width * self.element_bytes(layer.formats.cache),
            dtype=layer.wide,
            kv_dtype=self.element(layer),
            shards=layer.context_shards,
            apart=layer.chooses_apart,
        )
        return (attention,)

    def choices(self, model: Dimensions, block: Block) -> int:
        return indexing_of(model).topk if block.indexer else 0

    def scored_elements(self, model: Dimensions, block: Block) -> float:
        return indexing_of(model).head_dim if block.indexer else 0.0

    def expand(self, layer: ServingShard, tokens: int) -> tuple[Operator, ...]:
        """Nothing: prompts attend latents too."""
        return ()

    def leave(self, layer: ServingShard, rows: Rows) -> tuple[Operator, ...]:
        latent, tokens = self.facts(layer.model), tokens_of(rows)
        values = self._absorb(layer, tokens, latent.value_dim, latent.kv_rank, "values from latent")
        return values, layer.output(tokens)

    def unpacked_width(self, layer: ServingShard) -> int:
        """None: prompts attend latents too."""
        return 0

    # --- work and cache -------------------------------------------------------------------------------------

    def bends(self, model: Dimensions, block: Block) -> tuple[int, ...]:
        return (indexing_of(model).topk,)

    def cache(self, model: Dimensions, block: Block, cache_type: str, state_type: str = "fp32") -> CacheUse:
        """A latent and a rotary key a token, and the key of an indexer where the layer owns one."""
        shared = key_bytes(indexing_of(model)) if block.indexer else 0.0
        return replace(super().cache(model, block, cache_type), shared_token_bytes=shared)

    def pair_flops(self, model: Dimensions, block: Block, pairs: float) -> float:
        """Latent attention's of the chosen tokens, and 2·head_dim a head of the indexer of all."""
        indexing = indexing_of(model)
        scored = 2.0 * indexing.heads * indexing.head_dim * pairs if block.indexer else 0.0
        return super().pair_flops(model, block, min(pairs, indexing.topk)) + scored


def index_entry(layer: ServingShard, tokens: int, entering: int, key_columns: int = 0) -> tuple[Operator, ...]:
    """An indexer's queries, key and weights of some tokens, and the fp8 queries and key written, in one kernel.

    ``key_columns`` are those of the product that makes keys: head_dim when left out.
    """
    indexing = indexing_of(layer.model)
    queries = indexing.heads * indexing.head_dim
    columns = (key_columns or indexing.head_dim) + indexing.heads
    products: tuple[Gemm, ...] = (
        product(layer, tokens, queries, entering, "indexer's queries", Role.LATENT_DOWN),
        product(layer, tokens, columns, layer.model.hidden, "indexer's key and weights", Role.LATENT_DOWN),
    )
    read = (queries + columns) * layer.activation_bytes
    size = tokens * (read + queries + key_bytes(indexing) + 4.0 * indexing.heads)
    return *products, MemoryBound("rope", size, tokens, name="indexer's rope + cache write", role=Role.ROPE)


CHOSEN = ATTENTION_KINDS.register(Chosen())
