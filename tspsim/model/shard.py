"""One decoder layer as operators: what a shard of it computes on some tokens.

``shards`` divides heads and FFN columns (tensor-parallel degree, or the steps of the folded schedule). Letters: n
tokens, h hidden, a = heads·head_dim, c = kv_heads·head_dim of the shard, f FFN columns of the shard: of the dense
MLP, or of the shared experts where the layer has experts (the routed ones: :mod:`tspsim.model.routed`).
Norms, rope, residual adds and activations are counted as the fused kernels a compiled model runs.

A shard of a layer in a serving step's types, as kinds of attention are handed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..base.memo import once
from ..operators import Attention, Computes, Gemm, LatentPrefill, MemoryBound, Operator, Role, element_bytes
from .parts import BF16, Block, Dimensions, Formats, WeightClass

#: Queries of a tile of attention's kernels (Dao 2023, arXiv:2307.08691, §3.3; :mod:`tspsim.hardware.prefill`).
TILE = 128

_BACK = Computes.INPUT_GRADIENT


def cut(queries: int, context: int, size: int) -> Iterator[tuple[int, int]]:
    """The last ``queries`` of ``context`` tokens where runs of ``size`` tokens see nothing of each other.

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
    """``1/shards`` of a decoder layer; methods return operators on ``tokens`` tokens."""

    model: Dimensions
    shards: int
    #: Precision of the matrix products.
    dtype: str = "bf16"
    #: Bytes of an activation element.
    activation_bytes: float = 2.0
    #: Which of the model's kinds of layer; None is its first.
    block: Block | None = None
    #: Tokens of the documents packed into a sequence, which do not see each other; 0: a sequence is one.
    document: int = 0

    @once
    def kind(self) -> Block:
        return self.model.block(0) if self.block is None else self.block

    @once
    def wide(self) -> str:
        """The precision of what narrow recipes leave alone: attention, and the language-model head."""
        return self.dtype if element_bytes(self.dtype) >= element_bytes("bf16") else "bf16"

    @once
    def heads(self) -> int:
        return self.model.heads // self.shards

    @once
    def kv_heads(self) -> int:
        """At least one: beyond the model's key/value heads they are replicated."""
        return max(1, self.model.kv_heads // self.shards)

    @once
    def query_width(self) -> int:
        latent = self.model.latent
        return self.heads * (latent.query_dim if latent else self.model.head_dim)

    @once
    def output_width(self) -> int:
        """Width of attention's output, of the values of all heads."""
        latent = self.model.latent
        return self.heads * (latent.value_dim if latent else self.model.head_dim)

    @once
    def kv_width(self) -> int:
        """Width of K alone (V is the same)."""
        return self.kv_heads * self.model.head_dim

    @once
    def ffn(self) -> int:
        experts = self.model.experts
        return (experts.shared_width if self.kind.experts and experts else self.model.ffn) // self.shards

    @once
    def entry_width(self) -> int:
        """Elements a token that enter the projections split by heads: h, or the latents they are made from."""
        latent = self.model.latent
        if latent is None:
            return self.model.hidden
        return latent.down_width + (0 if latent.q_rank else self.model.hidden)

    @once
    def mlp_weights(self) -> int:
        """Elements of the packed [gate, up, down] shard (without gate: [up, down])."""
        return self.model.hidden * self.ffn * (3 if self.model.gated else 2)

    def norm(self, tokens: int) -> MemoryBound:
        """Residual add and norm in one kernel: reads two, writes two."""
        size = 4.0 * tokens * self.model.hidden * self.activation_bytes
        return MemoryBound("add_rmsnorm", size, tokens, name="add + norm", role=Role.NORM)

    def add(self, tokens: int) -> MemoryBound:
        """Partial sums of two blocks become one: reads two, writes one."""
        size = 3.0 * tokens * self.model.hidden * self.activation_bytes
        return MemoryBound("add", size, tokens, name="add blocks", role=Role.NORM)

    def qkv(self, tokens: int) -> Gemm:
        """With columns of an output gate. Its input leaves the norm before it in the product's precision (Transformer
        Engine's LayerNormLinear)."""
        width = self.query_width * (2 if self.model.output_gate else 1) + 2 * self.kv_width
        hidden = self.model.hidden
        return Gemm(tokens, width, hidden, self.dtype, name="QKV projection", quantised=True, role=Role.QKV)

    def down_projections(self, tokens: int) -> tuple[Gemm, ...]:
        """From the residual stream to the latents: the same on every shard; nothing without latent attention."""
        latent = self.model.latent
        if latent is None:
            return ()
        width, hidden = latent.down_width, self.model.hidden
        return (Gemm(tokens, width, hidden, self.dtype, name="down to latents", role=Role.LATENT_DOWN),)

    def projections(self, tokens: int) -> tuple[Gemm, ...]:
        """The products that heads divide: Q, K and V in one, or of a latent model queries, and keys with values."""
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
        """Of the queries' latent and of that of keys and values, a kernel each; nothing without latent attention. The
        backward reads the input and a gradient, and writes one."""
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
        """What stands before the heads where ranks have tokens of their own: projections down to latents, normed."""
        return *self.down_projections(tokens), *self.latent_norms(tokens)

    def projecting(self, tokens: int) -> tuple[Operator, ...]:
        """What heads divide there, up to attention."""
        return *self.projections(tokens), self.rope(tokens)

    def leaving(self, tokens: int) -> tuple[Operator, ...]:
        """What follows attention there."""
        return (self.output(tokens),)

    def rope(self, tokens: int) -> MemoryBound:
        """Rotary embedding of Q and K in place; with norms on Q and K in the same kernel."""
        size = 2.0 * tokens * (self.heads + self.kv_heads) * self.model.head_dim * self.activation_bytes
        op = "qk_norm_rope" if self.model.qk_norm and not self.model.qk_norm_wide else "rope"
        return MemoryBound(op, size, tokens, name="rope", role=Role.ROPE)

    def attention(
        self,
        segments: tuple[tuple[int, int], ...],
        *,
        causal: bool = True,
        buckets: int = 1,
        direction: str = "forward",
    ) -> Attention | LatentPrefill:
        """Attention of one of ``buckets`` equal parts of the shard's heads. Causal segments are cut where documents and
        chunks end, and narrowed by the layer's window if it has one; of others all is visible."""
        segments, causal = self.windowed(self.inside(segments) if causal else segments, causal)
        return Attention(
            segments,
            self.heads // buckets,
            max(1, self.kv_heads // buckets),
            self.model.head_dim,
            causal,
            self.wide,
            direction,
            name="attention" if direction == "forward" else "attention backward",
        )

    @once
    def borders(self) -> tuple[int, ...]:
        """Tokens after which nothing before is seen: of packed documents, and of the chunks of each."""
        return tuple(size for size in (self.document, self.kind.chunk) if size)

    def inside(self, segments: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        """Causal segments cut where documents end, and those where the layer's chunks do. Runs shorter than a tile
        share one behind a mask: a kernel computes whole tiles."""
        for size in self.borders:
            segments = tuple(piece for segment in segments for piece in cut(*segment, max(size, TILE)))
        return segments

    def windowed(self, segments: tuple[tuple[int, int], ...], causal: bool) -> tuple[tuple[tuple[int, int], ...], bool]:
        """What a window leaves of some segments.

        Where no band is longer than the window a piece is the triangle in which the window fills and the band behind
        it, as many pairs as a causal piece with half its queries more context. Longer ones see the whole window: the
        corner that does not stands for the band's two edges, whose tiles kernels compute whole.
        """
        window = self.kind.window
        if not window or all(context <= window for _, context in segments):
            return segments, causal
        growing = [min(max(window - context + queries, 0), queries) for queries, context in segments]
        bands = [queries - some for (queries, _), some in zip(segments, growing, strict=True)]
        if causal and max(bands) <= window:
            ends = [context - band for (_, context), band in zip(segments, bands, strict=True)]
            pieces = (*zip(growing, ends, strict=True), *((band, window + band // 2) for band in bands))
            return tuple(piece for piece in pieces if piece[0]), True
        return tuple((queries, min(context, window)) for queries, context in segments), False

    def merge(self, tokens: int) -> MemoryBound:
        """Fold a block's partial attention into the running one by log-sum-exp: reads two, writes one."""
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
        """SwiGLU reads two and writes one; without a gate it reads one and writes one."""
        moved = 3.0 if self.model.gated else 2.0
        size = moved * tokens * self.ffn * self.activation_bytes
        return MemoryBound("swiglu", size, tokens, name="activation", role=Role.ACTIVATION)

    def norm_backward(self, tokens: int) -> MemoryBound:
        """Reads the input and both gradients that meet there, writes one."""
        size = 4.0 * tokens * self.model.hidden * self.activation_bytes
        return MemoryBound("add_rmsnorm", size, tokens, name="norm backward", role=Role.NORM, computes=_BACK)

    def activation_backward(self, tokens: int) -> MemoryBound:
        """Reads the columns and their gradient, writes the gradients: five of f gated, three not."""
        moved = 5.0 if self.model.gated else 3.0
        size = moved * tokens * self.ffn * self.activation_bytes
        role = Role.ACTIVATION
        return MemoryBound("swiglu", size, tokens, name="activation backward", role=role, computes=_BACK)

    def down(self, tokens: int) -> Gemm:
        return Gemm(tokens, self.model.hidden, self.ffn, self.dtype, name="down projection", role=Role.DOWN)

    def embedding(self, tokens: int) -> MemoryBound:
        """Rows of the table read and written out."""
        size = 2.0 * tokens * self.model.hidden * self.activation_bytes
        return MemoryBound("copy", size, tokens, name="embedding lookup", role=Role.EMBEDDING)

    def head(self, tokens: int) -> Gemm:
        """Logits of this shard's vocabulary rows (padded to a multiple of ``shards``)."""
        return Gemm(tokens, self.vocab, self.model.hidden, self.wide, name="language-model head", role=Role.HEAD)

    @once
    def vocab(self) -> int:
        return -(-self.model.vocab // self.shards)

    def sample(self, tokens: int) -> MemoryBound:
        """One token of every row of whole logits, in fp32: written out, and read for the maximum, the sum and the
        choice."""
        size = 16.0 * tokens * self.model.vocab
        return MemoryBound("softmax", size, tokens, name="sample", role=Role.HEAD)

    def loss(self, tokens: int) -> MemoryBound:
        """Cross-entropy of the shard's logits and its gradient: two passes read, one write in bf16 and one in fp32."""
        size = tokens * self.vocab * (3.0 * self.activation_bytes + 4.0)
        return MemoryBound("softmax", size, tokens, name="loss", role=Role.LOSS)


# --- A shard of a layer in a serving step's types, as kinds of attention are handed it ------------------------


@dataclass(frozen=True)
class ServingShard(Shard):
    """A shard of a layer whose weights and cache are in ``formats``; ``dtype`` is what attention multiplies in.

    ``context_shards`` ranks hold a part of every context's tokens each, and ``index_shards`` of the keys that an
    indexer scores; ``chooses_apart``: each attends the best of its own part. ``verified``: queries of every sequence
    that are drafts and one, 1 where nothing is drafted.
    """

    formats: Formats = BF16
    context_shards: int = 1
    verified: int = 1
    index_shards: int = 1
    chooses_apart: bool = False

    def held(self, tokens: int) -> int:
        """Of so many tokens of a context, those on the rank that has most."""
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
        """Of the MLP that all tokens go through."""
        return WeightClass.SHARED if self.kind.experts else WeightClass.DENSE

    def _as(self, part: WeightClass, product: Gemm) -> Gemm:
        return product.read_as(self.formats.multiplied(part), self.formats.read(part))
