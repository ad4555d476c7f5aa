"""Layers as they are written: their buffers, and what of them waits for which of the layers before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..program import Instruction


class Buffers:
    """Equal buffers that transfers fill in turn: each filling waits until the one before it there has been used.

    A layer fills buffers ``a_layer`` times, counted on from the layer before, so that waits cross layers. A filling
    without instructions is the rank's own data.
    """

    def __init__(self, count: int, a_layer: int) -> None:
        self.count, self.a_layer = count, a_layer
        self._moves: dict[int, tuple[int, ...]] = {}
        self._uses: dict[int, int] = {}

    def fill(self, number: int, *moves: int) -> None:
        """Record the instructions of a layer's ``number``-th filling."""
        self._moves[number] = moves

    def used(self, number: int, by: int) -> None:
        """Free that filling after the instruction ``by``."""
        self._uses[number] = by

    def waits(self) -> Iterator[tuple[int, int, int, int]]:
        """(instruction, its dependency, layers before, number of the filling) of every filling."""
        for number, moves in self._moves.items():
            layers, earlier = divmod(number - self.count, self.a_layer)
            if earlier in self._uses:
                for move in moves:
                    yield move, self._uses[earlier], -layers, number


class WrittenLayer(NamedTuple):
    """A layer's instructions, and its dependencies on layers before: (consumer, producer, what they share, layers
    before)."""

    body: tuple[Instruction, ...]
    across: tuple[tuple[int, int, str, int], ...]

    def left(self, start: int) -> dict[str, int]:
        """What they share → producer that later layers wait for, for a layer that begins at ``start``."""
        return {what: start + producer for _, producer, what, _ in self.across}


#: Layers back that a layer may depend on, where kinds of layers alternate.
MOST_BEFORE = 8


def numbered(body: Sequence[Instruction], layer: int) -> list[Instruction]:
    """The instructions with another layer's number."""
    return [
        instruction if instruction.layer in (-1, layer) else instruction.at(layer, instruction.after)
        for instruction in body
    ]
