"""Writing a program: the small notebook every scheme uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..operators import Operator
from ..program import Collective, Compute, Instruction, Program, Repeat, SendReceive
from .plan import Plan


class Script:
    """Collects instructions in issue order; every method returns the index to wait for.

    ``part`` (``attention``, ``mlp``, …) is written on each instruction until it is changed. Nothing outside a run of
    layers may be waited for by index inside it, or the other way round: streams carry the order. ``recomputing`` is
    set while a layer's forward is repeated for its backward.
    """

    def __init__(self, role: str, plan: Plan) -> None:
        self.role = role
        self.plan = plan
        self.part = ""
        self._items: list[Instruction | Repeat] = []
        self._body: list[Instruction] = []
        self._across: list[tuple[int, int]] = []
        self._layer = -1
        self.recomputing = False

    def compute(self, name: str, *operators: Operator, after: Iterable[int] = (), stream: str = "compute") -> int:
        return self._add(Compute(operators, name, self._part(), self._layer, tuple(after), stream))

    def collective(
        self,
        kind: str,
        axis: str,
        size_bytes: float,
        name: str,
        *,
        after: Iterable[int] = (),
        root: int = 0,
        stream: str = "",
    ) -> int:
        return self._add(
            Collective(
                kind,
                axis,
                round(size_bytes),
                name,
                root,
                self.plan.algorithms.get(kind),
                self._part(),
                self._layer,
                tuple(after),
                stream or "communication",
            )
        )

    def ring_hop(self, axis: str, size_bytes: float, name: str, *, after: Iterable[int] = (), stream: str = "") -> int:
        """Every rank sends to the next position and receives from the one before."""
        return self._add(
            SendReceive(
                axis,
                round(size_bytes),
                name,
                part=self._part(),
                layer=self._layer,
                after=tuple(after),
                stream=stream or "communication",
            )
        )

    def begin_layers(self, first: int = 0) -> None:
        """Instructions from here to :meth:`end_layers` are one layer's, ``first`` in its first turn."""
        self._layer = first

    def after_previous_layer(self, consumer: int, producer: int) -> None:
        """Instruction ``consumer`` of a layer waits for ``producer`` of the layer before."""
        self._across.append((consumer, producer))

    def end_layers(self, times: int, layer_step: int = 1) -> None:
        """The layer written since :meth:`begin_layers` runs ``times`` times."""
        body = list(self._body)
        for consumer, producer in self._across:
            body[consumer] = replace(body[consumer], after=(*body[consumer].after, producer - len(body)))
        self._items.append(Repeat(tuple(body), times, layer_step))
        self._body, self._across, self._layer, self.part = [], [], -1, ""

    def program(self) -> Program:
        return Program(self.role, tuple(self._items))

    def _add(self, instruction: Instruction) -> int:
        if self._layer < 0:
            self._items.append(instruction)
            return self._position() - 1
        self._body.append(instruction)
        return len(self._body) - 1

    def _part(self) -> str:
        return f"{self.part} again" if self.recomputing else self.part

    def _position(self) -> int:
        return sum(len(item.body) * item.times if isinstance(item, Repeat) else 1 for item in self._items)
