"""Objects that register themselves by name: what varies is one of them, and callers ask the object.

A third party registers through an entry point of its package, in the group that the registry names: either the object
itself, or a module that registers when it is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Generic, Protocol, TypeVar, cast, get_args, get_origin

from .errors import InputError, TspsimError, UnknownNameError, shorten
from .memo import remembered


@remembered(128)
def installed(group: str) -> tuple[EntryPoint, ...]:
    """Entry points of a group in all installed packages, by name; looked up once."""
    return tuple(sorted(entry_points(group=group), key=lambda entry: entry.name))


def load(entry: EntryPoint) -> Any:
    """What an entry point names.

    Raises
    ------
    InputError
        It cannot be imported, or is not there; the message names its package.
    """
    global _loading
    _loading += 1
    try:
        return entry.load()
    except TspsimError:
        raise
    except Exception as error:
        raise refused(entry, f"cannot be loaded: {type(error).__name__}: {shorten(error, 200)}") from error
    finally:
        _loading -= 1


def refused(entry: EntryPoint, why: str) -> InputError:
    """The error for an entry point that cannot be used, with the remedy."""
    return InputError(f"{entry.value} {why}; repair or uninstall the package", file=_package(entry), key=entry.group)


def _package(entry: EntryPoint) -> str:
    return f"package {entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an installed package"


class Named(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)
U = TypeVar("U", bound=Named)

_changes = 0


def changes() -> int:
    """How many objects were registered or removed so far, in all registries: caches use it to see a change."""
    return _changes


def _changed() -> None:
    global _changes
    _changes += 1


_loading = 0
_by_program = False


def by_program() -> bool:
    """Whether a program registered an object itself, outside this package and entry points: another process has it
    only if it runs that program again."""
    return _by_program


def strange(thing: object, of: Any) -> str:
    """Why ``thing`` is not an object of a class or a protocol, or not a subclass of one (``type[...]``); empty where
    it is.

    >>> strange(3, int), strange(bool, type[int]), strange(3, str), strange(3, Named)
    ('', '', 'is no str but an int', 'has no name')
    >>> strange(int, int), strange(3, type[int])
    ('is a class where an object of it is wanted', 'is an object where a class is wanted')
    """
    classes = get_origin(of) is type
    wanted: type = get_args(of)[0] if classes else of
    if isinstance(thing, type) is not classes:
        return f"is {'an object where a class' if classes else 'a class where an object of it'} is wanted"
    if getattr(wanted, "_is_protocol", False):
        missing = [name for name in vars(wanted) if not name.startswith("_") and not hasattr(thing, name)]
        return f"has no {', '.join(missing)}" if missing else ""
    kind = thing if isinstance(thing, type) else type(thing)
    return "" if issubclass(kind, wanted) else f"is no {wanted.__name__} but {_article(kind.__name__)}"


def _article(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


#: All registries by group.
_registries: dict[str, Registry[Any]] = {}


def names_in(group: str) -> Callable[[], tuple[str, ...]]:
    """A function that returns the names of a registry, found by its group.

    It serves modules of lower rooms: the registry need not exist before the first call.
    """
    return lambda: _registries[group].names()


class Registry(Generic[T]):
    """Objects by name, in the order in which they were registered; to iterate gives the names.

    Parameters
    ----------
    what
        The kind of its objects, as messages call it.
    group
        Entry points of this group are loaded on the first look-up.
    of
        The class or protocol of its objects; ``type[C]`` where it holds classes that derive from C.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> planets = Registry("planet", "tspsim.planets")
    >>> mars = planets.register(SimpleNamespace(name="mars", moons=2))
    >>> planets.names(), planets.get("mars").moons
    (('mars',), 2)
    """

    def __init__(self, what: str, group: str, of: Any = None) -> None:
        self.what, self.group, self.of = what, group, of
        _registries[group] = self
        self._objects: dict[str, T] = {}
        self._loaded = False

    def holding(self, of: type[U]) -> Registry[U]:
        """The same registry with the class of its objects: called in the module that defines the class."""
        self.of = of
        return cast("Registry[U]", self)

    def register(self, thing: T) -> T:
        """Enter ``thing`` under its name.

        Raises
        ------
        ValueError
            The name is taken.
        TypeError
            It is not of the registry's class, or has no name.
        """
        why = strange(thing, self.of) if self.of is not None else ""
        if not why and not isinstance(getattr(thing, "name", None), str):
            why = "has no name"
        if why:
            raise TypeError(f"what is registered as {self.what} {why}")
        if thing.name in self._objects:
            raise ValueError(f"{self.what} '{thing.name}' is registered twice")
        self._objects[thing.name] = thing
        _changed()
        global _by_program
        registers = str(sys._getframe(1).f_globals.get("__name__", ""))
        if not _loading and registers.partition(".")[0] != __name__.partition(".")[0]:
            _by_program = True
        return thing

    def get(self, name: str) -> T:
        """The one of this name; raises UnknownNameError with the nearest names."""
        thing = (self._objects if self._loaded else self._all()).get(name)
        if thing is None:
            raise UnknownNameError(self.what, name, self._all())
        return thing

    def named_by(self, option: str, usual: str) -> Callable[[Any], T]:
        """A function of what has ``options``: the object that one of them names, the ``usual`` one where none does."""

        def named(of: Any) -> T:
            return self.get(of.options.get(option) or usual)

        return named

    def remove(self, name: str) -> None:
        """Forget the one of this name."""
        del self._objects[name]
        _changed()

    def names(self) -> tuple[str, ...]:
        """All names, in order of registration."""
        return tuple(self._all())

    def values(self) -> tuple[T, ...]:
        """All objects, in the same order."""
        return tuple(self._all().values())

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, T]:
        if not self._loaded:
            self._loaded = True  # before loading: what is loaded may ask
            try:
                for entry in installed(self.group):
                    self._enter(entry)
            except InputError:
                self._loaded = False
                raise
        return self._objects

    def _enter(self, entry: EntryPoint) -> None:
        thing = load(entry)
        if isinstance(thing, ModuleType) or any(other is thing for other in self._objects.values()):
            return
        try:
            self.register(thing)
        except (TypeError, ValueError) as error:
            raise refused(entry, f"is refused: {error}") from None
        _brought.append(entry)


#: Entry points whose objects are in use.
_brought: list[EntryPoint] = []


def whose(error: BaseException) -> str:
    """The likely source of an unexpected error: the line of an installed package's module in its traceback, else all
    packages that registered objects; empty where there are none.
    """
    modules = {entry.module.partition(".")[0]: entry for entry in _brought}
    place, trace = "", error.__traceback__
    while trace is not None:
        entry = modules.get(str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0])
        if entry is not None:
            place = f"{_package(entry)}, {trace.tb_frame.f_globals['__name__']} line {trace.tb_lineno}"
        trace = trace.tb_next
    packages = ", ".join(dict.fromkeys(map(_package, _brought)))
    return f"in {place}" if place else packages and f"here or in what {shorten(packages)} brought"
