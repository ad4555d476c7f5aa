"""Two interleaved tasks of a stage, so that kernels of one run while the other's tokens move to experts.

A task's instructions are cut before every kernel that waits for an exchange with experts. The two tasks' pieces
alternate, each in its own order, and both end together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..program import Collective, Compute, Instruction, Program

#: Stream of exchanges with experts.
EXCHANGE = "experts"


def flat(program: Program) -> list[Instruction]:
    """A program's instructions, Repeats unrolled, with dependencies as indices of the list."""
    return [replace(instruction, layer=layer, after=tuple(after)) for instruction, layer, after in program.unrolled()]


def pieces(instructions: Sequence[Instruction]) -> list[list[int]]:
    """Indices of the instructions, cut before every kernel that waits for an exchange with experts."""
    exchanges: set[int] = set()
    cut: list[list[int]] = [[]]
    for index, instruction in enumerate(instructions):
        if isinstance(instruction, Collective) and instruction.stream == EXCHANGE:
            exchanges.add(index)
        elif isinstance(instruction, Compute) and exchanges.intersection(instruction.after):
            cut.append([])
        cut[-1].append(index)
    return cut


def shifted(instructions: Sequence[Instruction], offset: int) -> Iterator[Instruction]:
    """Instructions whose dependencies count from their own start, placed after ``offset`` others."""
    for instruction in instructions:
        after = tuple([offset + index for index in instruction.after])
        sliced = isinstance(instruction, Collective) and instruction.slices > 1
        yield replace(instruction, after=after) if sliced else instruction.at(instruction.layer, after)


def interleaved(tasks: Sequence[Sequence[Instruction]], offset: int = 0) -> Iterator[Instruction]:
    """The instructions of all tasks, piece by piece; ``offset`` instructions precede them in the program."""
    turns = sorted(
        ((number + 1) / len(cut), task, piece)
        for task, cut in enumerate(map(pieces, tasks))
        for number, piece in enumerate(cut)
    )
    placed: dict[tuple[int, int], int] = {}
    for _, task, piece in turns:
        for index in piece:
            placed[task, index] = offset + len(placed)
    for _, task, piece in turns:
        for index in piece:
            instruction = tasks[task][index]
            yield replace(instruction, after=tuple(placed[task, other] for other in instruction.after))
