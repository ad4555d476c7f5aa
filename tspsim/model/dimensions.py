"""The fields of an architecture: what kinds of attention and shards of layers read of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

from pydantic import Field, StrictBool

from ..base.units import Count, PositiveCount
from .formats import BF16, Formats
from .parts import Block, CompressedAttention, Experts, Indexing, LatentAttention, LinearAttention

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
