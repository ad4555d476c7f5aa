"""Two interleaved tasks of a stage, so that kernels of one run while the other's tokens move to experts.

What several orders share; the orders are :mod:`tspsim.parallel.interleavings`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..base.registry import Registry
from ..program import Collective, Instruction, Program

#: Stream of exchanges with experts, and of kernels that run on their multiprocessors.
EXCHANGE, BESIDE = "experts", "beside experts"

#: The instructions of two tasks, dependencies as indices of their own lists → one list.
Merge = Callable[[Sequence[Sequence[Instruction]]], Iterator[Instruction]]


@dataclass(frozen=True)
class Interleaving:
    """An order in which the instructions of two tasks alternate.

    Attributes
    ----------
    defers_weights
        Weight gradients are kernels of their own, behind those that others wait for.
    shared_with_attention
        Shared experts run with attention, before the dispatch and behind its backward, and never beside the exchanges
        of their own micro-batch.
    trains
        Whether it interleaves a forward and a backward.
    """

    name: str
    summary: str
    merge: Merge
    defers_weights: bool = False
    shared_with_attention: bool = False
    trains: bool = True


#: Order of the halves of a serving step.
HALVES = "alternating"

INTERLEAVINGS: Registry[Interleaving] = Registry("interleaving", "tspsim.interleavings", Interleaving)


def flat(program: Program) -> list[Instruction]:
    """A program's instructions, Repeats unrolled, with dependencies as indices of the list."""
    return [replace(instruction, layer=layer, after=tuple(after)) for instruction, layer, after in program.unrolled()]


def exchanges_tokens(instruction: Instruction) -> bool:
    """Whether it is an exchange with experts."""
    return isinstance(instruction, Collective) and instruction.stream == EXCHANGE


def shifted(instructions: Sequence[Instruction], offset: int) -> Iterator[Instruction]:
    """Instructions whose dependencies count from their own start, placed after ``offset`` others."""
    for instruction in instructions:
        after = tuple([offset + index for index in instruction.after])
        sliced = isinstance(instruction, Collective) and instruction.slices > 1
        yield replace(instruction, after=after) if sliced else instruction.at(instruction.layer, after)


#: An instruction of two tasks: the task, and its index there.
Place = tuple[int, int]


def merged(
    tasks: Sequence[Sequence[Instruction]], order: Sequence[Place], waits: Mapping[Place, Place] | None = None
) -> Iterator[Instruction]:
    """The instructions in an order, with dependencies as indices of the result; ``waits`` adds some across tasks."""
    placed = {place: number for number, place in enumerate(order)}
    for place in order:
        task, index = place
        after = [placed[task, other] for other in tasks[task][index].after]
        if waits and place in waits:
            after.append(placed[waits[place]])
        yield replace(tasks[task][index], after=tuple(after))
