"""Parts of an architecture, types of a served model's weights and cache, and the fields of an architecture.

Optional parts are latent, sparse, linear and compressed attention, and experts. :class:`Dimensions` holds the fields
that attention kinds and shards of layers read.
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
#: What servers render a model's chats with: its template, or OpenAI's library for gpt-oss.
Chat = Annotated[str, OneOf(lambda: ("template", "harmony"))]


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, §2.1).

    A token's K and V are one latent of ``kv_rank`` elements and a rotary key of ``rope_dim``, shared by all heads. A
    head projects the latent to a key of ``nope_dim`` and a value of ``value_dim``.
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
        """Width of a head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def mean_dim(self) -> int:
        """Mean width of a head's key and value: twice it counts Q and output, or K and V."""
        return (self.query_dim + self.value_dim) // 2

    @property
    def cache_width(self) -> int:
        """Elements that a layer caches for a token, whatever the number of heads."""
        return self.kv_rank + self.rope_dim

    @property
    def down_width(self) -> int:
        """Columns of the projections from the residual stream to the latents."""
        return self.q_rank + self.cache_width


@dataclass(frozen=True, slots=True)
class IndexerSpec:
    """The indexer that selects the tokens a query attends (DeepSeek-AI 2025, DeepSeek-V3.2, §2.1)."""

    #: Heads of the indexer's queries. They share one key a token, of ``head_dim`` elements.
    heads: int
    head_dim: int
    #: Tokens, or compressed entries, that a query attends.
    topk: int
    #: Every layer before ``shared_from`` owns an indexer. After it the last of every ``every`` layers owns one, and the
    #: others use the selection of the layer that owned one before them (GLM-5.2).
    every: int = 1
    shared_from: int = 0

    def owned(self, layer: int) -> bool:
        """Whether layer number ``layer`` (from 0) has an indexer of its own.

        >>> sum(IndexerSpec(32, 128, 2048, every=4, shared_from=3).owned(layer) for layer in range(78))
        21
        """
        return max(0, layer - self.shared_from + 1) % self.every == 0


@dataclass(frozen=True)
class LinearAttention:
    """Delta-rule attention, in most layers of a model; its state of a sequence has a fixed size."""

    k_heads: Annotated[PositiveCount, Field(description="heads of queries and keys of the linear layers")]
    k_dim: Annotated[PositiveCount, Field(description="width of a query or key head")]
    v_heads: Annotated[PositiveCount, Field(description="heads of values of the linear layers")]
    #: The state has v_heads · k_dim · v_dim elements.
    v_dim: Annotated[PositiveCount, Field(description="width of a value head")]
    convolution: Annotated[
        PositiveCount, Field(description="tokens that the convolution over q, k and v reaches over")
    ] = 4
    full_every: Annotated[PositiveCount, Field(description="every n-th layer has full attention")] = 4
    last_full: Annotated[StrictBool, Field(description="the last layer has full attention in any case")] = False

    @property
    def key_width(self) -> int:
        return self.k_heads * self.k_dim

    @property
    def value_width(self) -> int:
        return self.v_heads * self.v_dim

    @property
    def state_elements(self) -> int:
        """Elements of the state of one sequence in one layer."""
        return self.v_heads * self.k_dim * self.v_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: q, k and v."""
        return 2 * self.key_width + self.value_width

    def full(self, layer: int, layers: int) -> bool:
        """Whether layer number ``layer`` (from 0) of ``layers`` has full attention."""
        return (layer + 1) % self.full_every == 0 or (self.last_full and layer == layers - 1)


@dataclass(frozen=True)
class CompressedAttention:
    """One latent for several tokens, key and value of all heads, as wide as a head (DeepSeek-V4).

    The output projection is of low rank: every group of heads to ``output_rank`` columns, then all groups to h. Every
    layer keeps and attends its ``window``. Layers whose ratio is not ``indexed`` attend all their entries.
    """

    q_rank: Annotated[PositiveCount, Field(description="width of the queries' latent")]
    rope_dim: Annotated[PositiveCount, Field(description="rotary part of a head's width")]
    output_groups: Annotated[PositiveCount, Field(description="groups of heads whose outputs are projected apart")]
    output_rank: Annotated[PositiveCount, Field(description="width of a group's projection")]
    ratios: Annotated[
        tuple[Count, ...],
        Field(
            alias="compression",
            min_length=1,
            max_length=10_000,
            description="tokens a cache entry, for each layer; 0: only the window",
        ),
    ]
    window: Annotated[PositiveCount, Field(description="latest tokens that are kept and attended uncompressed")] = 128
    indexed: Annotated[PositiveCount, Field(description="layers with this compression own an indexer")] = 4


@dataclass(frozen=True)
class Experts:
    """The MLP of a mixture-of-experts layer.

    Layer number l (from 0) has experts where l ≥ ``first_dense`` and l + 1 is a multiple of ``every`` (2: layers 1, 3,
    5, …). With ``scores`` of ``sigmoid`` a router's bias is added to the sigmoids and only affects the choice
    (DeepSeek-V3, §2.1.2); with ``softmax`` it is added to the scores before it. Parameters do not count the experts'
    biases; some software adds them by kernels of their own.
    """

    count: Annotated[PositiveCount, Field(alias="experts", description="routed experts")]
    topk: Annotated[PositiveCount, Field(description="routed experts that a token visits")]
    width: Annotated[PositiveCount, Field(description="columns of one expert")]
    shared_width: Annotated[Count, Field(description="columns of all shared experts together; 0: none")] = 0
    first_dense: Annotated[Count, Field(description="layers at the start without experts")] = 0
    every: Annotated[PositiveCount, Field(description="after them, every n-th layer of the model has experts")] = 1
    router_bias: Annotated[StrictBool, Field(description="the router has a bias or correction for each expert")] = False
    scores: Annotated[
        Scores,
        Field(description="with router_bias: added to the sigmoids for the choice alone, or to the scores"),
    ] = "sigmoid"
    shared_gate: Annotated[StrictBool, Field(description="a gate multiplies what the shared experts give")] = False
    expert_bias: Annotated[StrictBool, Field(description="products of routed experts have biases")] = False
    groups: Annotated[PositiveCount, Field(description="groups of neighbouring experts")] = 1
    kept_groups: Annotated[PositiveCount, Field(description="groups that a token's experts are chosen from")] = 1

    @property
    def corrected(self) -> bool:
        """Whether experts are chosen by biased sigmoids and weighted by unbiased ones."""
        return self.router_bias and self.scores == "sigmoid"


class Block(NamedTuple):
    """Composition of one layer.

    Attributes
    ----------
    window
        Tokens that a query sees; 0: the whole context.
    chunk
        Tokens of a chunk of the sequence that attends only itself (Llama 4); 0: no chunks.
    experts
        Whether the layer has experts instead of a dense MLP.
    attention
        Name of its attention kind in :data:`tspsim.model.ATTENTION_KINDS`.
    indexer
        Whether the layer owns an indexer.
    compression
        Tokens a cache entry; 0: no compressed entries.
    """

    window: int = 0
    experts: bool = False
    attention: str = "gqa"
    indexer: bool = False
    compression: int = 1
    chunk: int = 0

    def __hash__(self) -> int:
        """Hash numbers only: hashes of strings differ between processes, and so would the order of a set."""
        return hash((self.window or self.chunk, self.experts))


# --- types of a served model's weights, products and cache ----------------------------------------------------


class WeightClass(StrEnum):
    """Classes of weights, each kept in one type by a checkpoint."""

    ATTENTION = "attention"
    DENSE = "dense"
    SHARED = "shared"
    EXPERTS = "experts"
    EMBEDDING = "embedding"


@dataclass(frozen=True)
class Formats:
    """Types of a served model; a weight class without an entry is in bf16."""

    #: Type that weights are stored and read in, by class.
    weights: Mapping[WeightClass, str] = field(default_factory=dict)
    #: Type that products multiply in, by class: that of the activations.
    products: Mapping[WeightClass, str] = field(default_factory=dict)
    #: Type of cached K and V, or latents.
    cache: str = "bf16"
    #: Type of linear attention's states.
    state: str = "fp32"

    def kept(self, part: WeightClass) -> str:
        return self.weights.get(part, "bf16")

    def multiplied(self, part: WeightClass) -> str:
        return self.products.get(part, "bf16")

    def read(self, part: WeightClass) -> str | None:
        """Type in which weight-only kernels read a class of weights; None: the type of the products."""
        if part not in self._read:
            kept, wide = self.kept(part), self.multiplied(part)
            self._read[part] = kept if weight_bytes(kept) < weight_bytes(wide) else None
        return self._read[part]

    @once
    def _read(self) -> dict[WeightClass, str | None]:
        return {}

    def weight_bytes(self, part: WeightClass) -> float:
        """Bytes of one weight of a class, scales included."""
        return weight_bytes(self.kept(part))

    def bytes_of(self, parameters: Mapping[WeightClass, int]) -> float:
        """Bytes of parameters that are counted by class."""
        return sum(count * self.weight_bytes(part) for part, count in parameters.items())

    def __hash__(self) -> int:
        return hash((tuple(sorted(self.weights.items())), tuple(sorted(self.products.items())), self.cache, self.state))


#: Everything in bf16.
BF16 = Formats()


# --- the fields of an architecture ----------------------------------------------------------------------------

Text = Annotated[str, Field(min_length=1, max_length=2000)]


@dataclass(frozen=True)
class StatedFacts:
    """Facts of an architecture that are keys of a model's file under the same name
    (:class:`tspsim.model.spec.ModelSpec`)."""

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
    chat: Annotated[Chat, Field(description="what servers render chats with")] = "template"
    note: Annotated[str, Field(max_length=2000, description="what of the original is simplified")] = ""


@dataclass(frozen=True)
class Dimensions(StatedFacts, ABC):
    """A decoder's fields, documented in :class:`~tspsim.model.Architecture`, and widths derived from them."""

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
    full_every: int = 0
    attention: str = ""
    output_gate: bool = False
    indexing: IndexerSpec | None = None
    linear: LinearAttention | None = None
    compressed: CompressedAttention | None = None
    checkpoint: Formats = BF16
    chunk: int = 0
    own: Hashable = None

    @abstractmethod
    def block(self, layer: int) -> Block:
        """Composition of layer number ``layer`` (from 0)."""

    @property
    def projection_biases(self) -> int:
        """Elements of the biases of projections to Q, K and V, and of the output's."""
        biased = self.attention_bias or self.linear_bias
        inner = self.attention_width + 2 * self.kv_width if biased else 0
        return inner + (self.hidden if self.linear_bias else 0)

    @property
    def attention_width(self) -> int:
        """a = H·d. It may differ from h (Qwen3-32B: 8192 and 5120)."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """c = KV·d: width of K; V is as wide."""
        return self.kv_heads * self.head_dim

    @property
    def matrices(self) -> int:
        """Matrices of a dense MLP or an expert: 3 (gate, up, down), or 2 (up, down)."""
        return 3 if self.gated else 2
