"""What makes objects by the hundred thousand quicker: frozen dataclasses, and no garbage collection meanwhile.

Frozen dataclasses that are fast to make and to change: programs use them by the hundred thousand.

Python's garbage collector, which looks for cycles far more often than simulations leave any.
"""

from __future__ import annotations

import atexit
import dataclasses
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, TypeVar

Made = TypeVar("Made")


def quick(cls: type[Made]) -> type[Made]:
    """A frozen dataclass with slots whose objects take a third of the time to make.

    The ``__init__`` of a frozen dataclass calls ``object.__setattr__`` once per field, since its own ``__setattr__``
    refuses. Here an object starts in a class with the same slots that refuses nothing, where a field is a plain
    assignment, and moves to the frozen class when all fields are set. From then on it is equal, hashable and frozen as
    usual. Where a base class has a slot ``_hash``, the hash is computed once.

    Parameters
    ----------
    cls
        Made by ``dataclass(frozen=True, slots=True)``; its fields have plain defaults or none.

    Raises
    ------
    TypeError
        It is another class, or a field's default is made by a function.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @quick
    ... @dataclass(frozen=True, slots=True)
    ... class Point:
    ...     x: float
    ...     y: float = 0.0
    >>> Point(1.0), Point(1.0) == Point(1.0, 0.0), hash(Point(2.0)) == hash(Point(2.0))
    (Point(x=1.0, y=0.0), True, True)
    >>> Point(1.0).x = 2.0
    Traceback (most recent call last):
    dataclasses.FrozenInstanceError: cannot assign to field 'x'
    """
    every = fields(cls)  # type: ignore[arg-type]
    custom = any(part.default_factory is not MISSING or not part.init or part.kw_only for part in every)
    if custom or "__slots__" not in vars(cls) or hasattr(cls, "__post_init__") or not frozen(cls):
        raise TypeError(f"{cls.__qualname__} is no frozen dataclass with slots and plain defaults")
    # What it derives from may be frozen too.
    body = {"__slots__": vars(cls)["__slots__"], "__module__": cls.__module__, "__setattr__": object.__setattr__}
    metaclass: Any = type(cls)
    names: dict[str, Any] = {
        "_open": metaclass(cls.__name__, cls.__bases__, body),
        "_frozen": cls,
        "_set": object.__setattr__,
        "_slowly": cls.__init__,
        **{f"_{part.name}": part.default for part in every if part.default is not MISSING},
    }
    parameters = [part.name if part.default is MISSING else f"{part.name}=_{part.name}" for part in every]
    lines = [
        f"def __init__(self, {', '.join(parameters)}):",
        # A class that derives from it may have more to it.
        "    if self.__class__ is not _frozen:",
        f"        return _slowly(self, {', '.join(part.name for part in every)})",
        "    _set(self, '__class__', _open)",
        *(f"    self.{part.name} = {part.name}" for part in every),
        "    self.__class__ = _frozen",
    ]
    exec("\n".join(lines), names)  # as dataclasses itself does
    written: Callable[..., None] = names["__init__"]
    cls.__init__ = wraps(cls.__init__)(written)  # type: ignore[method-assign]
    if hasattr(cls, "_hash"):
        cls.__hash__ = hashed_once(cls.__hash__)  # type: ignore[method-assign, assignment]
    return cls


def hashed_once(find: Callable[[Any], int]) -> Callable[[Any], int]:
    """A hash function whose result is kept in the object."""

    def kept(self: Any) -> int:
        try:
            value: int = self._hash
        except AttributeError:
            value = find(self)
            object.__setattr__(self, "_hash", value)
        return value

    return wraps(find)(kept)


def frozen(cls: type) -> bool:
    """Whether a dataclass is frozen."""
    return bool(cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def replace(thing: Made, /, **changes: Any) -> Made:
    """What ``dataclasses.replace`` does, several times as fast: a search over plans calls it a hundred thousand times.

    The fields go over as they are, without ``__init__``, into an object with empty caches. Objects with slots go the
    usual way, and so do those of a class with a say in how it is made (``__post_init__``, an ``__init__`` of its own,
    fields that are not parameters).

    Raises
    ------
    TypeError
        There is no field of a name.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: float
    ...     y: float = 0.0
    >>> replace(Point(1.0), y=2.0)
    Point(x=1.0, y=2.0)
    """
    cls = thing.__class__
    plain = _plain_fields.get(cls)
    if plain is None:
        plain = _plain_fields[cls] = plain_fields(cls)
    if not plain:
        return dataclasses.replace(thing, **changes)  # type: ignore[type-var]
    values = thing.__dict__ | changes
    if len(values) > len(plain):
        if not changes.keys() <= plain:
            raise TypeError(f"{cls.__qualname__} has no field {', '.join(sorted(changes.keys() - plain))}")
        for remembered in values.keys() - plain:
            del values[remembered]
    copy: Made = object.__new__(cls)
    object.__setattr__(copy, "__dict__", values)
    return copy


def plain_fields(cls: type) -> frozenset[str]:
    """The field names of a class whose objects are their fields and nothing else; empty for any other class."""
    parameters = vars(cls).get("__dataclass_params__")
    slots = any(vars(base).get("__slots__") for base in cls.__mro__)
    if parameters is None or not (parameters.init and parameters.frozen) or slots or hasattr(cls, "__post_init__"):
        return frozenset()
    every = fields(cls)
    return frozenset(part.name for part in every) if all(part.init for part in every) else frozenset()


#: Plain fields by class, of every class so far.
_plain_fields: dict[type, frozenset[str]] = {}


def stated_fields(thing: object) -> frozenset[str]:
    """Names of a dataclass object's fields that do not stand at their default; those without one count as stated.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: float
    ...     y: float = 0.0
    ...     name: str = ""
    >>> sorted(stated_fields(Point(1.0, name="here")))
    ['name', 'x']
    """
    cls = thing.__class__
    usual = _usual.get(cls)
    if usual is None:
        usual = _usual[cls] = tuple(
            (one.name, one.default if one.default_factory is MISSING else one.default_factory())
            for one in fields(cls)  # type: ignore[arg-type]
        )
    return frozenset([name for name, value in usual if getattr(thing, name) != value])


#: Fields of every class met so far, with what they are where nothing is stated.
_usual: dict[type, tuple[tuple[str, Any], ...]] = {}


# --- python's garbage collector, which looks for cycles far more often than simulations leave -----------------

#: Objects made before the collector looks for cycles. A simulation makes millions and leaves few cycles; looking
#: every 700, as Python does, costs a fifth of the time.
COLLECT_AFTER = 200_000


def collect_seldom() -> None:
    """The collector looks for cycles every :data:`COLLECT_AFTER` objects from now on, or as seldom as it did."""
    often, *older = gc.get_threshold()
    gc.set_threshold(max(often, COLLECT_AFTER) if often else 0, *older)


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Within this context the collector looks for cycles as :func:`collect_seldom` says."""
    before = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def no_collection() -> Iterator[None]:
    """Within this context the collector is off: millions of small objects leave no cycles to find."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collect_for_a_command() -> None:
    """For a process that answers one command: it collects seldom, and not at its end, when all memory is freed."""
    collect_seldom()
    atexit.register(gc.freeze)
