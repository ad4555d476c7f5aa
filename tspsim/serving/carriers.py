"""Operators whose fields are the rows of their pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

from ..base.memo import remembered
from ..model.attention.base import Rows, attended, prefilled
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

    def with_rows(self, rows: tuple[Any, ...]) -> StageCall:
        """The same operator over other rows."""
        operator, values, places = _template(self.call.what, self.field.names)
        filled = list(values)
        for place, value in zip(places, rows, strict=True):
            filled[place] = value
        return StageCall(operator(*filled), self.call.stage)


@remembered(256)
def _template(what: Any, names: tuple[str, ...]) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """The class of an operator, the values of its fields in order, and the places of some fields;
    ``dataclasses.replace`` reads all fields every time."""
    own = [entry for entry in fields(what) if entry.init]
    assert not any(entry.kw_only for entry in own)
    order = [entry.name for entry in own]
    return type(what), tuple(getattr(what, name) for name in order), tuple(order.index(name) for name in names)


def segments_of(rows: Rows) -> tuple[Rows2]:
    """Prompts among rows, as a prefill kernel reads them."""
    return (tuple((queries, queries + context) for queries, context, count in prefilled(rows) for _ in range(count)),)


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
