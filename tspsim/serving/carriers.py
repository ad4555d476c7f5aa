"""Operators that take rows of their pass as they are, and in which fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from ..base.memo import remembered
from ..model.attention.base import Rows, attended, decoded, prefilled
from ..program.layout import Thing

Rows2 = tuple[tuple[int, int], ...]
#: Kinds of rows of which decode kernels take each by itself: as many as have a kernel here.
MOST_KINDS = 3


class OperatorField(NamedTuple):
    """Fields of an operator, what they are of rows, and whether prompts alone are asked for it."""

    names: tuple[str, ...]
    of: Callable[[Rows], tuple[Any, ...]]
    prompts: bool = False

    def are_of(self, what: Any, rows: Rows) -> bool:
        """Whether an operator has these of some rows."""
        return all(hasattr(what, name) for name in self.names) and self.in_(what) == self.of(rows)

    def in_(self, what: Any) -> tuple[Any, ...]:
        return tuple(getattr(what, name) for name in self.names)


class RowConsumer(NamedTuple):
    """An operator that takes rows of its pass itself, and how."""

    thing: Thing
    field: OperatorField

    def with_rows(self, rows: tuple[Any, ...]) -> Thing:
        """The same over other rows, as its field gives them."""
        made, given, places = _template(self.thing.what, self.field.names)
        values = list(given)
        for place, value in zip(places, rows, strict=True):
            values[place] = value
        return Thing(made(*values), self.thing.stage)


@remembered(256)
def _template(what: Any, names: tuple[str, ...]) -> tuple[Any, tuple[Any, ...], tuple[int, ...]]:
    """What makes an operator, the fields of this one in order, and the places of some: ``dataclasses.replace`` looks at
    all of them every time."""
    own = [each for each in fields(what) if each.init]
    assert not any(each.kw_only for each in own)
    order = [each.name for each in own]
    return type(what), tuple(getattr(what, name) for name in order), tuple(order.index(name) for name in names)


def segments_of(rows: Rows) -> tuple[Rows2]:
    """Prompts among some rows as a prefill kernel takes them."""
    return (tuple((queries, queries + context) for queries, context, count in prefilled(rows) for _ in range(count)),)


def lengths_of(rows: Rows) -> tuple[Rows2]:
    """Prompts among some rows as a kernel that reads no context takes them."""
    return (tuple((queries, count) for queries, _, count in prefilled(rows)),)


def whole(rows: Rows) -> tuple[Rows]:
    return (attended(rows),)


def unpacked(rows: Rows) -> tuple[int]:
    """Tokens of prompts, and before them, that keys and values are made of."""
    return (sum([(context + queries) * count for queries, context, count in prefilled(rows)]),)


def lists_rows(what: Any) -> bool:
    """Whether an operator lists rows of its pass, in one way or another."""
    return any(isinstance(getattr(what, name, None), tuple) for field in WHOLE for name in field.names)


def behind_caches(number: int) -> Callable[[Rows], tuple[int, Rows2]]:
    """Of the kinds of rows that decode, fewest queries first, that ``number`` as its kernel takes it."""

    def rows_of(rows: Rows) -> tuple[int, Rows2]:
        decodes = decoded(rows)
        kinds = sorted({queries for queries, _, _ in decodes})
        if number >= len(kinds):
            return 0, ()
        mine = kinds[number]
        return mine, tuple((queries + context, count) for queries, context, count in decodes if queries == mine)

    return rows_of


#: Of operators that take all rows of a pass, or all of its prompts.
WHOLE: tuple[OperatorField, ...] = (
    OperatorField(("segments",), segments_of, prompts=True),
    OperatorField(("rows",), whole),
    OperatorField(("rows",), lengths_of, prompts=True),
)
#: And of those that take a kind of rows.
LISTED: tuple[OperatorField, ...] = (
    *WHOLE,
    *(OperatorField(("queries", "rows"), behind_caches(number)) for number in range(MOST_KINDS)),
)
#: Of a product whose rows are what prompts' contexts are made of.
COUNTED = OperatorField(("m",), unpacked, prompts=True)


def carrier_of(passes: Sequence[Rows], things: Sequence[Thing]) -> RowConsumer | None:
    """The field in which operators take whole rows of their passes; None where there is none."""
    for field in WHOLE:
        if all(field.are_of(thing.what, rows) for rows, thing in zip(passes, things, strict=True)):
            return RowConsumer(things[0], field)
    return None
