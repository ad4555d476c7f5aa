"""Kinds of traffic: objects of registered classes, whose fields are their options, and who describe themselves.

A class registers under the ``kind`` that a scenario writes. A registry's classes form the type of a scenario's key
(:class:`OneKind`): the class of the kind reads the value, and the JSON Schema lists all classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import InitErrorDetails, PydanticCustomError, core_schema

from ..base.errors import UnitError, did_you_mean, either
from ..base.memo import once
from ..base.registry import Registry
from ..base.strict import refuse
from ..base.units import WITH_UNITS, parse

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Kind(BaseModel):
    """One way in which something varies.

    Attributes
    ----------
    name
        What a scenario's ``kind`` calls it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, ignored_types=(once,))
    name: ClassVar[str]
    #: The registry of the family, set by its base class.
    registry: ClassVar[Registry[Any]]

    @classmethod
    def stated(cls) -> set[str]:
        """Keys that a scenario may state beside ``kind``."""
        return {field.alias or name for name, field in cls.model_fields.items()}

    @classmethod
    def further_keys(cls) -> Iterator[str]:
        """All keys of a family's registered classes, for messages that offer the nearest."""
        for kind in cls.registry.values():
            yield from kind.stated()

    def in_words(self) -> str:
        """What the kind does, as a clause of a sentence."""
        raise NotImplementedError


@dataclass(frozen=True)
class OneKind:
    """Annotates a field that holds an object of one of a registry's classes, looked up when a scenario is read.

    Parameters
    ----------
    registry
        Registry of classes.
    shorthand
        Reads other spellings than a mapping with ``kind``.
    without
        Kinds that are not allowed: those that hold others.
    """

    registry: Registry[Any]
    shorthand: Callable[[Any], Mapping[str, Any] | None] = lambda value: None
    without: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the allowed kinds."""
        return [name for name in self.registry if name not in self.without]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(
            lambda value, info: dumped(value, info.context), info_arg=True
        )
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [self._schema(self.registry.get(name)) for name in self.names]}

    def _schema(self, kind: type[Kind]) -> dict[str, Any]:
        schema = kind.model_json_schema(by_alias=True)
        alone: dict[str, Any] = inlined(schema, schema.pop("$defs", {}))
        constant = {"const": kind.name, "type": "string"}
        properties = {"kind": constant, **alone.get("properties", {})}
        return alone | {"properties": properties, "required": ["kind", *alone.get("required", [])]}

    def read(self, value: Any) -> Kind:
        """The object that a scenario's value describes."""
        if isinstance(value, Kind):
            return value
        expanded = self.shorthand(value)
        data = dict(expanded if expanded is not None else value) if isinstance(expanded or value, Mapping) else None
        if data is None:
            raise PydanticCustomError("mapping_type", "not a mapping")
        if "kind" not in data:
            missing = InitErrorDetails(type="missing", loc=("kind",), input=value)
            raise ValidationError.from_exception_data(self.registry.what, [missing])
        kind = data.pop("kind")
        if not isinstance(kind, str) or kind not in self.names:
            raise self._wrong("kind", f"unknown {self.registry.what} '{kind}'{did_you_mean(kind, self.names)}", kind)
        chosen: type[Kind] = self.registry.get(kind)
        for key in (key for key in data if key not in chosen.stated()):
            others = [name for name in self.names if key in self.registry.get(name).stated()]
            near = f"unknown key{did_you_mean(key, sorted(chosen.stated()))}"
            raise self._wrong(key, f"is a key of {either(others)}, not of {kind}" if others else near, data[key])
        return chosen.model_validate(data)

    def _wrong(self, key: str, sentence: str, value: Any) -> ValidationError:
        """An error about one key."""
        wrong = InitErrorDetails(type=refuse(sentence), loc=(key,), input=value)
        return ValidationError.from_exception_data(self.registry.what, [wrong])


def inlined(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema without references: definitions are written out."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            return inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return {key: inlined(value, definitions) for key, value in schema.items()}
    return [inlined(value, definitions) for value in schema] if isinstance(schema, list) else schema


def dumped(value: Kind, context: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A kind as a scenario states it. Defaults are filled in, unless the text is to be read back."""
    again = bool((context or {}).get(WITH_UNITS))
    data = value.model_dump(mode="json", by_alias=True, context=dict(context or {}), exclude_unset=again)
    alone = {key: item[0] if isinstance(item, list) and len(item) == 1 else item for key, item in data.items()}
    return {"kind": value.name, **{key: item for key, item in alone.items() if item is not None}}


def _read_rate(value: object) -> float:
    try:
        return parse(value, "requests/s", positive=True)
    except UnitError as error:
        raise PydanticCustomError("quantity", "{reason}", {"reason": error.message}) from None


_RATE_SCHEMA = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "string", "examples": ["4 requests/s", "90 requests/min"]},
    ]
}
#: Requests a second: text with its unit, or a bare number, as benchmarks take it.
Rate = Annotated[float, PlainValidator(_read_rate), WithJsonSchema(_RATE_SCHEMA)]
