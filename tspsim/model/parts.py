"""What an architecture is made of: its parts, the types that they are kept in, and widths that follow from them.

Parts that not every decoder has: latent, sparse and linear attention, compressed caches, experts; and what one layer
is made of.

In which types a served model keeps its weights, multiplies and keeps its cache.

The fields of an architecture: what kinds of attention and shards of layers read of a model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import Annotated, NamedTuple

from pydantic import Field, StrictBool

from ..base.memo import once
from ..base.strict import OneOf
from ..base.units import Count, PositiveCount
from ..operators import weight_bytes

Scores = Annotated[str, OneOf(lambda: ("sigmoid", "softmax"))]


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, §2.1).

    K and V of a token are one latent of ``kv_rank`` and a rotary key of ``rope_dim`` that all heads share; every head
    has its own matrices to make keys of ``nope_dim`` and values of ``value_dim`` from it.
    """

    q_rank: Annotated[
        Count, Field(description="width of the queries' latent; 0: queries come from the residual stream")
    ]
    kv_rank: Annotated[PositiveCount, Field(description="width of the latent of keys and values")]
    nope_dim: Annotated[PositiveCount, Field(description="width of a head's query without position")]
    rope_dim: Annotated[PositiveCount, Field(description="width of a head's query with rotary position")]
    value_dim: Annotated[PositiveCount, Field(description="width of a head's value")]

    @property
    def query_dim(self) -> int:
        """Width of one head's query, and of its key."""
        return self.nope_dim + self.rope_dim

    @property
    def mean_dim(self) -> int:
        """Mean width of a key and a value: with it Q and output, and K and V, are counted in full."""
        return (self.query_dim + self.value_dim) // 2

    @property
    def cache_width(self) -> int:
        """Elements a token that a layer's cache keeps, whatever the number of heads."""
        return self.kv_rank + self.rope_dim

    @property
    def down_width(self) -> int:
        """Columns of the projections from the residual stream to latents, which all heads share."""
        return self.q_rank + self.cache_width


@dataclass(frozen=True, slots=True)
class Indexing:
    """An indexer that chooses the tokens a query attends (DeepSeek-AI 2025, DeepSeek-V3.2, §2.1)."""

    #: Of the indexer; its key of a token is one of ``head_dim``.
    heads: int
    head_dim: int
    #: Tokens, or compressed entries, that a query attends.
    topk: int
    #: Layers before ``shared_from`` own an indexer each; of those behind, the last of every ``every`` does, and the
    #: others take its choice (GLM-5.2).
    every: int = 1
    shared_from: int = 0

    def owned(self, layer: int) -> bool:
        """Whether layer number ``layer`` (from 0) has an indexer of its own.

        >>> sum(Indexing(32, 128, 2048, every=4, shared_from=3).owned(layer) for layer in range(78))
        21
        """
        return max(0, layer - self.shared_from + 1) % self.every == 0


@dataclass(frozen=True)
class LinearAttention:
    """Attention by a delta rule, whose state of a sequence has a fixed size, in most layers of a model."""

    k_heads: Annotated[PositiveCount, Field(description="heads of queries and keys of the linear layers")]
    k_dim: Annotated[PositiveCount, Field(description="width of one")]
    v_heads: Annotated[PositiveCount, Field(description="heads of values of the linear layers")]
    #: The state has v_heads · k_dim · v_dim elements.
    v_dim: Annotated[PositiveCount, Field(description="width of one")]
    convolution: Annotated[
        PositiveCount, Field(description="tokens that the convolution over q, k and v reaches over")
    ] = 4
    full_every: Annotated[PositiveCount, Field(description="every how many-th layer has full attention")] = 4
    last_full: Annotated[StrictBool, Field(description="the last layer has full attention in any case")] = False

    @property
    def key_width(self) -> int:
        return self.k_heads * self.k_dim

    @property
    def value_width(self) -> int:
        return self.v_heads * self.v_dim

    @property
    def state_elements(self) -> int:
        """Of one sequence and layer."""
        return self.v_heads * self.k_dim * self.v_dim

    @property
    def channels(self) -> int:
        """Of the convolution: q, k and v."""
        return 2 * self.key_width + self.value_width

    def full(self, layer: int, layers: int) -> bool:
        """Whether layer number ``layer`` (from 0) of ``layers`` has full attention."""
        return (layer + 1) % self.full_every == 0 or (self.last_full and layer == layers - 1)


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """One latent of a head's width a token, key and value at once, kept once for several tokens (DeepSeek-V4)."""

    #: Width of the queries' latent.
    q_rank: int
    #: Rotary part of a head's width.
    rope_dim: int
    #: The output projection is of low rank: heads in groups, each down to ``output_rank``, and all of them up to h.
    output_groups: int
    output_rank: int
    #: Tokens an entry of a layer's cache stands for, a layer each; 0: the layer keeps its window alone.
    ratios: tuple[int, ...]
    #: Latest tokens that every layer keeps and attends besides, uncompressed.
    window: int = 128
    #: Layers of this ratio own an indexer; others attend all their entries.
    indexed: int = 4


@dataclass(frozen=True)
class Experts:
    """The MLP of a mixture-of-experts layer.

    Of layers behind ``first_dense``, every 2nd with experts are layers 1, 3, 5, … (from 0). The bias of a router is
    added to ``sigmoid`` of the scores, among which it only chooses (DeepSeek-V3, §2.1.2), or to the scores themselves,
    before their ``softmax``. Some software adds biases of experts by kernels of its own; their weights are too few to
    count.
    """

    count: Annotated[PositiveCount, Field(alias="experts", description="routed experts")]
    topk: Annotated[PositiveCount, Field(description="routed experts that a token visits")]
    width: Annotated[PositiveCount, Field(description="columns of one expert")]
    shared_width: Annotated[Count, Field(description="columns of all shared experts together; 0: none")] = 0
    first_dense: Annotated[Count, Field(description="layers at the start without experts")] = 0
    every: Annotated[PositiveCount, Field(description="of the others, every how many-th has experts")] = 1
    router_bias: Annotated[StrictBool, Field(description="the router has a bias or a correction an expert")] = False
    scores: Annotated[
        Scores,
        Field(description="with router_bias: it is added to sigmoids of scores, and only chooses; or to scores"),
    ] = "sigmoid"
    shared_gate: Annotated[StrictBool, Field(description="a gate multiplies what the shared experts give")] = False
    expert_bias: Annotated[StrictBool, Field(description="products of routed experts have biases")] = False
    groups: Annotated[PositiveCount, Field(description="groups of neighbouring experts")] = 1
    kept_groups: Annotated[PositiveCount, Field(description="groups that a token's experts are chosen from")] = 1

    @property
    def corrected(self) -> bool:
        """Whether a token's experts are chosen by biased sigmoids, and weighed by unbiased ones."""
        return self.router_bias and self.scores == "sigmoid"


class Block(NamedTuple):
    """What one layer is made of.

    Attributes
    ----------
    window
        Of its attention, in tokens; 0: the whole context.
    chunk
        Tokens of the chunks of a sequence that attend themselves alone (Llama 4); 0: no chunks.
    experts
        Experts instead of a dense MLP.
    attention
        Its kind, a name in :data:`tspsim.model.ATTENTION_KINDS`.
    indexer
        Whether it owns an indexer.
    compression
        Tokens that an entry of its cache stands for; 0: it has no such entries.
    """

    window: int = 0
    experts: bool = False
    attention: str = "gqa"
    indexer: bool = False
    compression: int = 1
    chunk: int = 0

    def __hash__(self) -> int:
        """Of numbers alone: hashes of text differ from process to process, and with them the order of a set."""
        return hash((self.window or self.chunk, self.experts))


# --- in which types a served model keeps its weights, multiplies and keeps its cache --------------------------


class WeightClass(StrEnum):
    """Weights that checkpoints keep in a type of their own."""

    ATTENTION = "attention"
    DENSE = "dense"
    SHARED = "shared"
    EXPERTS = "experts"
    EMBEDDING = "embedding"


@dataclass(frozen=True)
class Formats:
    """Types by class of weights."""

    #: As kept and read.
    weights: Mapping[WeightClass, str] = field(default_factory=dict)
    #: As multiplied: the type of activations.
    products: Mapping[WeightClass, str] = field(default_factory=dict)
    #: Of K and V, or latents.
    cache: str = "bf16"
    #: Of the states of linear attention.
    state: str = "fp32"

    def kept(self, part: WeightClass) -> str:
        return self.weights.get(part, "bf16")

    def multiplied(self, part: WeightClass) -> str:
        return self.products.get(part, "bf16")

    def read(self, part: WeightClass) -> str | None:
        """The type that products read weights in, where it is narrower than the one they multiply: weight-only
        kernels widen on the way."""
        if part not in self._read:
            kept, wide = self.kept(part), self.multiplied(part)
            self._read[part] = kept if weight_bytes(kept) < weight_bytes(wide) else None
        return self._read[part]

    @once
    def _read(self) -> dict[WeightClass, str | None]:
        return {}

    def weight_bytes(self, part: WeightClass) -> float:
        """Bytes of a weight of this class."""
        return weight_bytes(self.kept(part))

    def bytes_of(self, parameters: Mapping[WeightClass, int]) -> float:
        """Bytes of some parameters, counted by class."""
        return sum(count * self.weight_bytes(part) for part, count in parameters.items())

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.weights.items())), tuple(sorted(self.products.items())), self.cache, self.state))


#: Everything in bf16.
BF16 = Formats()


# --- the fields of an architecture ----------------------------------------------------------------------------

Text = Annotated[str, Field(min_length=1, max_length=2000)]


@dataclass(frozen=True)
class StatedFacts:
    """What a model's file states as it is read: :class:`tspsim.model.spec.ModelSpec` has these keys."""

    name: Text
    layers: PositiveCount
    hidden: PositiveCount
    _: KW_ONLY
    linear_bias: Annotated[StrictBool, Field(description="every projection and norm has a bias, as in GPT-2")] = False
    multi_token: Annotated[Count, Field(description="modules that predict one token more each (MTP)")] = 0
    residual_lanes: Annotated[
        PositiveCount,
        Field(le=64, description="lanes of the residual stream; several: hyper-connections mix them"),
    ] = 1
    max_context: Annotated[Count, Field(description="longest sequence the model was made for; 0 when unknown")] = 0
    note: Annotated[str, Field(max_length=2000, description="what of the original is simplified")] = ""


@dataclass(frozen=True)
class Dimensions(StatedFacts, ABC):
    """A decoder's fields, described at :class:`~tspsim.model.Architecture`, and widths that follow from them alone."""

    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool = True
    vocab: int = 0
    tied_embeddings: bool = False
    qk_norm: bool = False
    qk_norm_wide: bool = False
    attention_bias: bool = False
    learned_positions: bool = False
    source: str = ""
    latent: LatentAttention | None = None
    experts: Experts | None = None
    window: int = 0
    full_every: int = 1
    attention: str = ""
    output_gate: bool = False
    indexing: Indexing | None = None
    linear: LinearAttention | None = None
    compressed: CompressedAttention | None = None
    checkpoint: Formats = BF16
    chunk: int = 0
    own: Hashable = None

    @abstractmethod
    def block(self, layer: int) -> Block:
        """What layer number ``layer`` (from 0) is made of."""

    @property
    def projection_biases(self) -> int:
        """Elements of the biases of projections to Q, K and V, and of the output's."""
        biased = self.attention_bias or self.linear_bias
        inner = self.attention_width + 2 * self.kv_width if biased else 0
        return inner + (self.hidden if self.linear_bias else 0)

    @property
    def attention_width(self) -> int:
        """a = H·d: often h, not always (Qwen3-32B has 8192 beside 5120)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """c = KV·d, of K alone; V is the same."""
        return self.kv_heads * self.head_dim

    @property
    def matrices(self) -> int:
        """Matrices of an MLP, dense or an expert's: gate, up, down, or up and down."""
        return 3 if self.gated else 2
