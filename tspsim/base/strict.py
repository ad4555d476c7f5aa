"""Base class and annotations for sections of files: frozen, unknown keys refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Optional, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, PydanticKnownError, PydanticSerializationError, core_schema

from .errors import either, is_ctrl_c
from .memo import once, remembered

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
    before the section's own: the keys of a file and the values the package reads are declared once. ``KEYS_BEHIND``
    puts some of them behind a key of the section.

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

    #: Key → keys of the dataclass that a file that is written out has behind it.
    KEYS_BEHIND: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **how: Any) -> None:
        super().__pydantic_init_subclass__(**how)
        own = cls.model_fields
        for key, behind in cls.KEYS_BEHIND.items():
            names = [name for name in own if name not in behind]
            last = names[names.index(key) + 1 :]
            own.update({name: own.pop(name) for name in (*behind, *last)})
        if cls.KEYS_BEHIND:
            cls.model_rebuild(force=True)

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


@dataclass(frozen=True)
class FileKey:
    """Marks a field of a frozen dataclass as a key of files. In ``Annotated``, what stands before the mark is of the
    value, what stands after it is of the key.

    Attributes
    ----------
    form
        Type of what a file states, or an open generic one (:class:`~.stated.Stated`) around the field's type; None: the
        field's type.
    name
        The key, if not the field's name.
    """

    form: Any = None
    name: str = ""


#: Mark of a value as it is.
PLAIN = FileKey()


class _Declared(NamedTuple):
    """A key of a file: its field, its name and type, and what else is declared of it."""

    field: str
    key: str
    form: Any
    further: tuple[Any, ...]


@remembered(16)
def _declared(facts: type) -> tuple[_Declared, ...]:
    hints = get_type_hints(facts, include_extras=True)
    return tuple(key for field in fields(facts) for key in _key(field.name, hints[field.name]))


def _key(field: str, hint: Any) -> Iterator[_Declared]:
    """The key of a field; none if it has no mark."""
    parts = getattr(hint, "__metadata__", ())
    at = next((at for at, part in enumerate(parts) if isinstance(part, FileKey)), None)
    if at is None:
        return
    mark, own = parts[at], hint.__origin__
    value = next((part for part in get_args(own) if part is not type(None)), own) if _optional(own) else own
    if parts[:at]:
        value = Annotated[(value, *parts[:at])]
    is_open = getattr(mark.form, "__parameters__", ()) != ()
    form = value if mark.form is None else mark.form[value] if is_open else mark.form
    yield _Declared(field, mark.name or field, form, parts[at + 1 :])


def _optional(hint: Any) -> bool:
    return type(None) in get_args(hint) and get_origin(hint) is not tuple


def keys_that_state(facts: type, names: Collection[str] | None = None) -> dict[str, Any]:
    """Keys of a section that states a frozen dataclass, or those with some names, for :func:`pydantic.create_model`.
    All may be left out: a key of many values is empty then, another None.

    >>> from pydantic import create_model
    >>> @dataclass(frozen=True)
    ... class Host:
    ...     step_s: Annotated[float, FileKey(name="step")] = 0.0
    ...     threads: Annotated[tuple[int, ...], PLAIN] = (1,)
    ...     name: str = "host"
    >>> keys = create_model("Keys", __base__=Strict, **keys_that_state(Host))
    >>> keys(), stated_in(keys(step=2e-6), Host)
    (Keys(step=None, threads=()), {'step_s': 2e-06, 'threads': ()})
    """
    keys: dict[str, Any] = {}
    for _, name, form, further in _declared(facts):
        if names is None or name in names:
            many = get_origin(form)
            kept = form if many in (dict, tuple) else Optional[form]  # noqa: UP045
            declared = Annotated[(kept, *further)] if further else kept
            keys[name] = (declared, many() if many in (dict, tuple) else None)
    return keys


def stated_in(section: BaseModel, facts: type) -> dict[str, Any]:
    """Field of a frozen dataclass → what a section states for it; only of keys that it has and that are not left
    out."""
    stated = {field: getattr(section, key, None) for field, key, *_ in _declared(facts)}
    return {field: entry for field, entry in stated.items() if entry is not None}
