"""A program laid out flat: each different kernel and transfer once, and how often each runs from every place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..operators import Operator
from ..program import Collective, Launch, Program, Repeat
from .tables import Floats

Thing = Operator | Collective


@dataclass(frozen=True)
class Flat:
    """A program's kernels and transfers, each different one once.

    Attributes
    ----------
    things
        They, in order of first appearance.
    follows
        Row i: how often each runs from the i-th place on; places are all instructions, of layers that repeat the first
        turn and the last.
    issued_s
        When the host has issued what stands at each place.
    """

    things: tuple[Thing, ...]
    follows: Floats
    issued_s: Floats


def flattened(program: Program) -> Flat:
    """A program as :class:`Flat`."""
    numbers: dict[object, int] = {}
    things: list[Thing] = []
    known: dict[int, tuple[object, list[int]]] = {}

    def of(instruction: object) -> list[int]:
        kept = known.get(id(instruction))
        if kept is not None and kept[0] is instruction:
            return kept[1]
        mine: Sequence[Thing] = getattr(instruction, "operators", ())
        if isinstance(instruction, Collective):
            mine = (replace(instruction, name="", part="", layer=-1, after=()),)
        found = []
        for thing in mine:
            if thing not in numbers:
                numbers[thing] = len(things)
                things.append(thing)
            found.append(numbers[thing])
        known[id(instruction)] = instruction, found
        return found

    places: list[tuple[float, list[int], int]] = []
    host_s = 0.0
    runs: list[list[int]] = []
    for item in program.items:
        body = item.body if isinstance(item, Repeat) else (item,)
        times = item.times if isinstance(item, Repeat) else 1
        for turn in range(times):
            for instruction in body:
                if isinstance(instruction, Launch):
                    host_s += instruction.host_s
                    continue
                run = of(instruction)
                if turn in (0, times - 1):
                    places.append((host_s, run, len(runs)))
                runs.append(run)
    counts = np.zeros((len(runs) + 1, len(things)))
    for row, run in enumerate(runs):
        for number in run:
            counts[row, number] += 1.0
    behind = np.cumsum(counts[::-1], axis=0)[::-1]
    issued = np.array([issued_s for issued_s, _, _ in places])
    follows = behind[[row for _, _, row in places]]
    if not issued.any():
        return Flat(tuple(things), follows[:1], issued[:1])
    return Flat(tuple(things), follows, issued)
