"""What a decoder-only transformer is made of, and what follows from it: parameters and FLOPs.

Letters: h hidden, H query heads, KV key/value heads, d head width, a = H·d, c = KV·d, f FFN width,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Architecture:
    """A dense decoder: ``layers`` equal blocks of (grouped-query) attention and an MLP, gated or not.

    Parameters
    ----------
    name
        Catalog name, or the file's.
    layers, hidden
        Blocks, and the width of the residual stream.
    heads, kv_heads, head_dim
        Query heads, key/value heads (equal to ``heads`` in multi-head attention), width of one head.
    ffn
        Columns of the MLP.
    gated
        Three matrices (gate, up, down) instead of two.
    vocab
        Rows of the embedding; 0 for a benchmark model that is only its blocks.
    tied_embeddings
        Input embedding and language-model head are one matrix.
    qk_norm
        Q and K are normalised a head.
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
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool = True
    vocab: int = 0
    tied_embeddings: bool = False
    qk_norm: bool = False
    attention_bias: bool = False
    linear_bias: bool = False
    learned_positions: bool = False
    max_context: int = 0
    source: str = ""
    note: str = ""

    @property
    def attention_width(self) -> int:
        """a = H·d: often h, not always (Qwen3-32B has 8192 beside 5120)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """c = KV·d, of K alone; V is the same."""
        return self.kv_heads * self.head_dim

    @property
    def attention_matrix_parameters_per_layer(self) -> int:
        """Wq, Wk, Wv, Wo: h·(2a + 2c)."""
        return self.hidden * 2 * (self.attention_width + self.kv_width)

    @property
    def attention_parameters_per_layer(self) -> int:
        """The four matrices and, where the model has them, their biases."""
        bias = self.attention_width + 2 * self.kv_width if self.attention_bias or self.linear_bias else 0
        return self.attention_matrix_parameters_per_layer + bias + (self.hidden if self.linear_bias else 0)

    @property
    def mlp_matrix_parameters_per_layer(self) -> int:
        """Gate, up, down: 3·h·f; without gate 2·h·f."""
        return (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def mlp_parameters_per_layer(self) -> int:
        """The matrices and, where the model has them, their biases."""
        bias = (2 if self.gated else 1) * self.ffn + self.hidden if self.linear_bias else 0
        return self.mlp_matrix_parameters_per_layer + bias

    @property
    def norm_parameters_per_layer(self) -> int:
        """Two norms over h, and those of Q and K over d."""
        return 2 * self._norm_parameters + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def parameters_per_layer(self) -> int:
        """All of one block."""
        return (
            self.attention_parameters_per_layer
            + self.mlp_parameters_per_layer
            + self.norm_parameters_per_layer
        )

    @property
    def embedding_parameters(self) -> int:
        """Input embedding, language-model head where it is not the same matrix, learned positions."""
        tables = 1 if self.tied_embeddings else 2
        positions = self.max_context * self.hidden if self.learned_positions else 0
        return tables * self.vocab * self.hidden + positions

    @property
    def parameters(self) -> int:
        """The whole model: blocks, final norm, embeddings. A model without vocabulary is its blocks alone."""
        final_norm = self._norm_parameters if self.vocab else 0
        return self.layers * self.parameters_per_layer + final_norm + self.embedding_parameters

    @property
    def _norm_parameters(self) -> int:
        return self.hidden * (2 if self.linear_bias else 1)

    def layer_forward_flops_per_token(self, context: int, causal: bool = True) -> float:
        """One block's FLOPs a token, a multiply-add counted as two.

        2 a matrix parameter, and 4·a a query-key pair (Q·Kᵀ and P·V): averaged over a sequence of ``context``
        tokens, a token meets ``context`` others, half of them when causal.
        """
        matrices = self.attention_matrix_parameters_per_layer + self.mlp_matrix_parameters_per_layer
        pairs = context / 2 if causal else context
        return 2.0 * matrices + 4.0 * self.attention_width * pairs

    def forward_flops_per_token(self, context: int, causal: bool = True) -> float:
        """The whole model's FLOPs a token: all blocks and the language-model head (2·h·V)."""
        blocks = self.layers * self.layer_forward_flops_per_token(context, causal)
        return blocks + 2.0 * self.hidden * self.vocab
