"""A decoder-only transformer's dimensions, and its parameters, FLOPs and cache bytes that follow from them.

Letters: h hidden, H query heads, KV key/value heads, d head width, a = H·d, c = KV·d, f FFN width, V vocabulary,
E routed experts, k experts a token, f_e columns of one routed expert, f_s columns of all shared experts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import lcm

from ..base.memo import once
from ..base.quick import stated_fields
from .attention import ATTENTION_KINDS, GROUPED, LATENT, AttentionKind, CacheUse
from .parts import Block, Dimensions, Formats, WeightClass


@dataclass(frozen=True)
class Architecture(Dimensions):
    """A decoder of ``layers`` blocks, each attention and an MLP, of one kind or of a few kinds in a fixed order.

    Parameters
    ----------
    name
        Catalog name, or the file's.
    layers, hidden
        Number of blocks; width of the residual stream.
    heads, kv_heads, head_dim
        Query heads; key/value heads (equal to ``heads`` in multi-head and latent attention); width of a head. With
        latent attention ``head_dim`` is the mean of a key's and a value's width, so that 2·a counts Q and the output.
    ffn
        Columns of the dense MLP; 0 where every layer has experts.
    gated
        Dense MLPs and experts have three matrices (gate, up, down) instead of two.
    vocab
        Rows of the embedding; 0 for a benchmark model of blocks alone.
    tied_embeddings
        Input embedding and language-model head are one matrix.
    qk_norm
        Q and K are normalised per head.
    qk_norm_wide
        Q and K are normalised over all heads together: tensor-parallel ranks sum their squares.
    attention_bias
        The Q, K and V projections have a bias.
    linear_bias
        Every projection has a bias, and norms as well (LayerNorm), as in GPT-2.
    learned_positions
        The model has a table of ``max_context`` position embeddings.
    max_context
        Longest sequence that the model was trained for, in tokens; 0: unknown. Longer ones can be simulated.
    source
        Source of the numbers.
    note
        Simplifications of the original; empty: none.
    latent
        Latent attention (MLA); None: keys and values per head.
    experts
        Mixture of experts; None: every MLP is dense.
    window, full_every
        Tokens that a layer with windowed attention sees, 0: every layer sees the whole context; every
        ``full_every``-th layer has full attention (2: layers 1, 3, 5, … from 0; 0: none).
    chunk
        Tokens of a chunk of the sequence that attends only itself, in the layers that would have a window; 0: no
        chunks.
    multi_token
        Multi-token-prediction modules (DeepSeek-V3, §2.2): each is a layer of the last kind behind a projection from
        2h to h. ``parameters`` does not count them.
    attention
        Name of the attention kind in :data:`ATTENTION_KINDS`, which says what each layer has. Left out: latent
        attention where ``latent`` is given, else grouped-query attention.
    output_gate
        The sigmoid of a gate as wide as the queries multiplies the output of grouped-query attention.
    indexing
        Indexer of sparse attention; None: every query attends its whole context.
    linear
        Linear-attention layers, which keep a state instead of a cache; None: no such layers.
    compressed
        Compressed attention, which caches one latent for several tokens; None: one entry a token.
    checkpoint
        Types of the weights, the cache and the state in the published checkpoint.
    own
        Facts of an attention kind that have no field here: one frozen value from its section
        (:meth:`~tspsim.model.attention.sections.AttentionSection.facts`), read by that kind alone.
    residual_lanes
        Lanes of the residual stream; more than one: hyper-connections mix them around every block. ``parameters`` does
        not count their weights.
    """

    def __post_init__(self) -> None:
        if not self.attention:
            object.__setattr__(self, "attention", LATENT.name if self.latent else GROUPED.name)

    @once
    def stated(self) -> frozenset[str]:
        """Names of the fields that differ from their default."""
        return stated_fields(self)

    # --- layers ---------------------------------------------------------------------------------------------

    def block(self, layer: int) -> Block:
        """Composition of layer number ``layer`` (from 0)."""
        experts = self.experts
        routed = experts is not None and layer >= experts.first_dense and (layer + 1) % experts.every == 0
        return self.attention_kind.block(self, layer)._replace(experts=routed)

    @once
    def blocks(self) -> tuple[Block, ...]:
        """Composition of every layer, in order; equal layers share one object."""
        blocks: dict[Block, Block] = {}
        return tuple(blocks.setdefault(block, block) for block in map(self.block, range(self.layers)))

    @once
    def routed_layers(self) -> int:
        """Layers with routed experts."""
        return sum(block.experts for block in self.blocks)

    @once
    def distinct(self) -> tuple[Block, ...]:
        """Kinds of layer, in order of first appearance."""
        return tuple(dict.fromkeys(block for _, _, block in self._runs))

    @once
    def _runs(self) -> tuple[tuple[int, int, Block], ...]:
        """Runs of equal neighbouring layers: (first layer, layer after the last, their composition)."""
        ends = [0, *itertools.accumulate(len(list(alike)) for _, alike in itertools.groupby(self.blocks))]
        return tuple((first, end, self.blocks[first]) for first, end in itertools.pairwise(ends))

    def kinds(self, first: int, layers: int) -> Iterator[tuple[Block, int]]:
        """Runs of equal layers among ``layers`` layers from ``first`` on: (composition, number of layers)."""
        for begin, end, block in self._runs:
            count = min(end, first + layers) - max(begin, first)
            if count > 0:
                yield block, count

    @property
    def further_block(self) -> Block:
        """Composition of a multi-token-prediction module's layer: that of the last layer, with the attention that its
        kind gives such modules."""
        return self.attention_kind.further_block(self)._replace(experts=self.blocks[-1].experts)

    @property
    def attention_kind(self) -> AttentionKind:
        """The model's attention kind. A single layer's may differ: :meth:`attention_of`."""
        return ATTENTION_KINDS.get(self.attention)

    def attention_of(self, block: Block) -> AttentionKind:
        """Attention kind of one layer."""
        return ATTENTION_KINDS.get(block.attention)

    @property
    def for_full_sequences(self) -> Architecture:
        """The model as training and forward steps run it; raises InputError for a kind that only serves."""
        return self.attention_kind.for_full_sequences(self)

    # --- parameters -----------------------------------------------------------------------------------------

    @property
    def attention_matrix_parameters_per_layer(self) -> int:
        """Matrix elements of the first layer's attention: h·(2a + 2c) for Wq, Wk, Wv, Wo."""
        return self.attention_matrix_parameters(self.blocks[0])

    def attention_matrix_parameters(self, block: Block) -> int:
        """Matrix elements of a layer's attention."""
        return self.attention_of(block).matrix_parameters(self, block)

    def attention_parameters(self, block: Block) -> int:
        """Matrices, biases and other parameters of a layer's attention; norms are not counted."""
        return self.attention_matrix_parameters(block) + self.attention_of(block).other_parameters(self, block)

    @property
    def mlp_matrix_parameters_per_layer(self) -> int:
        """Matrix elements of a dense MLP: 3·h·f (gate, up, down), or 2·h·f without a gate."""
        return self.matrices * self.hidden * self.ffn

    @property
    def mlp_parameters_per_layer(self) -> int:
        """Matrices of a dense MLP, and biases where the model has them."""
        bias = (2 if self.gated else 1) * self.ffn + self.hidden if self.linear_bias else 0
        return self.mlp_matrix_parameters_per_layer + bias

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert: 3·h·f_e, or 2·h·f_e without a gate; 0 in a dense model."""
        return self.matrices * self.hidden * self.experts.width if self.experts else 0

    @property
    def routed_parameters_per_layer(self) -> int:
        """Parameters of all routed experts of one layer with experts."""
        return self.experts.count * self.expert_parameters if self.experts else 0

    @property
    def shared_matrix_parameters_per_layer(self) -> int:
        """Matrix elements of shared experts and router of one layer with experts: 3·h·f_s + h·E, and h for a shared
        gate."""
        experts = self.experts
        if experts is None:
            return 0
        return self.hidden * (self.matrices * experts.shared_width + experts.count + experts.shared_gate)

    @property
    def router_parameters(self) -> int:
        """Matrix elements of the router of one layer with experts, and of a shared gate: what no rank divides."""
        return self.hidden * (self.experts.count + self.experts.shared_gate) if self.experts else 0

    def norm_parameters(self, block: Block) -> int:
        """Parameters of a layer's norms: two over h, and those inside attention."""
        return 2 * self._norm_parameters + self.attention_of(block).norm_parameters(self, block)

    def partial_parameters(self, block: Block, *, tokens_divided: bool) -> int:
        """Parameters of norms and biases of a layer of whose gradients each tensor-parallel rank has only a part, of
        its heads, or of its tokens if ranks divide these outside attention and MLP (Megatron-Core's
        ``_allreduce_layernorm_grads``)."""
        kind = self.attention_of(block)
        if not tokens_divided:
            return kind.head_norm_parameters(self, block)
        # Attention's output and the MLP's have a bias that is added to a part of the tokens.
        biases = 2 * self.hidden if self.linear_bias else 0
        return self.norm_parameters(block) - kind.divided_norm_parameters(self, block) + biases

    def class_parameters(self, block: Block) -> Mapping[WeightClass, int]:
        """Parameters of one block by weight class; attention counts the norms, shared experts the router."""
        attention = self.attention_parameters(block) + self.norm_parameters(block)
        if not block.experts or self.experts is None:
            return {WeightClass.ATTENTION: attention, WeightClass.DENSE: self.mlp_parameters_per_layer}
        bias = self.experts.count if self.experts.router_bias else 0
        return {
            WeightClass.ATTENTION: attention,
            WeightClass.SHARED: self.shared_matrix_parameters_per_layer + bias,
            WeightClass.EXPERTS: self.routed_parameters_per_layer,
        }

    def block_parameters(self, block: Block) -> int:
        """Parameters of one block."""
        return sum(self.class_parameters(block).values())

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding, of an untied language-model head and of learned positions."""
        tables = 1 if self.tied_embeddings else 2
        positions = self.max_context * self.hidden if self.learned_positions else 0
        return tables * self.vocab * self.hidden + positions

    @property
    def parameters_outside_layers(self) -> int:
        """Parameters of embeddings and final norm; 0 for a model without vocabulary or learned positions."""
        return self.embedding_parameters + self.final_norm_parameters

    @property
    def final_norm_parameters(self) -> int:
        """Parameters of the norm before the head; 0 for a model without vocabulary."""
        return self._norm_parameters if self.vocab else 0

    @property
    def outside_parameters(self) -> Mapping[WeightClass, int]:
        """Parameters outside the layers by weight class."""
        return {WeightClass.EMBEDDING: self.parameters_outside_layers}

    @property
    def parameters(self) -> int:
        """Parameters of the whole model: blocks, final norm, embeddings."""
        return sum(self.block_parameters(block) for block in self.blocks) + self.parameters_outside_layers

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: k routed experts in each layer with experts, and everything else."""
        if self.experts is None:
            return self.parameters
        idle = (self.experts.count - self.experts.topk) * self.expert_parameters
        return self.parameters - idle * self.routed_layers

    def weight_bytes(self, formats: Formats | None = None, *, multi_token: bool = False) -> float:
        """Bytes of all weights, each class in its type, scales included (:func:`tspsim.operators.weight_bytes`).

        Parameters
        ----------
        formats
            Types by weight class; None: those of the published checkpoint.
        multi_token
            Count the multi-token-prediction modules too.
        """
        kept = self.checkpoint if formats is None else formats
        blocks = [*self.blocks, *([self.further_block] * self.multi_token if multi_token else ())]
        sizes = {block: kept.bytes_of(self.class_parameters(block)) for block in dict.fromkeys(blocks)}
        joins = self.multi_token * self.join_parameters if multi_token else 0
        outside = kept.bytes_of(self.outside_parameters) + kept.bytes_of({WeightClass.ATTENTION: joins})
        return sum(sizes[block] for block in blocks) + outside

    @property
    def join_parameters(self) -> int:
        """Parameters of a multi-token-prediction module besides its layer: a projection from 2h and three norms."""
        return 2 * self.hidden**2 + 3 * self._norm_parameters

    @property
    def _norm_parameters(self) -> int:
        return self.hidden * (2 if self.linear_bias else 1)

    def common_matrix_parameters(self, block: Block) -> int:
        """Matrix elements of a block that every token is multiplied with: all but routed experts."""
        mlp = self.shared_matrix_parameters_per_layer if block.experts else self.mlp_matrix_parameters_per_layer
        return self.attention_matrix_parameters(block) + mlp

    def repeating_layers(self, layers: int) -> Architecture:
        """A model of at least ``layers`` repeating blocks: the first, and whole periods of the pattern after it.

        Dense layers at the start, an extra full-attention layer at the end and the vocabulary are left out.
        """
        period = lcm(self.attention_kind.period(self), self.experts.every if self.experts else 1)
        experts = replace(self.experts, first_dense=0) if self.experts else None
        count = period * -(-(layers - 1) // period) + 1
        linear = replace(self.linear, last_full=False) if self.linear else None
        return replace(self, layers=count, vocab=0, experts=experts, linear=linear)

    # --- work and cache -------------------------------------------------------------------------------------

    def active_matrix_parameters(self, block: Block) -> int:
        """Matrix elements of a block that one token is multiplied with."""
        routed = self.experts.topk * self.expert_parameters if block.experts and self.experts else 0
        return self.common_matrix_parameters(block) + routed

    def block_forward_flops_per_token(
        self, block: Block, context: float, causal: bool = True, kept: float = 1.0, before: float = 0.0
    ) -> float:
        """Forward FLOPs of one block a token, a multiply-add counted as two.

        2 FLOPs a matrix element, and 4·a a query-key pair (Q·Kᵀ and P·V) or what the attention kind counts
        (:meth:`AttentionKind.mean_flops`).

        Parameters
        ----------
        context
            Tokens of the sequence; the mean token attends all of them, or half of them when causal.
        causal
            Whether a token attends only the tokens before it.
        kept
            Share of the token's visits to routed experts that is not dropped, 0 to 1.
        before
            Tokens before the sequence whose keys and values are cached; all of its tokens attend them.
        """
        last = before + context
        attention = self.attention_of(block).mean_flops(self, block, before if causal else last, last)
        common = self.common_matrix_parameters(block)
        met = common + kept * (self.active_matrix_parameters(block) - common)
        return 2.0 * met + attention

    def layer_forward_flops_per_token(
        self, context: float, causal: bool = True, kept: float = 1.0, before: float = 0.0
    ) -> float:
        """Forward FLOPs a token of one block, mean over all blocks; parameters as of
        :meth:`block_forward_flops_per_token`."""
        kinds = {
            block: self.block_forward_flops_per_token(block, context, causal, kept, before)
            for block in dict.fromkeys(self.blocks)
        }
        if len(kinds) == 1:
            return next(iter(kinds.values()))
        return sum(kinds[block] for block in self.blocks) / self.layers

    def forward_flops_per_token(self, context: float, causal: bool = True, kept: float = 1.0) -> float:
        """Forward FLOPs a token of the whole model: all blocks, and 2·h·V of the language-model head."""
        blocks = self.layers * self.layer_forward_flops_per_token(context, causal, kept)
        return blocks + 2.0 * self.hidden * self.vocab

    def cache_uses(self, cache_type: str | None = None, state_type: str | None = None) -> tuple[CacheUse, ...]:
        """Cache use of every layer for one sequence; types left out are the checkpoint's.

        Raises
        ------
        InputError
            An attention kind of the model keeps no cache in ``cache_type``.
        """
        types = cache_type or self.checkpoint.cache, state_type or self.checkpoint.state
        uses = {block: self.attention_of(block).cache(self, block, *types) for block in dict.fromkeys(self.blocks)}
        return tuple(uses[block] for block in self.blocks)

    def cache_bytes(self, context: int, cache_type: str | None = None, state_type: str | None = None) -> float:
        """Bytes that all layers keep of one sequence of ``context`` tokens, before any sharding."""
        return sum(use.bytes_of(context) for use in self.cache_uses(cache_type, state_type))

    def cache_bytes_per_token(self, cache_type: str | None = None) -> float:
        """Bytes that one more token adds to the caches of all layers, in a sequence longer than every window."""
        uses = self.cache_uses(cache_type)
        return sum((0.0 if use.window else use.token_bytes) + use.shared_token_bytes for use in uses)

    def sequence_bytes(self, cache_type: str | None = None, state_type: str | None = None) -> float:
        """Bytes of a long sequence that do not grow with it, all layers: states and full windows."""
        uses = self.cache_uses(cache_type, state_type)
        windows = (use.window * use.token_bytes + use.latest * use.latest_token_bytes for use in uses)
        return sum(use.sequence_bytes for use in uses) + sum(windows)
