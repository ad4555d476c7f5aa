"""Kinds of things by name, open to other people's packages.

What varies is an object that registers itself, and everybody asks the object: a registry knows names, never what they
mean. Packages add theirs through an entry point whose group is the registry's; it names the object, or a module that
registers some when it is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, distributions
from typing import Generic, Protocol, TypeVar

from .errors import UnknownNameError


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Entry points of installed packages that are for this one, read once."""
    found = (point for package in distributions() for point in package.entry_points)
    return tuple(point for point in found if point.group.startswith("tspsim."))


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Registry(Generic[T]):
    """Objects of one kind by name, in the order in which they were registered.

    Parameters
    ----------
    what
        The kind in words, for errors: ``expert dispatch``.
    group
        Entry points of this group are loaded when the registry is first asked.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> shapes = Registry("shape", "tspsim.shapes")
    >>> ring = shapes.register(SimpleNamespace(name="ring"))
    >>> shapes.names(), shapes.get("ring") is ring
    (('ring',), True)
    """

    def __init__(self, what: str, group: str) -> None:
        self.what, self.group = what, group
        self._known: dict[str, T] = {}
        self._loaded = False

    def register(self, obj: T) -> T:
        """Add an object under its name; a name is given once."""
        if obj.name in self._known:
            raise ValueError(f"{self.what} '{obj.name}' is registered twice")
        self._known[obj.name] = obj
        return obj

    def get(self, name: str) -> T:
        """The object of a name; raises UnknownNameError with the nearest."""
        known = self._all()
        if name not in known:
            raise UnknownNameError(self.what, name, known)
        return known[name]

    def names(self) -> tuple[str, ...]:
        return tuple(self._all())

    def values(self) -> tuple[T, ...]:
        return tuple(self._all().values())

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self._all())

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def _all(self) -> dict[str, T]:
        if not self._loaded:
            self._loaded = True
            for found in [point.load() for point in _installed() if point.group == self.group]:
                if hasattr(found, "name") and found.name not in self._known:
                    self.register(found)
        return self._known
