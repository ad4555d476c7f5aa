"""The three caches of the package, each with its key and its bound.

=================== ===================== =================================================================
way                 key                   bound
=================== ===================== =================================================================
:class:`once`       an object's attribute the object's own life
:func:`remembered`  a function's inputs   a number of inputs, the most recently used
:class:`BoundedCache`       the caller's choice   a number of entries, of which the older half goes when it is exceeded;
                                         or a total size, of which the oldest entries go
=================== ===================== =================================================================

A :class:`BoundedCache` whose values depend on the identity of parts has keys of :class:`Itself`, which keep the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import _lru_cache_wrapper, cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["BoundedCache", "Itself", "knowing", "once", "remembered"]

Made = TypeVar("Made")

#: Entries of :meth:`BoundedCache.of_parts` that are kept, the most recently used.
MOST = 16
#: How often one entry is handed out before it is made anew, so that its own caches are freed.
OFTEN = 500


if TYPE_CHECKING:
    once = cached_property
else:

    class once:  # noqa: N801
        """``functools.cached_property`` without the lock that it takes in Python 3.11 (3.12 has none either). The
        lock costs several times the computation of most of these attributes.

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
            # This class has no __set__, so that Python looks into the object first the next time.
            value = thing.__dict__[self.name] = self.find(thing)
            return value


def knowing(thing: Made, **values: Any) -> Made:
    """``thing`` with values set for :class:`once` attributes: an equal object has computed them, or its maker knows
    them.

    Raises
    ------
    TypeError
        The class has no such attribute: a field of a frozen object is never set so.

    Examples
    --------
    >>> class Square:
    ...     @once
    ...     def area(self):
    ...         raise RuntimeError("computed anew")
    >>> knowing(Square(), area=4).area
    4
    >>> knowing(Square(), side=2)
    Traceback (most recent call last):
    TypeError: Square finds no side
    """
    cls = thing.__class__
    for name in values:
        if not isinstance(getattr(cls, name, None), (once, cached_property)):
            raise TypeError(f"{cls.__qualname__} finds no {name}")
    thing.__dict__.update(values)
    return thing


class Itself:
    """A key that is one object and not an equal one. It keeps the object, so that no other object gets its id.

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
    """Decorates a function with a cache of its results for ``most`` inputs, the most recently used.

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
    """Values under keys of the caller's choice, at most ``most`` entries: when there are more, the older half goes.
    With ``size``, the total of all sizes is at most ``most``: the oldest entries go.

    Parameters
    ----------
    most
        Entries that are kept; with ``size``, the most that their sizes add up to.
    since
        A further dependence of all entries of :meth:`of_parts`: when its value changes, they are made anew.
    size
        The size of an entry. Entries of such a cache are set and read, and never deleted by the caller.

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

    def __setitem__(self, key: Hashable, value: Any) -> None:
        if self.size is not None:
            self._total += self.size(value) - (self.size(self[key]) if key in self else 0)
            super().__setitem__(key, value)
            while self._total > self.most:
                self._total -= self.size(self.pop(next(iter(self))))
            return
        if len(self) >= self.most and key not in self:
            for old in list(self)[: max(1, self.most // 2)]:
                del self[old]
        super().__setitem__(key, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedCache, (self.most, self.since, self.size), None, None, iter(self.items())

    def once(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The entry of this key, made by ``make`` when it is first asked for."""
        if key not in self:
            self[key] = make()
        value: Made = self[key]
        return value

    def of_parts(self, parts: Sequence[object], how: Hashable, make: Callable[[], Made]) -> Made:
        """The object that ``make`` makes of immutable parts: the same object for the same parts, ``OFTEN`` times.

        Parts are the same where they are one object. Files of the same text are (:func:`tspsim.catalog.load`); a
        changed file gives another. Each call makes its entry the latest.

        Parameters
        ----------
        parts
            The parts, compared by identity.
        how
            Everything else that the object depends on.
        make
            Makes the object.

        Examples
        --------
        >>> memo, parts = BoundedCache(2), (object(), object())
        >>> first = memo.of_parts(parts, "as it is", list)
        >>> memo.of_parts(parts, "as it is", list) is first, memo.of_parts(parts, "otherwise", list) is first
        (True, False)
        """
        key = (self.since(), tuple(map(Itself, parts)), how)
        value, left = self.pop(key, None) or (make(), OFTEN)
        while len(self) >= self.most:
            del self[next(iter(self))]
        if left > 1:
            self[key] = value, left - 1
        kept: Made = value
        return kept
