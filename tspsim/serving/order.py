"""What a step's device does one after the other, whatever each of it takes.

Where every kernel and transfer of a program follows the one before, and its host waits for none of them, a walk through
the program (:mod:`.chain`) is a sum in which only seconds change from step to step:

    end_i = max(end_{i-1}, H_i) + d_i,          H_i: when the host has issued it
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from ..program import Collective, Compute, Launch, Program, Repeat
from .flat import Thing, timed

#: What is done at a place: when the host has issued it, and the things that it consists of.
Place = tuple[float, tuple[int, ...]]


class InstructionOrder:
    """The order in steps whose programs have the same instructions.

    Parameters
    ----------
    places
        One after the other.
    issued_s
        When the host is done.
    """

    def __init__(self, places: Sequence[Place], issued_s: float) -> None:
        numbers: dict[tuple[int, ...], int] = {}
        self._places = [(at_s, numbers.setdefault(run, len(numbers))) for at_s, run in places]
        self._runs, self._issued_s = list(numbers), issued_s

    def end_s(self, seconds: Sequence[float]) -> float:
        """When all is done, to the bit what a walk finds: ``seconds`` of all things."""
        taken = [sum([seconds[index] for index in run]) for run in self._runs]
        end_s = 0.0
        for issued_s, run in self._places:
            if issued_s > end_s:
                end_s = issued_s
            end_s += taken[run]
        return max(end_s, self._issued_s)


def order_of(whole: Sequence[Program], few: Sequence[Program], layers: int) -> InstructionOrder | None:
    """From the programs of some steps of a model with so many layers, and what of each is written for a few of these,
    whose things it counts in; None where they are no such chains, or not alike."""
    few_things, things = alike(few, layers), alike(whole, layers)
    numbers: dict[Hashable, int] = {}
    for index, thing in enumerate(few_things):
        numbers.setdefault(thing, index)
    if numbers.keys() != set(things):
        return None
    where = [numbers[thing] for thing in things]
    found = [places_of(program, where) for program in whole]
    if found[0] is None or any(each != found[0] for each in found):
        return None
    return InstructionOrder(*found[0])


def alike(programs: Sequence[Program], layers: int) -> list[Hashable]:
    """What tells apart the things of some programs: inside a layer what each is called, and what it does in all of
    them; before and behind the layers its place."""
    found: list[Hashable] = []
    outside = 0
    for same in zip(*map(_named, programs), strict=False):
        (name, layer, _), *_ = same
        if 0 <= layer < layers:
            found.append((name, *[thing.does for *_, thing in same]))
        else:
            found.append((name, outside))
            outside += 1
    return found


def _named(program: Program) -> Iterator[tuple[Hashable, int, Thing]]:
    for item in program.items:
        for instruction in item.body if isinstance(item, Repeat) else (item,):
            for place, what in enumerate(timed(instruction)):
                yield (instruction.name, instruction.part, place), instruction.layer, Thing(what)


def places_of(program: Program, where: Sequence[int]) -> tuple[list[Place], float] | None:
    """What a program's device does, its things by their numbers in ``where``; None where something of it may be done
    beside something else, or the host waits."""
    runs: dict[int, tuple[int, ...]] = {}
    position = 0
    for item in program.items:
        for instruction in item.body if isinstance(item, Repeat) else (item,):
            count = len(timed(instruction))
            runs[id(instruction)] = tuple(where[position : position + count])
            position += count
    places: list[Place] = []
    issued: dict[int, float] = {}
    streams: dict[str, int] = {}
    hosts: set[str] = set()
    host_s, last = 0.0, -1
    for index, (instruction, _, after) in enumerate(program.unrolled()):
        if isinstance(instruction, Launch):
            if after:
                return None
            hosts.add(instruction.stream)
            host_s += instruction.host_s
            issued[index] = host_s
            continue
        follows = last < 0 or last in after or streams.get(instruction.stream) == last
        if not (follows and isinstance(instruction, Compute | Collective)):
            return None
        places.append((max([issued[each] for each in after if each in issued], default=0.0), runs[id(instruction)]))
        streams[instruction.stream] = last = index
    return None if len(hosts) > 1 or hosts & streams.keys() else (places, host_s)
