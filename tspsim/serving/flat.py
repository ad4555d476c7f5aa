"""Programs laid out flat: kernels and transfers in the order in which they are written, and how often each runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from ..operators import Operator
from ..program import Collective, Compute, Launch, Program, Repeat
from .tables import Floats

Thing = Operator | Collective


def things_of(program: Program) -> list[Thing]:
    """Its kernels and collectives as they are written, the body of a repetition once."""
    found: list[Thing] = []
    for item in program.items:
        for instruction in item.body if isinstance(item, Repeat) else (item,):
            if isinstance(instruction, Compute):
                found += instruction.operators
            elif isinstance(instruction, Collective):
                found.append(instruction)
    return found


def does(thing: Thing) -> Hashable:
    """What makes two of them take the same."""
    if isinstance(thing, Collective):
        return thing.kind, thing.axis, thing.size_bytes, thing.root, thing.algorithm, thing.tokens
    return thing


@dataclass(frozen=True)
class Layout:
    """Where in programs that are written alike equal kernels and transfers stand, and what follows each place.

    Attributes
    ----------
    where
        For each different one, the index of the first that is like it in :func:`things_of`.
    follows
        Row i: how often each of them runs from the i-th place on; places are all instructions, of layers that repeat
        those of the first turn and of the last. Where the host takes no time the first place stands for all.
    issued_s
        When the host has issued what stands at each place.
    """

    where: tuple[int, ...]
    follows: Floats
    issued_s: Floats

    @classmethod
    def of(cls, program: Program, alike: Sequence[Hashable]) -> Layout:
        """Of a program that is a chain, where things that are equal in ``alike`` are the same."""
        numbers: dict[Hashable, int] = {}
        where: list[int] = []
        runs: list[list[int]] = []
        places: list[tuple[float, int]] = []
        host_s, position = 0.0, 0
        for item in program.items:
            body = item.body if isinstance(item, Repeat) else (item,)
            times = item.times if isinstance(item, Repeat) else 1
            begin = position
            for turn in range(times):
                position = begin
                for instruction in body:
                    if isinstance(instruction, Launch):
                        host_s += instruction.host_s
                        continue
                    count = len(instruction.operators) if isinstance(instruction, Compute) else 1
                    run = []
                    for index in range(position, position + count):
                        number = numbers.setdefault(alike[index], len(numbers))
                        if number == len(where):
                            where.append(index)
                        run.append(number)
                    position += count
                    if turn in (0, times - 1):
                        places.append((host_s, len(runs)))
                    runs.append(run)
        counts = np.zeros((len(runs), len(where)))
        for row, run in enumerate(runs):
            for number in run:
                counts[row, number] += 1.0
        behind = np.cumsum(counts[::-1], axis=0)[::-1]
        kept = places if host_s else places[:1]
        follows = np.ascontiguousarray(behind[[row for _, row in kept]])
        return cls(tuple(where), follows, np.array([issued_s for issued_s, _ in kept]))
