"""How a model is spread over ranks: the degrees and switches of a plan, or of one of its pools."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    StrictInt,
    Tag,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from ..base.registry import Registry
from ..base.strict import OneOf
from ..base.units import BytesPerSecond, PositiveCount
from ..network import ALGORITHMS, KINDS
from ..operators.dtypes import wires
from ..parallel import CHECKPOINTS, CONTEXT_METHODS, SCHEMES, WEIGHT_TRANSPORTS, Option, context, mesh_axes, scheme_axes
from ..parallel.activation_store import ACTIVATION_STORES
from ..parallel.balance import BUSIEST, Balance
from ..parallel.dispatch import DISPATCHES, OVERLAPS
from ..parallel.feature import plan_options
from ..parallel.pipeline import ORDERS
from ..parallel.recomputed import BLOCK, KEPT, RECOMPUTE_METHODS, Partly
from ..parallel.registries import scheme_name
from .balance import BalanceType
from .section import MOST_RANKS, Degree, Section, refuse

Axis = Annotated[str, OneOf(mesh_axes)]
Value = TypeVar("Value")
#: A key that the simulator chooses where it is not stated, or stated as ``auto``.
Chosen = Annotated[Value | None, BeforeValidator(lambda value: None if value == "auto" else value)]


class PartlyRecomputed(Section):
    """What is made again, of some layers of every chunk: ``{what: full, layers: 12}``."""

    what: Literal["selective", "cheap", "full"] = Field(
        "full", description="attention alone; norms, products of activations and heads from latents; or all of a layer"
    )
    layers: PositiveCount = Field(description="of every chunk of a stage, as the method counts them")
    method: Annotated[str, OneOf(RECOMPUTE_METHODS.names)] = Field(
        BLOCK.name, description="the first layers, every so-many-th one, or all in groups of so many"
    )


def _form(value: object) -> str:
    """Whether recomputation is said of all layers or of some."""
    return "some" if isinstance(value, (Mapping, PartlyRecomputed)) else "all"


Recomputation = Annotated[
    Annotated[Literal["none", "selective", "cheap", "full"], Tag("all")] | Annotated[PartlyRecomputed, Tag("some")],
    Discriminator(_form),
]


CollectiveKind = Annotated[str, OneOf(KINDS.names)]
CollectiveAlgorithm = Annotated[str, OneOf(ALGORITHMS.names)]


class RankPlacement(Section):
    """Which axes run along the node, and which along rails across nodes; the first named is innermost. And in which
    order nodes, or GPUs, are taken."""

    node: tuple[Axis, ...] = Field((), description="axes inside a node, the innermost first")
    rails: tuple[Axis, ...] = Field((), description="axes across nodes, the innermost first")
    order: Annotated[tuple[Annotated[StrictInt, Field(ge=0)], ...], Field(max_length=MOST_RANKS)] = Field(
        (), description="every node, or every GPU, once, as the plan's axes take them; default: by number"
    )

    @model_validator(mode="after")
    def _once(self) -> RankPlacement:
        axes = (*self.node, *self.rails)
        twice = next((axis for axis in axes if axes.count(axis) > 1), None)
        if twice:
            raise refuse(f"axis '{twice}' is placed twice; name each axis once, in node or in rails")
        return self

    @model_serializer(mode="wrap")
    def _where_ordered(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The axes, and the order where one is stated."""
        data = handler(self)
        return data if self.order else {key: value for key, value in data.items() if key != "order"}


class Spread(Section):
    """One way to spread a copy of the model over ranks. Degrees left out are one."""

    # Axes and options of registered objects are keys as well, and so is cp.
    model_config = ConfigDict(extra="allow", json_schema_extra=lambda schema: Spread.complete(schema))

    name: str = Field("", description="of a plan alone; leave it out where there is one way only")
    tsp: Degree = Field(1, description="folded tensor and sequence parallelism")
    tp: Degree = Field(1, description="tensor parallelism")
    sp: Degree = Field(
        1, description="sequence (context) parallelism; auto: of unequal sequences each on as many of dp as it needs"
    )
    pp: Degree = Field(1, description="pipeline stages")
    vpp: Degree = Field(1, description="virtual stages a pipeline rank")
    ep: Degree = Field(1, description="ranks that experts are spread over, taken from tp, tsp, sp and dp in this order")
    dp: Degree | None = Field(None, description="replicas; the GPUs that are left when not stated")
    partition: Literal["zigzag", "contiguous"] = Field(
        "zigzag", description="which tokens a sequence shard has: two blocks of equal causal work, or one block"
    )
    exchange: Annotated[str, OneOf(CONTEXT_METHODS.names)] = Field(
        "all_gather", description="how sequence shards come by the keys and values of others"
    )
    sequence_regions: StrictBool = Field(False, description="reduce-scatter and all-gather around the norms")
    overlap: StrictBool | Literal["fused"] | None = Field(
        None, description="exchanges beside compute; fused: tp's products and sums, and exchanges with experts, in "
        "slices of one kernel; default: the scheme's"
    )  # fmt: skip
    overlap_chunks: Annotated[PositiveCount, Field(le=1024)] = Field(
        4, description="pieces that a product and its exchange are cut into where they overlap"
    )
    recomputation: Recomputation | None = Field(
        None, description="what a backward makes again, of all layers or of some; default: full in training, else none"
    )
    activation_store: Annotated[str, OneOf(ACTIVATION_STORES.names)] | None = Field(
        None, description="the type in which activations wait for their backward; default: the stack's"
    )
    offload_layers: Annotated[StrictInt, Field(ge=0, le=100_000)] = Field(
        0, description="layers of every chunk, spread over it, whose activations wait in the host's memory"
    )
    offload_weights: Annotated[StrictInt, Field(ge=0, le=100_000)] = Field(
        0, description="layers of every chunk, spread over it, whose weights lie in the host's memory and come ahead "
        "of use"
    )  # fmt: skip
    micro_batch: PositiveCount | None = Field(None, description="sequences; default: 1 in training, else all")
    schedule: Annotated[str, OneOf(ORDERS.names)] = Field("1f1b", description="of a pipeline; interleaved with vpp > 1")
    stage_layers: tuple[Annotated[StrictInt, Field(ge=0)], ...] = Field(
        (), description="layers of every chunk; the first may be the embedding alone, the last the head; default: even"
    )
    accumulation: PositiveCount = Field(
        1, description="turns of gradient accumulation in each of which a pipeline fills and empties"
    )
    zero: Annotated[int, Field(ge=0, le=3)] = Field(0, description="what replicas divide: 3 is FSDP")
    shard_group: Degree | None = Field(None, description="ranks that divide it (hybrid sharding); default: all")
    secondary_shard: Degree | None = Field(
        None, description="with zero: 3, ranks that keep a second copy of the weights among them for backwards"
    )
    weight_wire: Annotated[str, OneOf(lambda: tuple(wires()))] | None = Field(
        None, description="with zero: 3, the type that forwards gather weights in; default: their own"
    )
    gradient_wire: Annotated[str, OneOf(lambda: tuple(wires()))] | None = Field(
        None, description="with zero: 3 and secondary_shard, the type that gradients are summed in; default: their own"
    )
    checkpoint: Annotated[str, OneOf(CHECKPOINTS.names)] | None = Field(
        None, description="how checkpoints of training are written; default: none is"
    )
    checkpoint_rate: BytesPerSecond | None = Field(
        None, description="with checkpoint, what the file system takes of all ranks; default: it keeps up"
    )
    checkpoint_every: PositiveCount = Field(1, description="with checkpoint, one in how many steps")
    expert_dispatch: Annotated[str, OneOf(DISPATCHES.names)] = Field(
        "ranks", description="a token travels once to each rank of its experts by a library or at the links' rate, or "
        "once to each expert"
    )  # fmt: skip
    expert_overlap: Annotated[str, OneOf(OVERLAPS.names)] = Field(
        "none", description="what hides dispatch and combine: shared experts, and a backward behind another's forward"
    )
    expert_pieces: Annotated[PositiveCount, Field(le=64)] = Field(
        1, description="pieces of dispatch, experts and combine that run beside each other"
    )
    expert_shards: Annotated[StrictInt, Field(ge=0, le=65536)] | None = Field(
        None, description="where experts and tokens meet: 0 gathers all experts, more are ranks that an expert's "
        "columns are multiplied on, and ep may then be a multiple of the experts; default: whole experts"
    )  # fmt: skip
    expert_balance: Annotated[Balance, BalanceType()] = Field(
        BUSIEST, description="what ranks get of an uneven load: a policy's name, or its name and options"
    )
    tsp_schedule: Literal["auto", "published"] = Field(
        "auto", description="what the keys below are where they are not stated: fastest here, or TSP word by word"
    )
    weight_transport: Chosen[Annotated[str, OneOf(WEIGHT_TRANSPORTS.names)]] = Field(
        None, description="how TSP brings the MLP's weights: round a ring, round several, or gathered in pieces"
    )
    mlp_pieces: Chosen[Annotated[PositiveCount, Field(le=1024)]] = Field(
        None, description="pieces that gather brings them in"
    )
    head_groups: Chosen[Degree] = Field(None, description="groups of heads that TSP attends; published: one a rank")
    context_transport: Chosen[Annotated[str, OneOf(lambda: context.ring.TRANSPORTS)]] = Field(
        None, description="exchange: ring over one link of a GPU, or in pieces over all of them"
    )
    overlap_by: Chosen[Literal["heads", "blocks"]] = Field(
        None, description="what overlapped gathers of K and V are cut by: heads, or blocks of tokens"
    )
    algorithms: dict[CollectiveKind, CollectiveAlgorithm] = Field({}, description="kind of collective: its algorithm")
    placement: RankPlacement | None = Field(None, description="which axes run along the node and which along rails")

    @model_validator(mode="before")
    @classmethod
    def _further_keys(cls, data: Any) -> Any:
        """Keys that are no fields: ``cp``, and what registered objects bring, each by its own type."""
        if not isinstance(data, Mapping):
            return data
        if "cp" in data and "sp" in data:
            raise refuse("cp and sp are one axis; state one of them")
        keys = {"sp" if key == "cp" else key: value for key, value in data.items()}
        if keys.get("sp") == "auto":
            keys = {key: value for key, value in keys.items() if key != "sp"} | {"dynamic_sp": True}
        further, wrong = {each.name: each for each in cls.further()}, []
        for key in [key for key in keys if key not in cls.model_fields]:
            try:
                if key not in further:
                    raise PydanticCustomError("extra_forbidden", "unknown key")
                keys[key] = TypeAdapter(further[key].type).validate_python(keys[key])
            except PydanticCustomError as error:
                wrong.append(InitErrorDetails(type=error, loc=(key,), input=keys[key]))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                told = PydanticCustomError(first["type"], first["msg"], first.get("ctx"))
                wrong.append(InitErrorDetails(type=told, loc=(key, *first["loc"]), input=first["input"]))
        if wrong:
            raise ValidationError.from_exception_data(cls.__name__, wrong)
        return keys

    @model_validator(mode="after")
    def _one_scheme(self) -> Self:
        scheme = SCHEMES.get(self.scheme)
        beside = [axis for axis in scheme_axes() if axis not in scheme.axes]
        if any(self.degree(axis) > 1 for axis in beside):
            axis, others = scheme.axes[0], " and ".join(axis for axis in beside if axis in type(self).model_fields)
            raise refuse(f"{axis}: {self.degree(axis)} {scheme.alone}; leave {others} out beside it")
        for other in SCHEMES.values():
            strange = [each.name for each in plan_options(other) if getattr(self, each.name, None) is not None]
            strange = [name for name in strange if name not in {each.name for each in plan_options(scheme)}]
            if strange:
                raise refuse(f"{strange[0]} is a key of {other.summary}; leave it out of {scheme.summary}")
        return self

    @classmethod
    def further(cls) -> Iterator[Option]:
        """Keys of registered objects that are no fields: axes and options."""
        for axis in scheme_axes():
            if axis not in cls.model_fields:
                yield Option(axis, Degree, 1)
        of_schemes = [option for scheme in SCHEMES.values() for option in plan_options(scheme)]
        of_methods = [option for method in CONTEXT_METHODS.values() for option in method.options]
        for option in (*of_schemes, *of_methods):
            names = option.type
            yield replace(option, type=Annotated[str, OneOf(names.names)]) if isinstance(names, Registry) else option

    @classmethod
    def complete(cls, schema: dict[str, Any]) -> None:
        """Give the JSON Schema the keys that are no fields."""
        schema["additionalProperties"] = False
        degree = dict(schema["properties"]["sp"])
        told = {key: degree.pop(key) for key in ("default", "description") if key in degree}
        schema["properties"]["sp"] = {"anyOf": [degree, {"const": "auto", "type": "string"}], **told}
        schema["properties"]["cp"] = schema["properties"]["sp"] | {"description": "another spelling of sp"}
        for each in cls.further():
            told = {"default": each.default, **({"description": each.summary} if each.summary else {})}
            schema["properties"][each.name] = TypeAdapter(each.type).json_schema() | told

    def degree(self, axis: str) -> int:
        """Ranks along a mesh axis."""
        return int(getattr(self, axis, None) or 1)

    @property
    def remade(self) -> tuple[str, Partly | None]:
        """What is made again, and of which layers where not of all."""
        stated = self.recomputation
        if isinstance(stated, PartlyRecomputed):
            return stated.what, Partly(stated.layers, stated.method)
        return stated or KEPT, None

    def _spread(self) -> dict[str, int]:
        return {axis: self.degree(axis) for axis in (*scheme_axes(), "pp")}

    @property
    def scheme(self) -> str:
        """The scheme that its degrees ask for."""
        return scheme_name(self._spread())

    @property
    def options(self) -> dict[str, Any]:
        """What it states of the keys that its scheme and its context method bring, and their defaults."""
        brought = (*plan_options(SCHEMES.get(self.scheme)), *CONTEXT_METHODS.get(self.exchange).options)
        values = {each.name: getattr(self, each.name, each.default) for each in brought}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def ranks_per_replica(self) -> int:
        """GPUs one copy of the model takes."""
        return math.prod(self._spread().values())
