"""Types of a model's YAML.

The sections ``attention`` and ``mlp`` have a ``kind``: a registered attention kind
(:data:`tspsim.model.ATTENTION_KINDS`), and ``dense`` or ``moe``.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from pydantic import (
    Discriminator,
    Field,
    StrictBool,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tspsim.base.strict import OneOf, Strict, as_stated
from tspsim.base.units import Count, PositiveCount
from tspsim.operators import DTYPES

from .architecture import Architecture
from .attention import ATTENTION_KINDS, GROUPED
from .parts import Experts, Formats, StatedFacts, Text, WeightClass

#: Attention kinds registered when this module is imported.
_KINDS = ATTENTION_KINDS.names()

if TYPE_CHECKING:
    from .attention.sections import AttentionSection
else:
    #: Union of the sections of all registered kinds.
    AttentionSection = Union[tuple(Annotated[kind.section, Tag(kind.name)] for kind in ATTENTION_KINDS.values())]  # noqa: UP007

#: More layers than any model has; the bound keeps what is built from a file small.
MOST_LAYERS = 10_000

WeightType = Annotated[str, OneOf(DTYPES.names)]


class MlpSpec(Strict):
    """A dense MLP."""

    kind: Literal["dense"] = "dense"
    width: PositiveCount = Field(description="columns (intermediate size)")
    gated: StrictBool = Field(True, description="gate, up and down instead of up and down")


class MoeSpec(Experts, Strict):
    """A mixture of experts, in all layers or in some with a dense MLP in the others."""

    kind: Literal["moe"]
    dense_width: Count = Field(0, description="columns of the MLP in layers without experts")
    gated: StrictBool = Field(True, description="gate, up and down instead of up and down, in every MLP")

    @model_validator(mode="after")
    def _possible(self) -> MoeSpec:
        if self.topk > self.count:
            context = {"topk": self.topk, "experts": self.count}
            raise PydanticCustomError("topk", "topk {topk} is more than the {experts} experts", context)
        if self.count % self.groups or self.kept_groups > self.groups:
            context = {"groups": self.groups, "kept": self.kept_groups, "experts": self.count}
            raise PydanticCustomError("groups", "{groups} groups, {kept} kept, of {experts} experts", context)
        if (self.first_dense or self.every > 1) and not self.dense_width:
            raise PydanticCustomError("dense_width", "layers without experts need dense_width", {})
        return self


def _kind(default: str) -> Discriminator:
    """Discriminator of a section by ``kind``; left out, it is ``default``."""

    def kind_of(value: Any) -> Any:
        return value.get("kind", default) if isinstance(value, dict) else getattr(value, "kind", default)

    return Discriminator(kind_of)


def _registered_since(value: Any, read: ValidatorFunctionWrapHandler) -> Any:
    """Validate a section of a kind that was registered after this module was imported."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind in _KINDS or kind not in ATTENTION_KINDS:
        return read(value)
    return ATTENTION_KINDS.get(kind).section.model_validate(value)


class EmbeddingSpec(Strict):
    """Vocabulary and positions; leave the section out for a benchmark model that is only its blocks."""

    vocab: Count = Field(0, description="rows of the embedding")
    tied: StrictBool = Field(False, description="language-model head and embedding are one matrix")
    learned_positions: StrictBool = Field(False, description="a table of max_context position embeddings")


class CheckpointSpec(Strict):
    """Types that the published checkpoint keeps classes of weights and the cache in."""

    attention: WeightType = Field("bf16", description="projections of attention, norms")
    dense: WeightType = Field("bf16", description="MLPs of layers without experts")
    shared: WeightType = Field("bf16", description="shared experts and routers")
    experts: WeightType = Field("bf16", description="routed experts")
    embedding: WeightType = Field("bf16", description="embedding and language-model head")
    cache: str = Field("bf16", max_length=40, description="type of the cache that it is made for")
    state: Literal["fp32", "bf16"] = Field("fp32", description="type of the states of linear attention")

    def formats(self) -> Formats:
        kept = {part: str(getattr(self, part)) for part in WeightClass}
        narrow = {part: kind for part, kind in kept.items() if kind != "bf16"}
        return Formats(weights=narrow, cache=self.cache, state=self.state)


class ModelSpec(StatedFacts, Strict):
    """A decoder-only transformer."""

    description: str = Field("", max_length=2000)
    attention: Annotated[AttentionSection, _kind(GROUPED.name), WrapValidator(_registered_since)]
    mlp: Annotated[Annotated[MlpSpec, Tag("dense")] | Annotated[MoeSpec, Tag("moe")], _kind("dense")]
    embedding: EmbeddingSpec = EmbeddingSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    source: Text = Field(description="where the numbers come from")

    @model_validator(mode="after")
    def _bounded(self) -> ModelSpec:
        if self.layers > MOST_LAYERS:
            context = {"layers": self.layers, "most": MOST_LAYERS}
            raise PydanticCustomError("layers", "{layers} layers; at most {most} are allowed", context)
        self.attention.check_layers(self.layers)
        return self

    def architecture(self) -> Architecture:
        """The architecture that the file describes."""
        mlp, embedding = self.mlp, self.embedding
        return Architecture(
            **{field.name: getattr(self, field.name) for field in fields(StatedFacts)},
            **self.attention.facts(),
            ffn=mlp.width if isinstance(mlp, MlpSpec) else mlp.dense_width,
            gated=mlp.gated,
            vocab=embedding.vocab,
            tied_embeddings=embedding.tied,
            learned_positions=embedding.learned_positions,
            source=self.source,
            experts=as_stated(mlp, Experts) if isinstance(mlp, MoeSpec) else None,
            checkpoint=self.checkpoint.formats(),
        )


def describe(model: Architecture) -> dict[str, Any]:
    """The YAML of an architecture, as a mapping that :class:`ModelSpec` reads back to an equal one.

    >>> from tspsim.model import load_model
    >>> mixtral = load_model("mixtral-8x7b")
    >>> ModelSpec.model_validate(describe(mixtral)).architecture() == mixtral
    True
    """
    experts, kept = model.experts, model.checkpoint
    attention = model.attention_kind.describe(model)
    checkpoint = {str(part): kind for part, kind in kept.weights.items()} | {"cache": kept.cache, "state": kept.state}
    mlp: dict[str, Any] = {"width": model.ffn, "gated": model.gated}
    if experts:
        facts = asdict(experts)
        mlp = {"kind": "moe", "experts": facts.pop("count"), **facts, "dense_width": model.ffn, "gated": model.gated}
    return {
        "name": model.name, "layers": model.layers, "hidden": model.hidden, "attention": attention, "mlp": mlp,
        "embedding": {
            "vocab": model.vocab, "tied": model.tied_embeddings, "learned_positions": model.learned_positions
        },
        "linear_bias": model.linear_bias, "multi_token": model.multi_token, "residual_lanes": model.residual_lanes,
        "max_context": model.max_context, "chat": model.chat,
        "checkpoint": checkpoint, "source": model.source, "note": model.note,
    }  # fmt: skip
