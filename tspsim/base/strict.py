"""Base class and annotations for sections of files: frozen, unknown keys refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Optional, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, PydanticKnownError, PydanticSerializationError, core_schema

from .errors import either, is_ctrl_c
from .memo import once

Facts = TypeVar("Facts")


#: Methods that a frozen dataclass defines; a section keeps those of its model instead.
_OF_DATACLASSES = ("__init__", "__repr__", "__eq__", "__setattr__", "__delattr__")


def section(words: str) -> ConfigDict:
    """``__pydantic_config__`` of a frozen dataclass that is a section of files: an unknown key is an error, and its
    JSON Schema is described by ``words``."""
    return ConfigDict(extra="forbid", json_schema_extra={"description": words})


class Strict(BaseModel):
    """Frozen; an unknown key is an error.

    A section may derive from a frozen dataclass, named before ``Strict``. The dataclass's fields are then keys too,
    before the section's own: the keys of a file and the values the package reads are declared once.

    Examples
    --------
    >>> from typing import Annotated
    >>> from pydantic import Field
    >>> @dataclass(frozen=True)
    ... class Adapters:
    ...     rank: Annotated[int, Field(ge=1, description="columns")]
    ...     experts: str = "each"
    >>> class Keys(Adapters, Strict):
    ...     pass
    >>> keys = Keys.model_validate({"rank": 8})
    >>> keys, as_stated(keys, Adapters)
    (Keys(rank=8, experts='each'), Adapters(rank=8, experts='each'))
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(once,))

    def __init_subclass__(cls, **how: Any) -> None:
        super().__init_subclass__(**how)
        if is_dataclass(cls):
            for name in _OF_DATACLASSES:
                setattr(cls, name, getattr(BaseModel, name))
            cls.__hash__ = _hash

    def model_dump(self, **how: Any) -> dict[str, Any]:
        """As pydantic's. Ctrl-C while a part writes itself stays Ctrl-C; pydantic calls it an error of
        serialization."""
        try:
            return super().model_dump(**how)
        except PydanticSerializationError as error:
            if is_ctrl_c(error):
                raise KeyboardInterrupt from None
            raise


def _hash(section: BaseModel) -> int:
    return hash(tuple(section.__dict__.values()))


def as_stated(section: object, of: type[Facts]) -> Facts:
    """The values of a section as the frozen dataclass that it derives from."""
    return of(**{field.name: getattr(section, field.name) for field in fields(of)})  # type: ignore[arg-type]


def keys_of(section: type[Strict], names: Iterable[str], left_out: Collection[str] = ()) -> dict[str, Any]:
    """Keys of a file that says part of what a section says, for :func:`pydantic.create_model`: each as the section
    declares it, and those in ``left_out`` may be absent.

    >>> from pydantic import create_model
    >>> class Link(Strict):
    ...     lanes: int
    ...     speed: float
    >>> create_model("Part", __base__=Strict, **keys_of(Link, ("lanes", "speed"), {"speed"}))(lanes=4)
    Part(lanes=4, speed=None)
    """
    keys: dict[str, Any] = {}
    for name in names:
        own = section.model_fields[name]
        declared: Any = Annotated[(own.annotation, *own.metadata)] if own.metadata else own.annotation
        keys[name] = (Optional[declared], None) if name in left_out else (own.annotation, own)  # noqa: UP045
    return keys


@dataclass(frozen=True)
class OneOrSeveral:
    """Annotates a tuple that may be written as one value, and says so in its JSON Schema."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        several = handler(source)
        single = several["items_schema"][0]
        return core_schema.no_info_before_validator_function(
            one_or_several, several, json_schema_input_schema=core_schema.union_schema([single, several])
        )


def one_or_several(value: object) -> tuple[object, ...]:
    """One value, or a list of them, as a tuple.

    >>> one_or_several(3), one_or_several([3, 4])
    ((3,), (3, 4))
    """
    return tuple(value) if isinstance(value, list | tuple) else (value,)


@dataclass(frozen=True)
class OneOf:
    """Annotates a name that must be one of ``names()``, read when a file is read: registries may have grown."""

    names: Callable[[], Sequence[str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._check, core_schema.str_schema())

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": list(self.names()), "type": "string"}

    def _check(self, value: object) -> str:
        names = self.names()
        if not isinstance(value, str) or value not in names:
            quoted = [repr(name) for name in names]
            raise PydanticKnownError("literal_error", {"expected": either(quoted)})
        return value


def refuse(sentence: str) -> PydanticCustomError:
    """An error whose text the user reads unchanged."""
    return PydanticCustomError("refused", "{sentence}", {"sentence": sentence})
