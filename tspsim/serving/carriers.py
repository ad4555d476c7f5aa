"""Operators whose fields are the rows of their pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

from ..model.attention.base import Rows, attended, prefilled
from ..operators import Operator
from ..program.layout import StageCall

Rows2 = tuple[tuple[int, int], ...]


class OperatorField(NamedTuple):
    """Fields of an operator, the function of the rows that they equal, and whether only prompts count."""

    names: tuple[str, ...]
    of: Callable[[Rows], tuple[Any, ...]]
    prompts: bool = False

    def are_of(self, what: Any, rows: Rows) -> bool:
        """Whether an operator's fields equal the function of these rows."""
        return all(hasattr(what, name) for name in self.names) and self.in_(what) == self.of(rows)

    def in_(self, what: Any) -> tuple[Any, ...]:
        return tuple(getattr(what, name) for name in self.names)


class RowConsumer(NamedTuple):
    """An operator that reads the rows of its pass itself, and its field."""

    call: StageCall
    field: OperatorField

    def over(self) -> Callable[[tuple[Any, ...]], Operator]:
        """A function of rows: the same operator over them. ``dataclasses.replace`` reads all fields every time."""
        what: Any = self.call.what
        own = [entry for entry in fields(what) if entry.init]
        assert not any(entry.kw_only for entry in own)
        order = [entry.name for entry in own]
        operator, values = type(what), [getattr(what, name) for name in order]
        (place,) = [order.index(name) for name in self.field.names]

        def made(rows: tuple[Any, ...]) -> Operator:
            filled = values.copy()
            (filled[place],) = rows
            kernel: Operator = operator(*filled)
            return kernel

        return made


def segments_of(rows: Rows) -> tuple[Rows2]:
    """Prompts among rows, as a prefill kernel reads them."""
    prompts = prefilled(rows)
    return (tuple([(queries, queries + context) for queries, context, count in prompts for _ in range(count)]),)


def lengths_of(rows: Rows) -> tuple[Rows2]:
    """Prompts among rows, as a kernel without context reads them."""
    return (tuple((queries, count) for queries, _, count in prefilled(rows)),)


def whole(rows: Rows) -> tuple[Rows]:
    return (attended(rows),)


#: Fields of operators that read all rows of a pass, or all of its prompts.
WHOLE: tuple[OperatorField, ...] = (
    OperatorField(("segments",), segments_of, prompts=True),
    OperatorField(("rows",), whole),
    OperatorField(("rows",), lengths_of, prompts=True),
)


def carrier_of(rows: Rows, call: StageCall) -> RowConsumer | None:
    """The field in which an operator reads whole rows of its pass; None where there is none."""
    for field in WHOLE:
        if field.are_of(call.what, rows):
            return RowConsumer(call, field)
    return None
