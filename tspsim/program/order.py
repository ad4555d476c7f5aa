"""In which order the instructions of a rank may start: the one rule, for everybody who follows a program.

A stream runs its instructions one after the other. An instruction begins when the one before it on its stream and those
that it names in ``after`` have ended. Inside what repeats ``after`` counts from the start of its own turn.

Two modules follow a program in time by this rule. :mod:`tspsim.engine.ranks` replays it as events: there ranks meet,
and share links and devices, which delays them further. :mod:`tspsim.step.paths.walk` adds it up along one rank, a lower
bound: it needs no clock and leaves out turns that are alike. `tests/step/test_both_walkers.py` holds the two against
each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def waits_in_turn(after: Sequence[int], begin: int, first: int) -> tuple[int, ...]:
    """Places that the waits of a turn mean which begins at ``begin``; one before ``first``, where no turn stands, is
    none.

        >>> waits_in_turn((1, -2), begin=6, first=3), waits_in_turn((1, -2), begin=3, first=3)
        ((7, 4), (4,))
    """
    if len(after) == 1:
        place = begin + after[0]
        return (place,) if place >= first else ()
    return tuple([begin + index for index in after if begin + index >= first])


class StreamOrder:
    """Instructions of one rank's streams in issue order, and which of them have to be over before the next."""

    __slots__ = ("_count", "_newest")

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        self._count = 0

    def issue(self, stream: str, after: Sequence[int]) -> Sequence[int]:
        """Issue one instruction: the places of those that end before it begins."""
        place = self._count
        self._count = place + 1
        newest = self._newest.get(stream)
        self._newest[stream] = place
        return after if newest is None else (newest, *after)


def orders(issued: Iterable[tuple[str, Sequence[int]]]) -> Iterator[Sequence[int]]:
    """Of every instruction, given by stream and absolute waits, the places of those that end before it begins."""
    order = StreamOrder()
    for stream, after in issued:
        yield order.issue(stream, after)


def waits_for_all(issued: Sequence[tuple[str, Sequence[int]]], place: int) -> bool:
    """Whether an instruction begins when all before it have ended."""
    before = list(orders(issued[: place + 1]))
    ended: set[int] = set()
    left = [place]
    while left:
        new = [index for index in before[left.pop()] if index not in ended]
        left += new
        ended.update(new)
    return len(ended) == place
