"""The time of a program as a matrix: how often each kernel and transfer runs from each instruction on.

Most serving steps are *chains*: every kernel and transfer of a program follows the one before it, and the host waits
for none of them. Their time needs no events (`tests/serving` compares every kind of program with the engine):

    max over i of ( H_i + Σ_{j ≥ i} d_j )

with d_j the time of instruction j and H_i the time at which the host has issued instruction i. The sums are linear in
d: programs that differ in sizes alone share one matrix (:attr:`InstructionLayout.follows`), and one matrix product
prices each of them. Each stage of a pipeline is a chain, the stages follow one another, and a message counts where it
is sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..operators import BatchQuantity, Operator
from .instructions import Collective, Compute, Instruction, Launch, Program, Repeat, SendReceive, StreamOrder

Floats = NDArray[np.float64]
Timed = Operator | Collective | SendReceive
#: Instructions that move data between ranks.
MOVES = (Collective, SendReceive)
#: Places whose maximum Python finds faster than NumPy.
FEW = 40


class StageCall(NamedTuple):
    """A kernel, a collective or a message to the next stage, with the pipeline stage that runs it."""

    what: Timed
    stage: int = 0

    @property
    def key(self) -> Hashable:
        """A key that is equal for calls that take the same time."""
        what = self.what
        if isinstance(what, Collective):
            how = what.root, what.algorithm, what.tokens
            return self.stage, what.kind, what.axis, what.size_bytes, how
        if isinstance(what, SendReceive):
            return self.stage, what.axis, what.size_bytes
        return what


def timed(instruction: Instruction) -> Sequence[Timed]:
    """The parts of an instruction that take time; a message counts where it is sent."""
    if isinstance(instruction, Compute):
        return instruction.operators
    if isinstance(instruction, MOVES) and not (isinstance(instruction, SendReceive) and instruction.to is None):
        return (instruction,)
    return ()


def flattened(stages: Sequence[Program]) -> tuple[Hashable, list[Timed]]:
    """The form of stages' programs, and their kernels and transfers as written (the body of a Repeat once).

    The form has streams, dependencies and host times; it is equal for programs that differ in sizes alone.
    """
    form: list[Hashable] = []
    every: list[Timed] = []
    for program in stages:
        for item in program.items:
            body: Sequence[Instruction]
            if isinstance(item, Repeat):
                form.append((item.times, item.continues))
                body = item.body
            else:
                body = (item,)
            for step in body:
                if isinstance(step, Launch):
                    form.append((step.name, step.stream, step.after, 0, step.host_s))
                    continue
                takes = step.operators if isinstance(step, Compute) else timed(step)
                every += takes
                form.append((step.name, step.stream, step.after, len(takes), None))
    return tuple(form), every


def quantities(stages: Sequence[Program]) -> list[BatchQuantity]:
    """What the size of each of the kernels and transfers in :func:`flattened` programs of a serving step depends on."""
    every: list[BatchQuantity] = []
    for program in stages:
        for instruction, _ in program.counted():
            if isinstance(instruction, Compute):
                every += instruction.sized_by
            elif isinstance(instruction, MOVES) and timed(instruction):
                every.append(instruction.sized_by)
    return every


def chained(stages: Sequence[Program]) -> bool:
    """Whether each instruction follows the one before it, and the host waits for nothing but the stage before."""
    return all(_is_chain(program, stage > 0, stage + 1 < len(stages)) for stage, program in enumerate(stages))


def _is_chain(program: Program, receives: bool, sends: bool) -> bool:
    """:func:`chained` for one stage; an instruction without time ends with the one that it follows."""
    hosts: set[str] = set()
    streams: set[str] = set()
    order = StreamOrder()
    #: Instructions that end together with the last one that takes time.
    last: set[int] = set()
    arrived = -1
    for index, (instruction, _, after) in enumerate(program.unrolled()):
        stream = instruction.stream
        before = order.issue(stream, after)
        if isinstance(instruction, Launch):
            if after not in ((), (arrived,)):
                return False
            hosts.add(stream)
            continue
        if isinstance(instruction, SendReceive):
            ends = instruction.to, instruction.source
            goes, comes = sends and ends == (1, None), receives and ends == (None, -1) and not last
            if instruction.axis != "pp" or instruction.wrap or not (goes or comes):
                return False
            arrived = index if comes else arrived
        elif not isinstance(instruction, Compute | Collective):
            return False
        if last and last.isdisjoint(before):
            return False
        if not last or timed(instruction):
            last.clear()
        last.add(index)
        streams.add(stream)
    return len(hosts) <= 1 and hosts.isdisjoint(streams)


@dataclass(frozen=True)
class InstructionLayout:
    """Where the distinct kernels and transfers stand in programs of one form, and what follows each instruction.

    Layers of one kind have the same kernel at the same position.
    """

    #: Of each distinct kernel or transfer: the index of its first occurrence in :func:`flattened` shorter programs, and
    #: its stage.
    where: tuple[tuple[int, int], ...]
    #: Row i: how often each of them runs from the i-th place of its stage on. Places are all instructions; of repeated
    #: layers, those of the first and the last iteration. A stage whose host takes no time has its first place alone.
    follows: Floats
    #: Seconds from the stage's start until the host has issued the instruction at each place.
    issued_s: Floats
    #: Index of the first place of every stage.
    starts: tuple[int, ...]
    #: Whether the programs are chains, so that the matrix gives their whole time.
    chained: bool
    #: Of every stage: how often each runs from the first kernel on, and behind the last kernel; and the number of
    #: places up to each of these two.
    first_kernel: Floats
    behind_kernels: Floats
    until: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, stages: Sequence[Program], shorter: Sequence[Program]) -> InstructionLayout | None:
        """The layout of stages' programs, with its kernels looked up in ``shorter``: the same with fewer layers.

        None if the shorter programs lack some.
        """
        whole, few = _first_of_each(stages), _first_of_each(shorter)
        if [name for _, name in whole.values()] != [name for _, name in few.values()]:
            return None
        numbers = dict(zip(whole, range(len(whole)), strict=True))
        follows: list[Floats] = []
        issued: list[float] = []
        starts: list[int] = []
        spans: list[tuple[Floats, Floats]] = []
        until: list[tuple[int, int]] = []
        for stage, program in enumerate(stages):
            runs: list[Floats] = []
            kernels: list[int] = []
            places: list[tuple[float, int]] = []
            host_s = 0.0
            for key, body, times in _layers_of(stage, program):
                for turn in range(times):
                    position = 0
                    for instruction in body:
                        if isinstance(instruction, Launch):
                            # A host that waits for a message starts again when the message arrives.
                            host_s = 0.0 if instruction.after else host_s + instruction.host_s
                            continue
                        if isinstance(instruction, SendReceive) and instruction.to is None:
                            # The kernels behind a receive were issued long before it ends.
                            host_s = 0.0
                        if isinstance(instruction, Compute):
                            kernels.append(len(runs))
                        run = np.zeros(len(numbers))
                        for _ in timed(instruction):
                            run[numbers[key, position]] += 1.0
                            position += 1
                        if turn in (0, times - 1):
                            places.append((host_s, len(runs)))
                        runs.append(run)
            if not host_s:
                del places[1:]
            starts.append(len(issued))
            rows = [row for _, row in places]
            behind = np.concatenate([np.cumsum(runs[::-1], axis=0)[::-1], np.zeros((1, len(numbers)))])
            first, last = (kernels[0], kernels[-1]) if kernels else (len(runs), len(runs) - 1)
            spans.append((behind[first], behind[last + 1]))
            until.append((bisect_right(rows, first), bisect_right(rows, last)))
            follows.append(behind[rows])
            issued += [issued_s for issued_s, _ in places]
        where = tuple([place for place, _ in few.values()])
        firsts, behinds = (np.array(part) for part in zip(*spans, strict=True))
        whole_s = np.concatenate(follows), np.array(issued), tuple(starts)
        return cls(where, *whole_s, chained(stages), firsts, behinds, tuple(until))

    def different(self, every: Sequence[Timed]) -> list[StageCall]:
        """The distinct kernels and transfers among those of the shorter programs."""
        return [StageCall(every[index], stage) for index, stage in self.where]

    def makespan_s(self, taken_s: Sequence[float]) -> float:
        """Seconds of all stages, one after the other; ``taken_s``: seconds of each distinct kernel or transfer."""
        return self.ends_s(self.issued_s + self.follows @ np.array(taken_s))

    def slowest_s(self, taken_s: Sequence[float]) -> float:
        """Seconds of the slowest stage, from its first kernel to the end of its last."""
        taken = np.array(taken_s)
        from_places = self.issued_s + self.follows @ taken
        ends = self.first_kernel @ taken, self.behind_kernels @ taken
        worked = []
        for start, (first, last), before, behind in zip(self.starts, self.until, *ends, strict=True):
            if last:
                begun_s = from_places[start : start + first].max() - before
                worked.append(float(from_places[start : start + last].max() - behind - begun_s))
        return max(worked, default=0.0)

    def ends_s(self, from_places: Floats) -> float:
        """Seconds of all stages; ``from_places``: seconds from each place's issue to the end of its stage."""
        if len(self.starts) == 1:
            # Faster than NumPy for some ten places.
            end_s: float = max(from_places.tolist()) if len(from_places) <= FEW else float(from_places.max())
            return end_s
        return float(np.maximum.reduceat(from_places, self.starts).sum())


def _layers_of(stage: int, program: Program) -> Iterator[tuple[Hashable, Sequence[Instruction], int]]:
    """A stage's layers and the instructions between them, each with a key and its repetitions in a row.

    The key is equal for layers of one kind, which share their operators, within one pass through the model.
    """
    outside = 0
    for bodies, times in _bodies(program):
        layer = bodies[0].layer
        kernels = next((step.operators for step in bodies if isinstance(step, Compute) and step.operators), ())
        outside += layer < 0
        yield (stage, outside, id(kernels) if layer >= 0 else None), bodies, times


def _bodies(program: Program) -> Iterator[tuple[Sequence[Instruction], int]]:
    """Layers and the instructions between them; a layer that is not repeated is one item per instruction."""
    alone: list[Instruction] = []
    for item in program.items:
        if alone and (isinstance(item, Repeat) or item.layer != alone[-1].layer):
            yield alone, 1
            alone = []
        if isinstance(item, Repeat):
            yield item.body, item.times
        else:
            alone.append(item)
    if alone:
        yield alone, 1


def _first_of_each(
    stages: Sequence[Program],
) -> dict[tuple[Hashable, int], tuple[tuple[int, int], tuple[str, Hashable]]]:
    """Of each distinct kernel or transfer: (index, stage) of its first occurrence, the instruction's name, a key."""
    firsts: dict[tuple[Hashable, int], tuple[tuple[int, int], tuple[str, Hashable]]] = {}
    index = 0
    for stage, program in enumerate(stages):
        for key, body, _ in _layers_of(stage, program):
            named = [(instruction.name, what) for instruction in body for what in timed(instruction)]
            for position, (name, what) in enumerate(named):
                firsts.setdefault((key, position), ((index, stage), (name, StageCall(what, stage).key)))
                index += 1
    return firsts
