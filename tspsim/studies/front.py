"""The Pareto front of some objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Thing = TypeVar("Thing")


def front_of(things: Iterable[Thing], merits: Callable[[Thing], tuple[float, ...]]) -> list[Thing]:
    """The objects that no other dominates: none is at least as good in every merit. Of equals the first.

    Examples
    --------
    >>> front_of([(3, 1), (2, 2), (2, 1), (1, 3), (3, 1)], lambda pair: pair)
    [(3, 1), (2, 2), (1, 3)]
    """
    kept: list[tuple[tuple[float, ...], Thing]] = []
    for thing in things:
        own = merits(thing)
        if any(all(a >= b for a, b in zip(other, own, strict=True)) for other, _ in kept):
            continue
        kept = [
            (other, other_thing)
            for other, other_thing in kept
            if not all(a >= b for a, b in zip(own, other, strict=True))
        ] + [(own, thing)]
    return [thing for _, thing in kept]
