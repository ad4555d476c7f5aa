"""How a model is spread over ranks: degrees and switches of a plan, or of one of its pools."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_type_hints

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictInt,
    TypeAdapter,
    ValidationError,
    create_model,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import InitErrorDetails, PydanticCustomError

from ..base.registry import Registry
from ..base.strict import OneOf, as_stated
from ..network import ALGORITHMS, KINDS
from ..parallel import CONTEXT_METHODS, SCHEMES, Option, mesh_axes, scheme_axes
from ..parallel.feature import plan_options
from ..parallel.plan import scheme_name
from ..parallel.plan_keys import folds
from ..parallel.recomputed import KEPT, PartialRecompute
from ..parallel.search_rule import SearchRule, not_serving
from ..parallel.switches import OpenSwitches, PartlyRecomputed, Switches
from .section import MOST_RANKS, Degree, Section, refuse

Axis = Annotated[str, OneOf(mesh_axes)]
Value = TypeVar("Value")
#: A key that the simulator chooses if it is not stated, or stated as ``auto``.
Chosen = Annotated[Value | None, BeforeValidator(lambda value: None if value == "auto" else value)]


CollectiveKind = Annotated[str, OneOf(KINDS.names)]
CollectiveAlgorithm = Annotated[str, OneOf(ALGORITHMS.names)]


class RankPlacement(Section):
    """Axes inside the node and along rails across nodes, the first named innermost; and the order of nodes or GPUs."""

    node: tuple[Axis, ...] = Field((), description="axes inside a node, the innermost first")
    rails: tuple[Axis, ...] = Field((), description="axes across nodes, the innermost first")
    order: Annotated[tuple[Annotated[StrictInt, Field(ge=0)], ...], Field(max_length=MOST_RANKS)] = Field(
        (), description="every node, or every GPU, once, in the order of the plan's axes; default: by number"
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
        """The axes, and the order if stated."""
        data = handler(self)
        return data if self.order else {key: value for key, value in data.items() if key != "order"}


class Degrees(Section):
    """Ranks along the axes of a plan. Degrees left out are 1."""

    # Nothing is read as this section alone.
    model_config = ConfigDict(defer_build=True)

    name: str = Field("", description="name of a plan; leave it out elsewhere")
    tsp: Degree = Field(1, description="folded tensor and sequence parallelism")
    tp: Degree = Field(1, description="tensor parallelism")
    sp: Degree = Field(
        1, description="sequence (context) parallelism; auto: each of unequal sequences on as many of dp as it needs"
    )
    pp: Degree = Field(1, description="pipeline stages")
    vpp: Annotated[Degree, SearchRule(of=not_serving)] = Field(1, description="virtual stages per pipeline rank")
    ep: Degree = Field(1, description="ranks that experts are spread over, taken from tp, tsp, sp and dp in this order")
    dp: Degree | None = Field(None, description="replicas; default: as many as the remaining GPUs hold")


class StatedSwitches(Switches, Degrees):
    """Switches as a file states them."""

    tsp_schedule: Annotated[
        Literal["auto", "published"],
        SearchRule(why_not="published is for comparison", of=not_serving, used=folds),
    ] = Field(
        "auto", description="values of the keys below that are not stated: the fastest here, or those of the TSP paper"
    )


def left_open() -> type[StatedSwitches]:
    """:class:`StatedSwitches` with the switches that a plan may leave open (``auto``, or not stated)."""
    keys: dict[str, Any] = {}
    for name, hint in get_type_hints(OpenSwitches, include_extras=True).items():
        field = FieldInfo.from_annotation(hint)
        key = Chosen[Annotated[field.annotation, Field(), *field.metadata]]  # type: ignore[name-defined]
        keys[name] = (key, Field(None, description=field.description))
    return create_model("StatedSchedule", __base__=StatedSwitches, **keys)


if TYPE_CHECKING:

    class StatedSchedule(OpenSwitches, StatedSwitches):
        """As :func:`left_open` makes it."""

else:
    StatedSchedule = left_open()


class Spread(StatedSchedule):
    """How a copy of the model is spread over ranks. Degrees left out are 1."""

    # Axes and options of registered objects are keys too, and so is cp.
    model_config = ConfigDict(
        extra="allow", json_schema_extra=lambda schema: Spread.complete(schema), defer_build=False
    )

    algorithms: Annotated[
        dict[CollectiveKind, CollectiveAlgorithm], SearchRule(why_not="the node's library chooses them")
    ] = Field({}, description="kind of collective: its algorithm")
    placement: Annotated[
        RankPlacement | None,
        SearchRule(of=not_serving, left=lambda model, work: {"order": "searched apart, for one plan: --place"}),
    ] = Field(None, description="axes along the node, and along rails across nodes")

    @model_validator(mode="before")
    @classmethod
    def _further_keys(cls, data: Any) -> Any:
        """Validate keys that are no fields: ``cp``, and those of registered objects, each by its own type."""
        if not isinstance(data, Mapping):
            return data
        if "cp" in data and "sp" in data:
            raise refuse("cp and sp are one axis; state one of them")
        keys = {"sp" if key == "cp" else key: value for key, value in data.items()}
        if keys.get("sp") == "auto":
            keys = {key: value for key, value in keys.items() if key != "sp"} | {"dynamic_sp": True}
        further, wrong = {option.name: option for option in cls.further()}, []
        for key in [key for key in keys if key not in cls.model_fields]:
            try:
                if key not in further:
                    raise PydanticCustomError("extra_forbidden", "unknown key")
                keys[key] = TypeAdapter(further[key].type).validate_python(keys[key])
            except PydanticCustomError as error:
                wrong.append(InitErrorDetails(type=error, loc=(key,), input=keys[key]))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                finding = PydanticCustomError(first["type"], first["msg"], first.get("ctx"))
                wrong.append(InitErrorDetails(type=finding, loc=(key, *first["loc"]), input=first["input"]))
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
            strange = [option.name for option in plan_options(other) if getattr(self, option.name, None) is not None]
            strange = [name for name in strange if name not in {option.name for option in plan_options(scheme)}]
            if strange:
                raise refuse(f"{strange[0]} is a key of {other.summary}; leave it out of {scheme.summary}")
        return self

    @classmethod
    def further_keys(cls) -> Iterator[str]:
        """Names of what :meth:`further` gives, for messages that offer the nearest."""
        return (option.name for option in cls.further())

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
        """Add the keys that are no fields to the JSON Schema."""
        schema["additionalProperties"] = False
        degree = dict(schema["properties"]["sp"])
        words = {key: degree.pop(key) for key in ("default", "description") if key in degree}
        schema["properties"]["sp"] = {"anyOf": [degree, {"const": "auto", "type": "string"}], **words}
        schema["properties"]["cp"] = schema["properties"]["sp"] | {"description": "another spelling of sp"}
        for option in cls.further():
            words = {"default": option.default, **({"description": option.summary} if option.summary else {})}
            schema["properties"][option.name] = TypeAdapter(option.type).json_schema() | words

    def degree(self, axis: str) -> int:
        """Ranks along a mesh axis."""
        return int(getattr(self, axis, None) or 1)

    @property
    def recomputes(self) -> tuple[str, PartialRecompute | None]:
        """What is recomputed, and in which layers if not in all."""
        stated = self.recomputation
        if isinstance(stated, PartlyRecomputed):
            return stated.what, as_stated(stated, PartialRecompute)
        return stated or KEPT, None

    def _spread(self) -> dict[str, int]:
        return {axis: self.degree(axis) for axis in (*scheme_axes(), "pp")}

    @property
    def scheme(self) -> str:
        """The scheme that its degrees select."""
        return scheme_name(self._spread())

    @property
    def options(self) -> dict[str, Any]:
        """Values, or defaults, of the options of its scheme and its context method."""
        brought = (*plan_options(SCHEMES.get(self.scheme)), *CONTEXT_METHODS.get(self.exchange).options)
        values = {option.name: getattr(self, option.name, option.default) for option in brought}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def ranks_per_replica(self) -> int:
        """GPUs of one copy of the model."""
        return math.prod(self._spread().values())
