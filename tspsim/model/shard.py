"""Operators of one shard of a decoder layer, in training and in serving.

``shards`` divides heads and FFN columns: the tensor-parallel degree, or the steps of the folded schedule. Letters: n
tokens, h hidden, a = heads·head_dim and c = kv_heads·head_dim of the shard, f FFN columns of the shard. f is the dense
MLP's, or the shared experts' where the layer has experts (routed experts: :mod:`tspsim.model.routed`). Norms, rope,
residual adds and activations are the fused kernels of a compiled model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..base.memo import once
from ..operators import Attention, Computes, Gemm, LatentPrefill, MemoryBound, Operator, Role, element_bytes
from .parts import BF16, Block, Dimensions, Formats, WeightClass

#: Queries a tile of attention kernels (Dao 2023, arXiv:2307.08691, §3.3; :mod:`tspsim.hardware.prefill`).
TILE = 128

_BACK = Computes.INPUT_GRADIENT


def cut(queries: int, context: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut a causal segment where blocks of ``size`` tokens begin, which do not attend each other.

    The segment is the last ``queries`` of ``context`` tokens. Pieces are (query tokens, context tokens).

    >>> list(cut(6, 10, 4)), list(cut(4, 4, 8))
    ([(4, 4), (2, 2)], [(4, 4)])
    """
    at = context - queries
    while at < context:
        first = at // size * size
        end = min(context, first + size)
        yield end - at, end - first
        at = end


@dataclass(frozen=True)
class Shard:
    """``1/shards`` of a decoder layer; methods return its operators on ``tokens`` tokens."""

    model: Dimensions
    shards: int
    #: Type of the matrix products' operands.
    dtype: str = "bf16"
    #: Bytes of an activation element.
    activation_bytes: float = 2.0
    #: Composition of the layer; None: that of the model's first.
    block: Block | None = None
    #: Tokens of each document packed into a sequence; documents do not attend each other. 0: one document a sequence.
    document: int = 0

    @once
    def composition(self) -> Block:
        """Composition of the layer."""
        return self.model.block(0) if self.block is None else self.block

    @once
    def wide_dtype(self) -> str:
        """Type of attention and the language-model head, at least bf16: recipes in fp8 or fp4 do not quantise them."""
        return self.dtype if element_bytes(self.dtype) >= element_bytes("bf16") else "bf16"

    @once
    def heads(self) -> int:
        return self.model.heads // self.shards

    @once
    def kv_heads(self) -> int:
        """KV heads of the shard, at least 1: shards beyond the model's KV heads replicate them."""
        return max(1, self.model.kv_heads // self.shards)

    @once
    def query_width(self) -> int:
        latent = self.model.latent
        return self.heads * (latent.query_dim if latent else self.model.head_dim)

    @once
    def output_width(self) -> int:
        """Width of attention's output: the values of the shard's heads."""
        latent = self.model.latent
        return self.heads * (latent.value_dim if latent else self.model.head_dim)

    @once
    def kv_width(self) -> int:
        """Width of K; V is as wide."""
        return self.kv_heads * self.model.head_dim

    @once
    def ffn(self) -> int:
        experts = self.model.experts
        return (experts.shared_width if self.composition.experts and experts else self.model.ffn) // self.shards

    @once
    def entry_width(self) -> int:
        """Elements a token that enter the head-parallel projections: h, or the latents."""
        latent = self.model.latent
        if latent is None:
            return self.model.hidden
        return latent.down_width + (0 if latent.q_rank else self.model.hidden)

    @once
    def mlp_weights(self) -> int:
        """Weights of the shard's MLP: gate, up and down, or up and down without a gate."""
        return self.model.hidden * self.ffn * (3 if self.model.gated else 2)

    def norm(self, tokens: int) -> MemoryBound:
        """Residual add and norm in one kernel: reads two tensors, writes two."""
        size = 4.0 * tokens * self.model.hidden * self.activation_bytes
        return MemoryBound("add_rmsnorm", size, tokens, name="add + norm", role=Role.NORM)

    def add(self, tokens: int) -> MemoryBound:
        """Add the partial sums of two blocks: reads two tensors, writes one."""
        size = 3.0 * tokens * self.model.hidden * self.activation_bytes
        return MemoryBound("add", size, tokens, name="add blocks", role=Role.NORM)

    def qkv(self, tokens: int) -> Gemm:
        """QKV projection, with the output gate's columns. The norm before it writes its input in the product's type
        (Transformer Engine's LayerNormLinear)."""
        width = self.query_width * (2 if self.model.output_gate else 1) + 2 * self.kv_width
        hidden = self.model.hidden
        return Gemm(tokens, width, hidden, self.dtype, name="QKV projection", quantised=True, role=Role.QKV)

    def down_projections(self, tokens: int) -> tuple[Gemm, ...]:
        """Projection from the residual stream to the latents, the same on every shard; empty without latents."""
        latent = self.model.latent
        if latent is None:
            return ()
        width, hidden, joins = latent.down_width, self.model.hidden, 2 if latent.q_rank else 1
        return (Gemm(tokens, width, hidden, self.dtype, name="down to latents", role=Role.LATENT_DOWN, joins=joins),)

    def projections(self, tokens: int) -> tuple[Gemm, ...]:
        """Head-parallel projections: Q, K, V in one product; with latents, queries in one and K with V in another."""
        latent, hidden = self.model.latent, self.model.hidden
        if latent is None:
            return (self.qkv(tokens),)
        queries, both = self.heads * latent.query_dim, self.heads * (latent.nope_dim + latent.value_dim)
        entering, dtype = latent.q_rank or hidden, self.dtype
        return (
            Gemm(tokens, queries, entering, dtype, name="queries from latent", role=Role.LATENT_QUERIES),
            Gemm(tokens, both, latent.kv_rank, dtype, name="keys and values from latent", role=Role.LATENT_KEYS_VALUES),
        )

    def latent_norms(self, tokens: int, *, backward: bool = False) -> tuple[MemoryBound, ...]:
        """Norms of the query latent and the KV latent, a kernel each; empty without latents. Forward: one tensor read
        and one written. Backward: input and gradient read, gradient written."""
        latent = self.model.latent
        widths = (latent.q_rank, latent.kv_rank) if latent is not None else ()
        moved, name = (3.0, "norm of latent backward") if backward else (2.0, "norm of latent")
        return tuple(
            MemoryBound(
                "rmsnorm", moved * tokens * width * self.activation_bytes, tokens, name=name, role=Role.NORM,
                computes=_BACK if backward else Computes.OUTPUT,
            )
            for width in widths
            if width
        )  # fmt: skip

    def entering(self, tokens: int) -> tuple[Operator, ...]:
        """Operators before the head-parallel projections, for ranks that divide tokens: latents and their norms."""
        return *self.down_projections(tokens), *self.latent_norms(tokens)

    def projecting(self, tokens: int) -> tuple[Operator, ...]:
        """Head-parallel operators up to attention, for ranks that divide tokens."""
        return *self.projections(tokens), self.rope(tokens)

    def leaving(self, tokens: int) -> tuple[Operator, ...]:
        """Operators after attention, for ranks that divide tokens."""
        return (self.output(tokens),)

    def rope(self, tokens: int, *, backward: bool = False) -> MemoryBound:
        """Rotary embedding of Q and K in place, or of their gradients; per-head norms of Q and K run in the same
        kernel."""
        size = 2.0 * tokens * (self.heads + self.kv_heads) * self.model.head_dim * self.activation_bytes
        op = "qk_norm_rope" if self.model.qk_norm and not self.model.qk_norm_wide else "rope"
        computes = _BACK if backward else Computes.OUTPUT
        return MemoryBound(op, size, tokens, name="rope", role=Role.ROPE, computes=computes)

    def attention(
        self,
        segments: tuple[tuple[int, int], ...],
        *,
        causal: bool = True,
        buckets: int = 1,
        direction: str = "forward",
    ) -> Attention | LatentPrefill:
        """Attention of 1/``buckets`` of the shard's heads.

        ``segments`` are (query tokens, context tokens). Causal ones are cut where documents and chunks end; a window
        narrows all of them.
        """
        segments, causal = self.windowed(self.inside(segments) if causal else segments, causal)
        return Attention(
            segments,
            self.heads // buckets,
            max(1, self.kv_heads // buckets),
            self.model.head_dim,
            causal,
            self.wide_dtype,
            direction,
            name="attention" if direction == "forward" else "attention backward",
        )

    @once
    def borders(self) -> tuple[int, ...]:
        """Tokens of a document and of a chunk, whose borders attention does not cross."""
        return tuple(size for size in (self.document, self.composition.chunk) if size)

    def inside(self, segments: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """Causal segments cut at the borders of documents and chunks. Blocks shorter than a tile are cut as tiles: a
        kernel computes whole tiles under a mask."""
        for size in self.borders:
            segments = tuple(piece for segment in segments for piece in cut(*segment, max(size, TILE)))
        return segments

    def windowed(self, segments: tuple[tuple[int, int], ...], causal: bool) -> tuple[tuple[tuple[int, int], ...], bool]:
        """Segments under the layer's window, and whether they are causal.

        A causal segment is a triangle while the window fills, then a band in which every query sees ``window`` tokens.
        If no band is longer than the window, a band is counted as a causal piece with half its queries as further
        context, which has as many pairs. Otherwise every query counts the whole window: the pairs too many stand for
        the band's two edges, whose tiles kernels compute whole.
        """
        if not segments:
            return segments, causal
        queries, lengths = zip(*segments, strict=True)
        queries, lengths, causal = self.windowed_columns(queries, lengths, causal)
        return tuple(zip(queries, lengths, strict=True)), causal

    def windowed_columns(
        self, queries: tuple[int, ...], contexts: tuple[int, ...], causal: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
        """:meth:`windowed` of segments by columns."""
        window = self.composition.window
        if not window or max(contexts) <= window:
            return queries, contexts, causal
        longest = max(queries)
        # Most often it decides.
        if longest > window < contexts[queries.index(longest)] - window:
            causal = False
        elif causal:
            causal = max(map(min, queries, [context - window for context in contexts])) <= window
        if causal:
            beyond = [context - window if context > window else 0 for context in contexts]
            bands = [more if more < query else query for query, more in zip(queries, beyond, strict=True)]
            pieces = [
                *((q - band, context - band) for q, context, band in zip(queries, contexts, bands, strict=True)),
                *((band, window + band // 2) for band in bands),
            ]
            shown, seen = zip(*[piece for piece in pieces if piece[0]], strict=True)
            return shown, seen, True
        return queries, tuple([context if context < window else window for context in contexts]), False

    def merge(self, tokens: int) -> MemoryBound:
        """Merge a block's partial attention into the running one by log-sum-exp: reads two tensors, writes one."""
        size = 3.0 * tokens * self.output_width * self.activation_bytes
        return MemoryBound("add", size, tokens, name="merge blocks", role=Role.MERGE)

    def output(self, tokens: int) -> Gemm:
        hidden, width = self.model.hidden, self.output_width
        return Gemm(tokens, hidden, width, self.dtype, name="output projection", role=Role.OUTPUT)

    def gate_up(self, tokens: int) -> Gemm:
        return Gemm(
            tokens,
            self.ffn * (2 if self.model.gated else 1),
            self.model.hidden,
            self.dtype,
            name="gate and up",
            quantised=True,
            role=Role.GATE_UP,
        )

    def activation(self, tokens: int) -> MemoryBound:
        """SwiGLU reads two tensors and writes one; an activation without a gate reads one and writes one."""
        moved = 3.0 if self.model.gated else 2.0
        size = moved * tokens * self.ffn * self.activation_bytes
        return MemoryBound("swiglu", size, tokens, name="activation", role=Role.ACTIVATION)

    def norm_backward(self, tokens: int) -> MemoryBound:
        """Reads the input and the gradients of norm and residual; writes one gradient."""
        size = 4.0 * tokens * self.model.hidden * self.activation_bytes
        return MemoryBound("add_rmsnorm", size, tokens, name="norm backward", role=Role.NORM, computes=_BACK)

    def activation_backward(self, tokens: int) -> MemoryBound:
        """Reads the inputs and the output's gradient, writes the inputs' gradients: 5·f elements a token gated, 3·f
        not."""
        moved = 5.0 if self.model.gated else 3.0
        size = moved * tokens * self.ffn * self.activation_bytes
        role = Role.ACTIVATION
        return MemoryBound("swiglu", size, tokens, name="activation backward", role=role, computes=_BACK)

    def down(self, tokens: int) -> Gemm:
        return Gemm(tokens, self.model.hidden, self.ffn, self.dtype, name="down projection", role=Role.DOWN)

    def embedding(self, tokens: int) -> MemoryBound:
        """Reads rows of the embedding table and writes them."""
        size = 2.0 * tokens * self.model.hidden * self.activation_bytes
        return MemoryBound("copy", size, tokens, name="embedding lookup", role=Role.EMBEDDING)

    def head(self, tokens: int) -> Gemm:
        """Logits of this shard's rows of the vocabulary, which is padded to a multiple of ``shards``."""
        return Gemm(tokens, self.vocab, self.model.hidden, self.wide_dtype, name="language-model head", role=Role.HEAD)

    @once
    def vocab(self) -> int:
        return -(-self.model.vocab // self.shards)

    def sample(self, tokens: int) -> MemoryBound:
        """Sample a token from every row of unsharded fp32 logits: one write, and reads for maximum, sum and choice."""
        size = 16.0 * tokens * self.model.vocab
        return MemoryBound("softmax", size, tokens, name="sample", role=Role.HEAD)

    def loss(self, tokens: int) -> MemoryBound:
        """Cross-entropy of the shard's logits and its gradient: two reads and a write in the activations' type, and a
        write in fp32."""
        size = tokens * self.vocab * (3.0 * self.activation_bytes + 4.0)
        return MemoryBound("softmax", size, tokens, name="loss", role=Role.LOSS)


# --- serving --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServingShard(Shard):
    """A shard of a layer in a serving step; ``dtype`` is the type of attention's products."""

    #: Types of weights and cache.
    formats: Formats = BF16
    #: Ranks over which every context's tokens are divided.
    context_shards: int = 1
    #: Queries a sequence in a verify step: drafts + 1; 1 without drafts.
    verified: int = 1
    #: Ranks over which the indexer's keys are divided.
    index_shards: int = 1
    #: Every context shard attends the best ``topk`` of its own entries, not its share of the best of all.
    selects_apart: bool = False

    def held(self, tokens: int) -> int:
        """Tokens of a context of ``tokens`` on the context shard that holds most."""
        return -(-tokens // self.context_shards)

    def qkv(self, tokens: int) -> Gemm:
        return self._as(WeightClass.ATTENTION, super().qkv(tokens))

    def down_projections(self, tokens: int) -> tuple[Gemm, ...]:
        return tuple(self._as(WeightClass.ATTENTION, product) for product in super().down_projections(tokens))

    def projections(self, tokens: int) -> tuple[Gemm, ...]:
        return tuple(self._as(WeightClass.ATTENTION, product) for product in super().projections(tokens))

    def output(self, tokens: int) -> Gemm:
        return self._as(WeightClass.ATTENTION, super().output(tokens))

    def gate_up(self, tokens: int) -> Gemm:
        return self._as(self.mlp_class, super().gate_up(tokens))

    def down(self, tokens: int) -> Gemm:
        return self._as(self.mlp_class, super().down(tokens))

    def head(self, tokens: int) -> Gemm:
        return self._as(WeightClass.EMBEDDING, super().head(tokens))

    @property
    def mlp_class(self) -> WeightClass:
        """Weight class of the MLP that every token goes through."""
        return WeightClass.SHARED if self.composition.experts else WeightClass.DENSE

    def _as(self, part: WeightClass, product: Gemm) -> Gemm:
        return product.read_as(self.formats.multiplied(part), self.formats.read(part))
