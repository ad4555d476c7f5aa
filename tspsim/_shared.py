"""Things that remember what they were asked, one for all who ask for the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from . import registry

Made = TypeVar("Made")

#: So many are kept, those that were asked for last.
MOST = 16
#: How often one is handed out before it is made anew: what it remembers goes with it.
OFTEN = 500


class Itself:
    """A key that is one object and no equal one: it keeps the object, so that no other can come to have its number.

    Examples
    --------
    >>> parts = [1, 2]
    >>> Itself(parts) == Itself(parts), Itself(parts) == Itself([1, 2]), len({Itself(parts), Itself(parts)})
    (True, False, 1)
    """

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


@dataclass
class _Entry(Generic[Made]):
    made: Made
    left: int = OFTEN


@dataclass
class Shared(Generic[Made]):
    """What is made of parts that nobody changes: the same object for the same parts.

    Parts are the same where they are one object, as files of the same text are (:func:`tspsim.catalog.load`): who
    changes a file gets another. What has registered itself since may change what is remembered too: everything is then
    made anew.

    Examples
    --------
    >>> shared, parts = Shared(), (object(), object())
    >>> first = shared.get(parts, "as it is", list)
    >>> shared.get(parts, "as it is", list) is first, shared.get(parts, "otherwise", list) is first
    (True, False)
    """

    _entries: OrderedDict[Hashable, _Entry[Any]] = field(default_factory=OrderedDict)

    def get(self, parts: Sequence[object], how: Hashable, make: Callable[[], Made]) -> Made:
        """What ``make`` makes of ``parts``; ``how``: everything else that it depends on."""
        key = (registry.changes(), tuple(map(Itself, parts)), how)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(make())
            if len(self._entries) > MOST:
                self._entries.popitem(last=False)
        entry.left -= 1
        if entry.left:
            self._entries.move_to_end(key)
        else:
            del self._entries[key]
        made: Made = entry.made
        return made
