"""Kernels that are priced for the rows of every step, since one of their fields holds these rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

from ..model.attention.base import attended, prefilled
from ..operators import BatchQuantity, Operator, RowField, Rows
from ..program.layout import StageCall


class RowConsumer(NamedTuple):
    """A kernel that reads the rows of its pass itself, and its field that holds them."""

    call: StageCall
    field: RowField

    @property
    def of_prompts(self) -> bool:
        """Whether it reads the rows of prompts alone."""
        return self.field.reads is BatchQuantity.PROMPTS

    def rows_of(self, rows: Rows) -> tuple[Any, ...]:
        """What its field holds in a pass with these rows."""
        return self.field.of(prefilled(rows) if self.of_prompts else attended(rows))

    def over(self) -> Callable[[tuple[Any, ...]], Operator]:
        """A function of rows: the same kernel with them in its field. ``dataclasses.replace`` reads all fields every
        time."""
        what: Any = self.call.what
        own = [entry for entry in fields(what) if entry.init]
        assert not any(entry.kw_only for entry in own)
        order = [entry.name for entry in own]
        operator, values, place = type(what), [getattr(what, name) for name in order], order.index(self.field.name)

        def kernel(rows: tuple[Any, ...]) -> Operator:
            filled = values.copy()
            filled[place] = rows
            made: Operator = operator(*filled)
            return made

        return kernel


def consumer_of(call: StageCall, quantity: BatchQuantity, decodes: bool) -> RowConsumer | None:
    """A kernel whose size depends on ``quantity``, with the field that holds the rows of its pass; None where no field
    does. Where nothing decodes, prompts are all rows."""
    field = call.what.rows_field if isinstance(call.what, Operator) else None
    if field is None or (decodes and quantity is not field.reads):
        return None
    return RowConsumer(call, field)
