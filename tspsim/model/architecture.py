"""What a decoder-only transformer is made of, and what follows from it: parameters, FLOPs and bytes of K and V.

Letters: h hidden, H query heads, KV key/value heads, d head width, a = H·d, c = KV·d, f FFN width, V vocabulary,
E experts of which a token visits k, f_e columns of one, f_s of all shared ones.
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
    """A decoder: ``layers`` blocks of attention and an MLP, all alike or of a few kinds in a fixed order.

    Parameters
    ----------
    name
        Catalog name, or the file's.
    layers, hidden
        Blocks, and the width of the residual stream.
    heads, kv_heads, head_dim
        Query heads, key/value heads (equal to ``heads`` in multi-head and latent attention), width of one head; with
        latent attention the mean of a key's and a value's width, so that a counts half of Q and output together.
    ffn
        Columns of the dense MLP; 0 where every layer has experts.
    gated
        Three matrices (gate, up, down) instead of two, in experts as well.
    vocab
        Rows of the embedding; 0 for a benchmark model that is only its blocks.
    tied_embeddings
        Input embedding and language-model head are one matrix.
    qk_norm
        Q and K are normalised a head.
    qk_norm_wide
        With it: over all heads together, so that ranks which divide heads sum squares.
    attention_bias
        The Q, K and V projections have a bias.
    linear_bias
        Every projection has a bias, and norms as well (LayerNorm), as in GPT-2 and its kin.
    learned_positions
        A table of ``max_context`` position embeddings.
    max_context
        Longest sequence the model was made for, in tokens; 0 when unknown. Longer ones can be simulated.
    source
        Where the numbers come from.
    note
        What of the original is simplified here; empty when nothing is.
    latent
        Latent attention; None is (grouped-query) attention with a K and V a head.
    experts
        Mixture of experts; None where every MLP is dense.
    window, full_every
        Tokens that a layer with windowed attention sees, 0 where all layers see the whole context; every
        ``full_every``-th layer sees it in any case (2: layers 1, 3, 5, … from 0).
    chunk
        Tokens of the chunks of a sequence that attend themselves alone, in the same layers instead of a window; 0: no
        chunks.
    multi_token
        Modules that predict one token more each (DeepSeek-V3, §2.2): a layer of the last kind behind a projection
        from 2h. They are not part of ``parameters``.
    attention
        The kind of attention that says what each layer has, a name in :data:`ATTENTION_KINDS`; left out, latent
        attention where ``latent`` is given and grouped-query attention where it is not.
    output_gate
        As many columns as queries, whose sigmoid multiplies what grouped-query attention gives.
    indexing
        The indexer that chooses what is attended; None: everything is.
    linear
        Layers that keep a state instead of a cache; None where there are none.
    compressed
        Latents kept once for several tokens; None where each token has its own.
    checkpoint
        Types in which the published checkpoint keeps the classes of weights.
    own
        Facts of a kind of attention that has no field here: whatever frozen value its section gives
        (:meth:`~tspsim.model.attention.sections.AttentionSection.facts`), read by that kind alone.
    residual_lanes
        Lanes of the residual stream; more than one: hyper-connections mix them before and behind every block. Their
        weights are no part of ``parameters``.
    """

    def __post_init__(self) -> None:
        if not self.attention:
            object.__setattr__(self, "attention", LATENT.name if self.latent else GROUPED.name)

    @once
    def stated(self) -> frozenset[str]:
        """Its fields that do not stand at their default."""
        return stated_fields(self)

    # --- layers ---------------------------------------------------------------------------------------------

    def block(self, layer: int) -> Block:
        """What layer number ``layer`` (from 0) is made of."""
        experts = self.experts
        routed = experts is not None and layer >= experts.first_dense and (layer + 1) % experts.every == 0
        return self.attention_kind.block(self, layer)._replace(experts=routed)

    @once
    def blocks(self) -> tuple[Block, ...]:
        """What every layer is made of, in order; layers that are alike have the same object."""
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
        """Neighbours that are alike: the first, the one behind the last, and what they are made of."""
        ends = [0, *itertools.accumulate(len(list(alike)) for _, alike in itertools.groupby(self.blocks))]
        return tuple((first, end, self.blocks[first]) for first, end in itertools.pairwise(ends))

    def kinds(self, first: int, layers: int) -> Iterator[tuple[Block, int]]:
        """Of consecutive layers, which kinds there are and how many of each stand together."""
        for begin, end, block in self._runs:
            count = min(end, first + layers) - max(begin, first)
            if count > 0:
                yield block, count

    @property
    def further_block(self) -> Block:
        """What a module for further tokens is made of behind its projection: a layer like the last, with its kind's
        attention for it."""
        return self.attention_kind.further_block(self)._replace(experts=self.blocks[-1].experts)

    @property
    def attention_kind(self) -> AttentionKind:
        """The kind that says which attention each layer has; that of a layer is :meth:`attention_of`."""
        return ATTENTION_KINDS.get(self.attention)

    def attention_of(self, block: Block) -> AttentionKind:
        """The kind of attention of one layer."""
        return ATTENTION_KINDS.get(block.attention)

    @property
    def whole_pass(self) -> Architecture:
        """The model as training and forward steps run it; raises InputError where only serving steps do."""
        return self.attention_kind.whole_pass(self)

    # --- parameters -----------------------------------------------------------------------------------------

    @property
    def attention_matrix_parameters_per_layer(self) -> int:
        """Of the first layer: Wq, Wk, Wv, Wo, h·(2a + 2c); other kinds say theirs."""
        return self.attention_matrix_parameters(self.blocks[0])

    def attention_matrix_parameters(self, block: Block) -> int:
        """Matrix elements of a layer's attention."""
        return self.attention_of(block).matrix_parameters(self, block)

    def attention_parameters(self, block: Block) -> int:
        """The matrices, biases and what else belongs to them; norms are apart."""
        return self.attention_matrix_parameters(block) + self.attention_of(block).other_parameters(self, block)

    @property
    def mlp_matrix_parameters_per_layer(self) -> int:
        """Gate, up, down of a dense MLP: 3·h·f; without gate 2·h·f."""
        return self.matrices * self.hidden * self.ffn

    @property
    def mlp_parameters_per_layer(self) -> int:
        """The dense MLP's matrices and, where the model has them, their biases."""
        bias = (2 if self.gated else 1) * self.ffn + self.hidden if self.linear_bias else 0
        return self.mlp_matrix_parameters_per_layer + bias

    @property
    def expert_parameters(self) -> int:
        """One routed expert: 3·h·f_e."""
        return self.matrices * self.hidden * self.experts.width if self.experts else 0

    @property
    def routed_parameters_per_layer(self) -> int:
        """All routed experts of a layer that has them."""
        return self.experts.count * self.expert_parameters if self.experts else 0

    @property
    def shared_matrix_parameters_per_layer(self) -> int:
        """Shared experts and router of a layer with experts: 3·h·f_s + h·E, and h of a gate."""
        experts = self.experts
        if experts is None:
            return 0
        return self.hidden * (self.matrices * experts.shared_width + experts.count + experts.shared_gate)

    def norm_parameters(self, block: Block) -> int:
        """Two norms over h, and those inside attention."""
        return 2 * self._norm_parameters + self.attention_of(block).norm_parameters(self, block)

    def class_parameters(self, block: Block) -> Mapping[WeightClass, int]:
        """One block's parameters by class; norms count to attention, the router to shared experts."""
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
        """All of one block."""
        return sum(self.class_parameters(block).values())

    @property
    def embedding_parameters(self) -> int:
        """Input embedding, language-model head where it is not the same matrix, learned positions."""
        tables = 1 if self.tied_embeddings else 2
        positions = self.max_context * self.hidden if self.learned_positions else 0
        return tables * self.vocab * self.hidden + positions

    @property
    def parameters_outside_layers(self) -> int:
        """Embeddings and the final norm; a model without vocabulary is its blocks alone."""
        return self.embedding_parameters + (self._norm_parameters if self.vocab else 0)

    @property
    def outside_parameters(self) -> Mapping[WeightClass, int]:
        """The same by class."""
        return {WeightClass.EMBEDDING: self.parameters_outside_layers}

    @property
    def parameters(self) -> int:
        """The whole model: blocks, final norm, embeddings."""
        return sum(self.block_parameters(block) for block in self.blocks) + self.parameters_outside_layers

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: of the routed experts only the k it visits."""
        if self.experts is None:
            return self.parameters
        idle = (self.experts.count - self.experts.topk) * self.expert_parameters
        return self.parameters - idle * self.routed_layers

    def weight_bytes(self, formats: Formats | None = None, *, multi_token: bool = False) -> float:
        """Bytes of all weights, each class in its type; ``multi_token``: with the modules for further tokens.

        ``formats`` left out is :attr:`checkpoint`: what the published checkpoint holds of the model. Scales are
        counted as :func:`tspsim.operators.weight_bytes` says; encoders of images are no part of any model here.
        """
        kept = self.checkpoint if formats is None else formats
        blocks = [*self.blocks, *([self.further_block] * self.multi_token if multi_token else ())]
        sizes = {block: kept.bytes_of(self.class_parameters(block)) for block in dict.fromkeys(blocks)}
        joins = self.multi_token * self.join_parameters if multi_token else 0
        outside = kept.bytes_of(self.outside_parameters) + kept.bytes_of({WeightClass.ATTENTION: joins})
        return sum(sizes[block] for block in blocks) + outside

    @property
    def join_parameters(self) -> int:
        """Of one such module's projection from 2h and its three norms."""
        return 2 * self.hidden**2 + 3 * self._norm_parameters

    @property
    def _norm_parameters(self) -> int:
        return self.hidden * (2 if self.linear_bias else 1)

    def common_matrix_parameters(self, block: Block) -> int:
        """Matrix elements of a block that every token is multiplied with: of experts the shared ones."""
        mlp = self.shared_matrix_parameters_per_layer if block.experts else self.mlp_matrix_parameters_per_layer
        return self.attention_matrix_parameters(block) + mlp

    def steady(self, layers: int) -> Architecture:
        """The repeating blocks alone: ``layers`` or a few more, so that those behind the first are whole periods
        of its pattern; no dense layers at the start, no full attention at the end, no vocabulary."""
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
        self, block: Block, context: float, causal: bool = True, kept: float = 1.0
    ) -> float:
        """One block's FLOPs a token, a multiply-add counted as two.

        2 a matrix element the token meets, and 4·a a query-key pair (Q·Kᵀ and P·V), or what its kind of attention says
        of a pair: averaged over a sequence of ``context`` tokens, a token meets ``context`` others, half of them when
        causal, no more than its window.
        ``kept`` is the share of its visits to routed experts that is not dropped.
        """
        pairs = context / 2 if causal else context
        common = self.common_matrix_parameters(block)
        met = common + kept * (self.active_matrix_parameters(block) - common)
        return 2.0 * met + self.attention_of(block).pair_flops(self, block, pairs)

    def layer_forward_flops_per_token(self, context: float, causal: bool = True, kept: float = 1.0) -> float:
        """FLOPs a token of one block, mean over the blocks; ``kept`` as for one block."""
        kinds = {
            block: self.block_forward_flops_per_token(block, context, causal, kept)
            for block in dict.fromkeys(self.blocks)
        }
        if len(kinds) == 1:
            return next(iter(kinds.values()))
        return sum(kinds[block] for block in self.blocks) / self.layers

    def forward_flops_per_token(self, context: float, causal: bool = True, kept: float = 1.0) -> float:
        """The whole model's FLOPs a token: all blocks and the language-model head (2·h·V); ``kept`` as for a block."""
        blocks = self.layers * self.layer_forward_flops_per_token(context, causal, kept)
        return blocks + 2.0 * self.hidden * self.vocab

    def cache_uses(self, cache_type: str | None = None, state_type: str | None = None) -> tuple[CacheUse, ...]:
        """What every layer keeps of a sequence, in a cache and states of these types (left out: as the checkpoint
        says).

        Raises
        ------
        InputError
            A layer's kind keeps no cache in this type.
        """
        types = cache_type or self.checkpoint.cache, state_type or self.checkpoint.state
        uses = {block: self.attention_of(block).cache(self, block, *types) for block in dict.fromkeys(self.blocks)}
        return tuple(uses[block] for block in self.blocks)

    def cache_bytes(self, context: int, cache_type: str | None = None, state_type: str | None = None) -> float:
        """Bytes of one sequence of ``context`` tokens, all layers, before any sharding: what grows, windows, states."""
        return sum(use.bytes_of(context) for use in self.cache_uses(cache_type, state_type))

    def cache_bytes_per_token(self, cache_type: str | None = None) -> float:
        """Bytes that one more token of a long sequence adds, all layers: windows and states are full."""
        uses = self.cache_uses(cache_type)
        return sum((0.0 if use.window else use.token_bytes) + use.shared_token_bytes for use in uses)

    def sequence_bytes(self, cache_type: str | None = None, state_type: str | None = None) -> float:
        """Bytes of a long sequence that do not grow, all layers: states, and windows that are full."""
        uses = self.cache_uses(cache_type, state_type)
        windows = (use.window * use.token_bytes + use.latest * use.latest_token_bytes for use in uses)
        return sum(use.sequence_bytes for use in uses) + sum(windows)
