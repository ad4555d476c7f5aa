"""Programs laid out flat: kernels and transfers in the order in which they are written, and how often each runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..operators import Operator
from ..program import Collective, Compute, Copy, Instruction, Launch, Program, Repeat, SendReceive
from .tables import Floats


class Thing(NamedTuple):
    """A kernel, a collective or a message to the next stage, and the stage that does it."""

    what: Operator | Collective | SendReceive
    stage: int = 0

    @property
    def does(self) -> Hashable:
        """Equal for those that take the same."""
        what = self.what
        if isinstance(what, Collective):
            how = what.root, what.algorithm, what.tokens
            return self.stage, what.kind, what.axis, what.size_bytes, how
        if isinstance(what, SendReceive):
            return self.stage, what.axis, what.size_bytes
        return what


def timed(instruction: Instruction) -> Sequence[Operator | Collective | SendReceive]:
    """What of an instruction takes time: a message is its sender's."""
    if isinstance(instruction, Compute):
        return instruction.operators
    if isinstance(instruction, Launch | Copy) or (isinstance(instruction, SendReceive) and instruction.to is None):
        return ()
    return (instruction,)


def things_of(stages: Sequence[Program]) -> list[Thing]:
    """What takes time in the stages' programs as they are written, the body of a repetition once."""
    return [
        Thing(what, stage)
        for stage, program in enumerate(stages)
        for item in program.items
        for instruction in (item.body if isinstance(item, Repeat) else (item,))
        for what in timed(instruction)
    ]


@dataclass(frozen=True)
class InstructionLayout:
    """Where in programs that are written alike equal things stand, and what follows each place."""

    #: For each different thing, the index of the first that is like it in :func:`things_of`.
    where: tuple[int, ...]
    #: Row i: how often each of them runs from the i-th place of its stage on; places are all instructions, of layers
    #: that repeat those of the first turn and of the last. Where a stage's host takes no time its first place stands
    #: for all.
    follows: Floats
    #: When the host has issued what stands at each place, after the stage's begin.
    issued_s: Floats
    #: The first place of every stage.
    starts: tuple[int, ...]

    @classmethod
    def of(cls, stages: Sequence[Program], alike: Sequence[Hashable]) -> InstructionLayout:
        """Of stages whose programs are a chain, where things that are equal in ``alike`` are the same."""
        numbers: dict[Hashable, int] = {}
        where: list[int] = []
        parts: list[tuple[list[list[int]], list[tuple[float, int]]]] = []
        position = 0
        for program in stages:
            runs: list[list[int]] = []
            places: list[tuple[float, int]] = []
            host_s = 0.0
            for item in program.items:
                body = item.body if isinstance(item, Repeat) else (item,)
                times = item.times if isinstance(item, Repeat) else 1
                begin = position
                for turn in range(times):
                    position = begin
                    for instruction in body:
                        if isinstance(instruction, Launch):
                            # A host that waits for what a stage before sends begins anew when that is here.
                            host_s = 0.0 if instruction.after else host_s + instruction.host_s
                            continue
                        run = []
                        for index in range(position, position + len(timed(instruction))):
                            number = numbers.setdefault(alike[index], len(numbers))
                            if number == len(where):
                                where.append(index)
                            run.append(number)
                        position += len(run)
                        if turn in (0, times - 1):
                            places.append((host_s, len(runs)))
                        runs.append(run)
            parts.append((runs, places if host_s else places[:1]))
        follows: list[Floats] = []
        issued: list[float] = []
        starts: list[int] = []
        for runs, places in parts:
            counts = np.zeros((len(runs), len(where)))
            for row, run in enumerate(runs):
                for number in run:
                    counts[row, number] += 1.0
            starts.append(len(issued))
            follows.append(np.cumsum(counts[::-1], axis=0)[::-1][[row for _, row in places]])
            issued += [issued_s for issued_s, _ in places]
        return cls(tuple(where), np.concatenate(follows), np.array(issued), tuple(starts))

    def found_in(self, whole: Sequence[Thing], few: Sequence[Thing]) -> InstructionLayout | None:
        """The same with ``where`` counted in the things of a program with fewer layers: what stands before the first
        that is left out, and behind the last (counted from the end); None where some of it is in neither."""
        pairs = enumerate(zip(whole, few, strict=False))
        same = next((index for index, (one, other) in pairs if one.does != other.does), len(few))
        where = tuple([index if index < same else index - len(whole) for index in self.where])
        places = zip(where, self.where, strict=True)
        if any(index < -len(few) or few[index].does != whole[at].does for index, at in places):
            return None
        return replace(self, where=where)

    def makespan_s(self, from_places: Floats) -> float:
        """Seconds of all stages one after the other; ``from_places``: what each place and all that follows take."""
        if len(self.starts) == 1:
            return float(np.maximum.reduce(from_places))
        return float(np.maximum.reduceat(from_places, self.starts).sum())
