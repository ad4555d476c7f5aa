"""A program as an order: which instruction has ended whenever another begins, and what each of them is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from tspsim.model.layer import gradients
from tspsim.operators import Attention, Gemm, Operator, Part, Role
from tspsim.parallel import Job
from tspsim.program import Collective, Compute, Instruction, Program, Repeat, SendReceive
from tspsim.program.instructions import content, orders


class Row(NamedTuple):
    """An instruction where it stands."""

    place: int
    instruction: Instruction
    layer: int

    @property
    def name(self) -> str:
        return f"{self.layer}: {self.instruction.part}: {self.instruction.name}"

    @property
    def part(self) -> str:
        return self.instruction.part.partition(" ")[0]

    @property
    def phase(self) -> str:
        """``forward``, ``again`` or ``backward``."""
        return self.instruction.part.partition(" ")[2] or "forward"

    @property
    def moves(self) -> bool:
        return isinstance(self.instruction, Collective | SendReceive)

    @property
    def sums(self) -> bool:
        """Whether it adds up what ranks have."""
        return isinstance(self.instruction, Collective) and self.instruction.kind in ("all_reduce", "reduce_scatter")

    @property
    def operators(self) -> list[Operator]:
        if not isinstance(self.instruction, Compute):
            return []
        return [each.whole if isinstance(each, Part) else each for each in self.instruction.operators]

    @property
    def shares(self) -> list[tuple[Gemm, Fraction]]:
        """Its products, or the part of each that it is."""
        stated = self.instruction.operators if isinstance(self.instruction, Compute) else ()
        parts = [Fraction(1, each.of) if isinstance(each, Part) else Fraction(1) for each in stated]
        return [(each, part) for each, part in zip(self.operators, parts, strict=True) if isinstance(each, Gemm)]

    @property
    def gradients(self) -> list[tuple[Gemm, Fraction]]:
        """Both gradients of each."""
        return [(both, part) for each, part in self.shares for both in gradients(each)]

    @property
    def products(self) -> list[Gemm]:
        return [each for each in self.operators if isinstance(each, Gemm)]

    @property
    def attends(self) -> bool:
        return any(isinstance(each, Attention) for each in self.operators)

    @property
    def empty(self) -> bool:
        """Whether it is a block of which a rank attends nothing."""
        return isinstance(self.instruction, Compute) and not self.instruction.operators and self.part == "attention"

    def runs(self, *roles: Role) -> bool:
        return any(each.role in roles for each in self.operators)

    def on(self, *streams: str) -> bool:
        """Whether it moves on one of these streams."""
        return self.moves and self.instruction.stream in streams


class Visit(NamedTuple):
    """A layer forward, or (again and) backward."""

    layer: int
    backward: bool
    rows: list[Row]

    def phase(self, name: str) -> list[Row]:
        return [row for row in self.rows if row.phase == name and row.part not in ("weights", "gradients")]

    def part(self, name: str) -> list[Row]:
        return [row for row in self.rows if row.part == name]


class Order:
    """A program, and what follows what."""

    def __init__(self, job: Job, program: Program) -> None:
        self.job = job
        self.visits: list[Visit] = []
        self._before: list[int] = []
        issued = list(program.unrolled())
        for ended in orders((each.instruction.stream, each.after) for each in issued):
            mask = 0
            for place in ended:
                mask |= self._before[place] | 1 << place
            self._before.append(mask)
        self.named = [each.after for each in issued]
        self._contents = [content(each.instruction) for each in issued]
        place = 0
        for item in program.items:
            body, times = (item.body, item.times) if isinstance(item, Repeat) else ((item,), 1)
            for _ in range(times):
                rows = [Row(place + number, each, issued[place + number].layer) for number, each in enumerate(body)]
                place += len(body)
                if rows[0].layer >= 0:
                    self.visits.append(Visit(rows[0].layer, any(row.phase == "backward" for row in rows), rows))

    def __eq__(self, other: object) -> bool:
        """Whether the same moves and multiplies in the same order."""
        return isinstance(other, Order) and (self._before, self._contents) == (other._before, other._contents)

    __hash__ = None  # type: ignore[assignment]

    def follows(self, row: Row, other: Row) -> bool:
        return bool(self._before[row.place] >> other.place & 1)

    def beside(self, row: Row, other: Row) -> bool:
        """Whether neither waits for the other."""
        return not (self.follows(row, other) or self.follows(other, row))


Broken = Iterator[str]


def share(of: int, number: int, among: int) -> int:
    """How many of so many the ``number``-th (from 1) of others needs; where others are more, each run of them begins
    with one of a rank's own, which needs no further."""
    if of < among:
        return number - ceil(number * (among - of) / among)
    return ceil(of * number / among)


def flow(order: Order, made: Sequence[Row], moved: Sequence[Row], used: Sequence[Row]) -> Broken:
    """What is made moves, and what has moved is used, one after the other."""
    for number, move in enumerate(moved, 1):
        need = ceil(len(made) * number / len(moved))
        if need and not order.follows(move, made[need - 1]):
            yield f"{move.name} leaves before {made[need - 1].name} has ended"
    for number, use in enumerate(used, 1):
        need = share(len(moved), number, len(used))
        if need and not order.follows(use, moved[need - 1]):
            yield f"{use.name} begins before {moved[need - 1].name} has come"
