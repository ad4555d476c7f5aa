"""The fields of an architecture: what kinds of attention and shards of layers read of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass

from .formats import BF16, Formats
from .parts import Block, CompressedAttention, Experts, Indexing, LatentAttention, LinearAttention


@dataclass(frozen=True)
class Dimensions(ABC):
    """A decoder's fields, described at :class:`~tspsim.model.Architecture`, and widths that follow from them alone."""

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
    qk_norm_wide: bool = False
    attention_bias: bool = False
    linear_bias: bool = False
    learned_positions: bool = False
    max_context: int = 0
    source: str = ""
    note: str = ""
    latent: LatentAttention | None = None
    experts: Experts | None = None
    window: int = 0
    full_every: int = 1
    multi_token: int = 0
    attention: str = ""
    output_gate: bool = False
    indexing: Indexing | None = None
    linear: LinearAttention | None = None
    compressed: CompressedAttention | None = None
    checkpoint: Formats = BF16
    residual_lanes: int = 1
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
