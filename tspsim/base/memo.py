"""What is remembered: three ways, each with its key and its bound. Nothing else in the package remembers.

=================== ===================== =================================================================
way                 key                   bound
=================== ===================== =================================================================
:class:`once`       an object's attribute the object's own life
:func:`remembered`  a function's inputs   so many inputs, those that were asked for last
:class:`BoundedCache`       what the caller says  so many entries, and the older half goes when there are more; or so
                                         much of what the caller counts, and those found first go
=================== ===================== =================================================================

A :class:`BoundedCache` whose values depend on the identity of parts has them under :class:`Itself`, which keeps each.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import _lru_cache_wrapper, cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["BoundedCache", "Itself", "knowing", "once", "remembered"]

Made = TypeVar("Made")

#: Things made of parts (:meth:`BoundedCache.of_parts`) that are kept, those that were asked for last.
MOST = 16
#: How often one of them is handed out before it is made anew: what it remembers goes with it.
OFTEN = 500


if TYPE_CHECKING:
    once = cached_property
else:

    class once:  # noqa: N801
        """``functools.cached_property`` without the lock that it takes in Python 3.11 (3.12 has none either), which
        costs several times what most of these find.

        Examples
        --------
        >>> class Square:
        ...     side = 2
        ...     @once
        ...     def area(self):
        ...         return self.side**2
        >>> square = Square()
        >>> square.area, vars(square)
        (4, {'area': 4})
        """

        def __init__(self, find):
            self.find, self.__doc__ = find, find.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, thing, owner=None):
            if thing is None:
                return self
            # Nothing here sets, so that Python looks into the object first the next time.
            found = thing.__dict__[self.name] = self.find(thing)
            return found


def knowing(thing: Made, **found: Any) -> Made:
    """``thing``, whose :class:`once` attributes of these names are found already: an object like it found them, or who
    made it knows better.

    Raises
    ------
    TypeError
        Its class finds nothing of a name: a field of a frozen object is never set so.

    Examples
    --------
    >>> class Square:
    ...     @once
    ...     def area(self):
    ...         raise RuntimeError("asked anew")
    >>> knowing(Square(), area=4).area
    4
    >>> knowing(Square(), side=2)
    Traceback (most recent call last):
    TypeError: Square finds no side
    """
    cls = thing.__class__
    for name in found:
        if not isinstance(getattr(cls, name, None), (once, cached_property)):
            raise TypeError(f"{cls.__qualname__} finds no {name}")
    thing.__dict__.update(found)
    return thing


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


def remembered(most: int) -> Callable[[Callable[..., Made]], _lru_cache_wrapper[Made]]:
    """A function that answers again what it was asked before, of ``most`` inputs those that were asked for last.

    Examples
    --------
    >>> @remembered(2)
    ... def squares(n: int) -> list[int]:
    ...     return [n * n]
    >>> squares(3) is squares(3)
    True
    """
    return lru_cache(maxsize=most)


class BoundedCache(dict[Hashable, Any]):
    """What was found under keys that the caller chooses, at most ``most`` entries: when they are as many, the half that
    was found first goes. Where entries are of unlike ``size``, as much of that at most: those found first go.

    Parameters
    ----------
    most
        Entries that are kept.
    since
        What else all things made of parts depend on: when it answers another value, they are made anew.
    size
        Of an entry that is set; such a cache is set and asked, and nothing is taken out of it.

    Examples
    --------
    >>> memo = BoundedCache(4)
    >>> first = memo.once("one", list)
    >>> memo.once("one", list) is first
    True
    >>> for n in range(4):
    ...     memo[n] = n
    >>> list(memo)
    [1, 2, 3]
    >>> sized = BoundedCache(10, size=len)
    >>> for word in ("four", "seven", "three"):
    ...     sized[word] = word
    >>> list(sized)
    ['seven', 'three']
    """

    def __init__(
        self, most: int, since: Callable[[], Hashable] = int, size: Callable[[Any], int] | None = None
    ) -> None:
        super().__init__()
        self.most, self.since, self.size = most, since, size
        self._total = 0

    def __setitem__(self, key: Hashable, found: Any) -> None:
        if self.size is not None:
            self._total += self.size(found) - (self.size(self[key]) if key in self else 0)
            super().__setitem__(key, found)
            while self._total > self.most:
                self._total -= self.size(self.pop(next(iter(self))))
            return
        if len(self) >= self.most and key not in self:
            for old in list(self)[: max(1, self.most // 2)]:
                del self[old]
        super().__setitem__(key, found)

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedCache, (self.most, self.since, self.size), None, None, iter(self.items())

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What ``make`` makes, made when it is first asked for under this key."""
        if key not in self:
            self[key] = make()
        found: Made = self[key]
        return found

    def of_parts(self, parts: Sequence[object], how: Hashable, make: Callable[[], Made]) -> Made:
        """What ``make`` makes of parts that nobody changes: the same object for the same parts, ``OFTEN`` times.

        Parts are the same where they are one object, as files of the same text are (:func:`tspsim.catalog.load`): who
        changes a file gets another. An entry that is asked for becomes the latest.

        Parameters
        ----------
        parts
            What it is made of, told apart by identity.
        how
            Everything else that it depends on.
        make
            Makes it.

        Examples
        --------
        >>> memo, parts = BoundedCache(2), (object(), object())
        >>> first = memo.of_parts(parts, "as it is", list)
        >>> memo.of_parts(parts, "as it is", list) is first, memo.of_parts(parts, "otherwise", list) is first
        (True, False)
        """
        key = (self.since(), tuple(map(Itself, parts)), how)
        made, left = self.pop(key, None) or (make(), OFTEN)
        while len(self) >= self.most:
            del self[next(iter(self))]
        if left > 1:
            self[key] = made, left - 1
        kept: Made = made
        return kept
