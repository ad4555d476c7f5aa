"""Values of files with their sources."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, Generic, NamedTuple, Optional, Self, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field, model_validator

from .memo import remembered
from .strict import Strict

Value = TypeVar("Value")
#: Where a value is from.
Source = Annotated[str, Field(min_length=3, max_length=2000)]


class Stated(Strict, Generic[Value]):
    """A value and its source."""

    value: Value
    source: Source


class Expected(Stated[Value], Generic[Value]):
    """A value that differs between installations, with its 90 % interval ``range``."""

    range: tuple[Value, Value] | None = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        low, high = self.ends
        if not low <= self.value <= high:
            raise ValueError(f"value {self.value} must lie in its range, {low} to {high}")
        return self

    @property
    def ends(self) -> tuple[Any, Any]:
        """The range; without one, the value twice."""
        return self.range if self.range is not None else (self.value, self.value)


@dataclass(frozen=True)
class FileKey:
    """Marks a field of a frozen dataclass as a key of files. In ``Annotated``, what stands before the mark is of the
    value, what stands after it is of the key.

    Attributes
    ----------
    form
        What a file states: :class:`Stated` or :class:`Expected` values of the field's type, or a type of its own; None:
        a value of the field's type without a source.
    name
        The key, if not the field's name.
    """

    form: Any = None
    name: str = ""


#: Marks of a value without a source, and of one with its source.
PLAIN, STATED = FileKey(), FileKey(Stated)


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
    form = value if mark.form is None else mark.form[value] if mark.form in (Stated, Expected) else mark.form
    yield _Declared(field, mark.name or field, form, parts[at + 1 :])


def _optional(hint: Any) -> bool:
    return type(None) in get_args(hint) and get_origin(hint) is not tuple


def keys_that_state(facts: type, names: Collection[str] | None = None) -> dict[str, Any]:
    """Keys of a section that states a frozen dataclass, or those with some names, for :func:`pydantic.create_model`.
    All may be left out: a key of many values is empty then, another None.

    >>> from pydantic import create_model
    >>> @dataclass(frozen=True)
    ... class Host:
    ...     step_s: Annotated[float, FileKey(Expected, "step"), Field(description="time of a step")] = 0.0
    ...     threads: Annotated[int | None, STATED] = None
    ...     name: str = "host"
    >>> keys = create_model("Keys", __base__=Strict, **keys_that_state(Host))
    >>> keys.model_validate({"step": {"value": 2e-6, "source": "a trace"}})
    Keys(step=Expected[float](value=2e-06, source='a trace', range=None), threads=None)
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
    """Field of a frozen dataclass → what a section states for it; only of keys that are not left out."""
    stated = {field: getattr(section, key) for field, key, *_ in _declared(facts)}
    return {field: entry for field, entry in stated.items() if entry is not None}
