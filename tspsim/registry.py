"""Objects that register themselves under their names: what varies is one of them, and everybody asks it.

A third party registers through an entry point of its package, in the group that the registry names: either the object
itself, or a module that registers when it is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, Protocol, TypeVar

from .errors import UnknownNameError


@cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """Entry points of a group in all installed packages, by name; looked up once."""
    return tuple(sorted(entry_points(group=group), key=lambda each: each.name))


class Named(Protocol):
    """What a registry holds."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)

_changes = 0


def changes() -> int:
    """How often something was registered or removed so far, anywhere: whether what was found before still holds."""
    return _changes


def _changed() -> None:
    global _changes
    _changes += 1


class Registry(Generic[T]):
    """Objects by name, in the order in which they were registered; to iterate gives the names.

    Parameters
    ----------
    what
        What one is called in messages.
    group
        Entry points of this group are loaded when somebody first asks.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> planets = Registry("planet", "tspsim.planets")
    >>> mars = planets.register(SimpleNamespace(name="mars", moons=2))
    >>> planets.names(), planets.get("mars").moons
    (('mars',), 2)
    """

    def __init__(self, what: str, group: str) -> None:
        self.what, self.group = what, group
        self._objects: dict[str, T] = {}
        self._loaded = False

    def register(self, thing: T) -> T:
        """Enter ``thing`` under its name; a name that is taken is an error of the program."""
        if thing.name in self._objects:
            raise ValueError(f"{self.what} '{thing.name}' is registered twice")
        self._objects[thing.name] = thing
        _changed()
        return thing

    def get(self, name: str) -> T:
        """The one of this name; raises UnknownNameError with the nearest names."""
        found = self._all().get(name)
        if found is None:
            raise UnknownNameError(self.what, name, self._all())
        return found

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
            for entry in installed(self.group):
                thing = entry.load()
                name = getattr(thing, "name", None)
                if isinstance(name, str) and self._objects.get(name) is not thing:
                    self.register(thing)
        return self._objects
