"""The type of a model's YAML.

Attention and MLP are sections of their own: other kinds of either can stand beside these two, told apart by
``kind``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from tspsim.units import Count, PositiveCount

from .architecture import Architecture

#: Beyond any model, and small enough that nothing built from it grows without bound.
MOST_LAYERS = 10_000

Text = Annotated[str, Field(min_length=1, max_length=2000)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AttentionSpec(_Section):
    """Multi-head, grouped-query or multi-query attention."""

    kind: Literal["gqa"] = "gqa"
    heads: PositiveCount = Field(description="query heads")
    kv_heads: PositiveCount = Field(description="key/value heads; equal to heads in multi-head attention")
    head_dim: PositiveCount = Field(description="width of one head")
    bias: StrictBool = Field(False, description="Q, K and V projections have a bias")
    qk_norm: StrictBool = Field(False, description="Q and K are normalised a head")

    @model_validator(mode="after")
    def _heads_divide(self) -> AttentionSpec:
        if self.heads % self.kv_heads:
            raise PydanticCustomError(
                "heads",
                "{kv_heads} kv_heads do not divide {heads} heads",
                {"kv_heads": self.kv_heads, "heads": self.heads},
            )
        return self


class MlpSpec(_Section):
    """A dense MLP."""

    kind: Literal["dense"] = "dense"
    width: PositiveCount = Field(description="columns (intermediate size)")
    gated: StrictBool = Field(True, description="gate, up and down instead of up and down")


class EmbeddingSpec(_Section):
    """Vocabulary and positions; leave the section out for a benchmark model that is only its blocks."""

    vocab: Count = Field(0, description="rows of the embedding")
    tied: StrictBool = Field(False, description="language-model head and embedding are one matrix")
    learned_positions: StrictBool = Field(False, description="a table of max_context position embeddings")


class ModelSpec(_Section):
    """A decoder-only transformer of equal blocks."""

    name: Text
    description: str = Field("", max_length=2000)
    layers: PositiveCount
    hidden: PositiveCount
    attention: AttentionSpec
    mlp: MlpSpec
    embedding: EmbeddingSpec = EmbeddingSpec()
    linear_bias: StrictBool = Field(False, description="every projection and norm has a bias, as in GPT-2")
    max_context: Count = Field(0, description="longest sequence the model was made for; 0 when unknown")
    source: Text = Field(description="where the numbers come from")
    note: str = Field("", max_length=2000, description="what of the original is simplified")

    @model_validator(mode="after")
    def _bounded(self) -> ModelSpec:
        if self.layers > MOST_LAYERS:
            found = {"layers": self.layers, "most": MOST_LAYERS}
            raise PydanticCustomError("layers", "{layers} layers; at most {most} are allowed", found)
        return self

    def architecture(self) -> Architecture:
        """The same facts, flat, as the rest of the package reads them."""
        attention, mlp, embedding = self.attention, self.mlp, self.embedding
        return Architecture(
            name=self.name,
            layers=self.layers,
            hidden=self.hidden,
            heads=attention.heads,
            kv_heads=attention.kv_heads,
            head_dim=attention.head_dim,
            ffn=mlp.width,
            gated=mlp.gated,
            vocab=embedding.vocab,
            tied_embeddings=embedding.tied,
            qk_norm=attention.qk_norm,
            attention_bias=attention.bias,
            linear_bias=self.linear_bias,
            learned_positions=embedding.learned_positions,
            max_context=self.max_context,
            source=self.source,
            note=self.note,
        )
