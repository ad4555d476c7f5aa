"""Types of the section ``attention`` in a model's YAML, one for each attention kind."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from ...base.strict import Strict, as_stated
from ...base.units import Count, PositiveCount
from ..parts import CompressedAttention, IndexerSpec, LatentAttention, LinearAttention


class AttentionSection(Strict):
    """Fields of every attention kind: its name and query heads."""

    kind: str
    heads: PositiveCount = Field(description="query heads")

    def check_layers(self, layers: int) -> None:
        """Raise PydanticCustomError if the section does not describe exactly ``layers`` layers."""

    def facts(self) -> dict[str, Any]:
        """The section as keywords of :class:`~tspsim.model.Architecture`.

        Facts without a keyword there are one frozen value under ``own``, which only the kind reads.
        """
        return {"attention": self.kind, "heads": self.heads}


class _HeadsSection(AttentionSection):
    kv_heads: PositiveCount = Field(description="key/value heads; equal to heads in multi-head attention")
    head_dim: PositiveCount = Field(description="width of one head")
    bias: StrictBool = Field(False, description="Q, K and V projections have a bias")
    qk_norm: StrictBool = Field(False, description="Q and K are normalised a head")
    qk_norm_wide: StrictBool = Field(False, description="all heads together: ranks that divide them sum squares")
    output_gate: StrictBool = Field(False, description="a gate as wide as the queries multiplies the output")

    @model_validator(mode="after")
    def _heads_divide(self) -> _HeadsSection:
        if self.heads % self.kv_heads:
            raise PydanticCustomError(
                "heads",
                "{kv_heads} kv_heads do not divide {heads} heads",
                {"kv_heads": self.kv_heads, "heads": self.heads},
            )
        return self

    def facts(self) -> dict[str, Any]:
        names = ("kv_heads", "head_dim", "qk_norm", "qk_norm_wide", "output_gate")
        return super().facts() | {name: getattr(self, name) for name in names} | {"attention_bias": self.bias}


class GroupedSection(_HeadsSection):
    """Multi-head, grouped-query or multi-query attention."""

    kind: Literal["gqa"] = "gqa"
    window: Count = Field(0, description="tokens that a windowed layer sees; 0: every layer sees the whole context")
    chunk: Count = Field(
        0, description="tokens of the chunks that attend themselves alone in these layers, instead of a window; 0: none"
    )
    full_every: Count = Field(
        0, description="with a window or chunks: every n-th layer has full attention; 0: none has"
    )

    @model_validator(mode="after")
    def _window_or_chunks(self) -> GroupedSection:
        if self.full_every == 1 and (self.window or self.chunk):
            raise PydanticCustomError("full_every", "full_every 1 leaves no layer a window or chunks; leave it out", {})
        if self.window and self.chunk:
            raise PydanticCustomError("chunk", "window and chunk are two kinds of layer; leave one out", {})
        return self

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"window": self.window, "chunk": self.chunk, "full_every": self.full_every}


class _LatentsSection(LatentAttention, AttentionSection):
    q_rank: Count = Field(0, description="width of the queries' latent; 0: queries come from the residual stream")

    @model_validator(mode="after")
    def _mean_is_whole(self) -> _LatentsSection:
        if (self.nope_dim + self.rope_dim + self.value_dim) % 2:
            raise PydanticCustomError("widths", "nope_dim + rope_dim + value_dim is odd; no such model is known", {})
        return self

    def facts(self) -> dict[str, Any]:
        latent = as_stated(self, LatentAttention)
        return super().facts() | {"kv_heads": self.heads, "head_dim": latent.mean_dim, "latent": latent}


class LatentSection(_LatentsSection):
    """Multi-head latent attention: every head projects its keys and values from one latent a token."""

    kind: Literal["mla"]


class SparseSection(_LatentsSection):
    """Sparse latent attention: an indexer selects the tokens that a query attends."""

    kind: Literal["dsa"]
    index_heads: PositiveCount = Field(description="heads of the indexer")
    index_dim: PositiveCount = Field(description="width of a head, and of the key of a token")
    index_topk: PositiveCount = Field(description="tokens that a query attends")
    index_every: PositiveCount = Field(1, description="every n-th layer owns an indexer; the others use its selection")
    index_shared_from: Count = Field(0, description="layers before this one own an indexer each")

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"indexing": indexing(self)}


def indexing(section: Any) -> IndexerSpec:
    """The indexer of a section."""
    every, shared_from = getattr(section, "index_every", 1), getattr(section, "index_shared_from", 0)
    return IndexerSpec(section.index_heads, section.index_dim, section.index_topk, every, shared_from)


class _DeltaSection(LinearAttention, AttentionSection):
    """Delta-rule layers, and layers with full attention."""

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"linear": as_stated(self, LinearAttention)}


class GatedDeltaSection(_DeltaSection, _HeadsSection):
    """Gated DeltaNet, with grouped-query attention in every ``full_every``-th layer."""

    kind: Literal["gdn"]

    @model_validator(mode="after")
    def _state_heads_divide(self) -> GatedDeltaSection:
        if self.v_heads % self.k_heads:
            context = {"k_heads": self.k_heads, "v_heads": self.v_heads}
            raise PydanticCustomError("heads", "{k_heads} k_heads do not divide {v_heads} v_heads", context)
        return self


class KimiDeltaSection(_DeltaSection, _LatentsSection):
    """Kimi Delta Attention (a gate per channel), with latent attention in every ``full_every``-th layer."""

    kind: Literal["kda"]

    @model_validator(mode="after")
    def _as_many_heads(self) -> KimiDeltaSection:
        if self.v_heads != self.k_heads:
            context = {"k_heads": self.k_heads, "v_heads": self.v_heads}
            raise PydanticCustomError("heads", "{v_heads} v_heads and {k_heads} k_heads; they must be equal", context)
        return self


class CompressedSection(CompressedAttention, AttentionSection):
    """Compressed attention: one latent for several tokens is key and value of all heads; a window keeps the latest."""

    kind: Literal["csa"]
    head_dim: PositiveCount = Field(description="width of a head, and of the latent that is its key and value")
    index_heads: PositiveCount = Field(description="heads of the indexer")
    index_dim: PositiveCount = Field(description="width of a head, and of the key of an entry")
    index_topk: PositiveCount = Field(description="entries that a query attends")

    @model_validator(mode="after")
    def _groups_divide(self) -> CompressedSection:
        if self.heads % self.output_groups:
            context = {"groups": self.output_groups, "heads": self.heads}
            raise PydanticCustomError("groups", "{groups} output_groups do not divide {heads} heads", context)
        return self

    def check_layers(self, layers: int) -> None:
        if len(self.ratios) != layers:
            context = {"stated": len(self.ratios), "layers": layers}
            raise PydanticCustomError(
                "layers", "attention.compression has {stated} entries for {layers} layers", context
            )

    def facts(self) -> dict[str, Any]:
        return super().facts() | {
            "kv_heads": 1,
            "head_dim": self.head_dim,
            "compressed": as_stated(self, CompressedAttention),
            "indexing": indexing(self),
        }
