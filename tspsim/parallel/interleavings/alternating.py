"""Pieces of two like tasks alternate: the halves of a serving step (SGLang's two-batch overlap, vLLM's dual batch).

A task's instructions are cut before every kernel that waits for an exchange with experts. The two tasks' pieces
alternate, each in its own order, and both end together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...program import Compute, Instruction
from ..interleave import HALVES, INTERLEAVINGS, Interleaving, exchanges_tokens, merged


def pieces(instructions: Sequence[Instruction]) -> list[list[int]]:
    """Indices of the instructions, cut before every kernel that waits for an exchange with experts."""
    exchanges: set[int] = set()
    cut: list[list[int]] = [[]]
    for index, instruction in enumerate(instructions):
        if exchanges_tokens(instruction):
            exchanges.add(index)
        elif isinstance(instruction, Compute) and exchanges.intersection(instruction.after):
            cut.append([])
        cut[-1].append(index)
    return cut


def merge(tasks: Sequence[Sequence[Instruction]]) -> Iterator[Instruction]:
    """The instructions of all tasks, piece by piece."""
    turns = sorted(
        ((number + 1) / len(cut), task, piece)
        for task, cut in enumerate(map(pieces, tasks))
        for number, piece in enumerate(cut)
    )
    return merged(tasks, [(task, index) for _, task, piece in turns for index in piece])


ALTERNATING = INTERLEAVINGS.register(
    Interleaving(HALVES, "pieces between exchanges in turn, for halves of a serving step", merge, trains=False)
)
