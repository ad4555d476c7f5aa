"""Layers as they are written: their buffers, and what of them waits for which of the layers before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..program import Instruction


class Buffers:
    """Equal buffers that what moves takes in turn: each filling waits until what was there has been used.

    A layer fills one ``a_layer`` times, counted on from the layer before, so waits reach across the border. A filling
    without instructions is what a rank has of its own.
    """

    def __init__(self, count: int, a_layer: int) -> None:
        self.count, self.a_layer = count, a_layer
        self._moves: dict[int, tuple[int, ...]] = {}
        self._uses: dict[int, int] = {}

    def fill(self, number: int, *moves: int) -> None:
        """Instructions that fill a buffer the ``number``-th time of a layer's."""
        self._moves[number] = moves

    def used(self, number: int, by: int) -> None:
        """What was filled then is not needed once the instruction ``by`` is over."""
        self._uses[number] = by

    def waits(self) -> Iterator[tuple[int, int, int, int]]:
        """(instruction, what it waits for, how many layers before, number of the filling) of every filling."""
        for number, moves in self._moves.items():
            layers, earlier = divmod(number - self.count, self.a_layer)
            if earlier in self._uses:
                for move in moves:
                    yield move, self._uses[earlier], -layers, number


class WrittenLayer(NamedTuple):
    """A layer's instructions, and what of them waits for which of the layer before: (consumer, producer, what they
    share, how many layers before)."""

    body: tuple[Instruction, ...]
    across: tuple[tuple[int, int, str, int], ...]

    def left(self, start: int) -> dict[str, int]:
        """What layers to come wait for, of one that begins at ``start``."""
        return {what: start + producer for _, producer, what, _ in self.across}


#: Layers before one that it may wait for, where kinds of layers follow each other.
MOST_BEFORE = 8


def numbered(body: Sequence[Instruction], layer: int) -> list[Instruction]:
    """The instructions as those of another layer."""
    return [
        instruction if instruction.layer in (-1, layer) else instruction.at(layer, instruction.after)
        for instruction in body
    ]
