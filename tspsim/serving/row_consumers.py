"""Kernels that are priced for the rows of every step, since one of their fields holds these rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import sub
from typing import Any, NamedTuple

import numpy as np

from ..base.quick import replace
from ..hardware.over_caches import OverCaches
from ..hardware.over_rows import OverSums, Seconds
from ..operators import BatchQuantity, CachedContext, Operator, RowField, RowSums
from ..parallel import Job
from ..parallel.job import MadeOfRows
from ..program.layout import StageCall

#: Prompts (query tokens, context with these) on which two ways to price a kernel are compared, and the relative
#: difference of equal ones.
PROBES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((17,), (17,)), ((64,), (5000,)), ((500,), (500,)), ((300, 700, 90), (800, 700, 4000)), ((2048,) * 4, (6000,) * 4),
    ((8192,) * 2, (65536,) * 2),
)  # fmt: skip
ALIKE = 1e-9
#: The same of sequences that decode: their number, and their context.
CACHES = ((1, 17), (3, 20_000), (7, 900), (64, 2000), (200, 9000), (500, 100))
#: Contexts of sequences that decode beside them.
CONTEXTS = (1, 100, 127, 2048, 9000)


class RowConsumer(NamedTuple):
    """A kernel that reads the rows of its pass itself.

    Attributes
    ----------
    call
        The kernel.
    field
        Its field that holds them; None: it holds what it reads of caches.
    maker
        What made it of the rows, where a window or chunks bend them; None: nothing bends them.
    sums_s
        Its seconds by the sums of all rows, where they are known already.
    """

    call: StageCall
    field: RowField | None
    maker: MadeOfRows | None = None
    sums_s: Callable[[RowSums], float] | None = None

    @property
    def of_prompts(self) -> bool:
        """Whether it reads the rows of prompts alone."""
        return self.field is not None and self.field.reads is BatchQuantity.PROMPTS

    def is_like(self, other: RowConsumer) -> bool:
        """Whether both take the same time for all rows: layers of several kinds have one kernel of attention."""
        if self.field is None or self.field != other.field:
            return self.sums_s is not None and self.sums_s is other.sums_s
        layers = [maker if maker is None else maker.layer for maker in (self.maker, other.maker)]
        return layers[0] == layers[1] and self.over()(()) == other.over()(())

    def seconds(self, over: Callable[[Operator], Seconds]) -> Seconds:
        """Seconds of the kernel over prompts alone; ``over``: of any kernel over prompts."""
        what = self.call.what
        assert isinstance(what, Operator)
        if self.maker is None:
            return over(what)
        bent, layer = self.maker.layer.attention_kind.bent, self.maker.layer
        under: dict[bool, Seconds] = {causal: over(replace(what, causal=causal)) for causal in (False, True)}

        def seconds(queries: tuple[int, ...], lengths: tuple[int, ...]) -> float:
            segments = bent(layer, queries, lengths)
            assert segments is not None
            return under[segments[2]](segments[0], segments[1])

        return seconds

    def over(self) -> Callable[[tuple[Any, ...]], Operator]:
        """A function of rows: the same kernel with them in its field."""
        assert isinstance(self.call.what, Operator) and self.field is not None
        return over_rows(self.call.what, self.field)


def over_rows(what: Operator, field: RowField) -> Callable[[tuple[Any, ...]], Operator]:
    """A function of rows: an operator with them in its field. ``dataclasses.replace`` reads all fields every time."""
    like: Any = what
    own = [entry for entry in fields(like) if entry.init]
    assert not any(entry.kw_only for entry in own)
    order = [entry.name for entry in own]
    operator, values, place = type(like), [getattr(like, name) for name in order], order.index(field.name)

    def kernel_of(rows: tuple[Any, ...]) -> Operator:
        filled = values.copy()
        filled[place] = rows
        kernel: Operator = operator(*filled)
        return kernel

    return kernel_of


def seconds_over(operator: Operator, exact: Callable[[Operator], float], quick: Seconds | None) -> Seconds:
    """Seconds of an operator over prompts as ``exact`` prices it: by ``quick`` where both agree, up to a factor and a
    start (an engine's own pace), on prompts of all sizes; else each operator is made and priced."""
    field = operator.rows_field
    assert field is not None
    kernel_of = over_rows(operator, field)

    def each(queries: tuple[int, ...], lengths: tuple[int, ...]) -> float:
        rows = [(query, length - query, 1) for query, length in zip(queries, lengths, strict=True)]
        return exact(kernel_of(field.of(tuple(rows))))

    if quick is None:
        return each
    probes = [(quick(*columns), each(*columns)) for columns in PROBES]
    (least, least_s), (most, most_s) = min(probes), max(probes)
    factor = (most_s - least_s) / (most - least)
    start_s = least_s - factor * least
    if any(abs(start_s + factor * value - seconds) > ALIKE * seconds for value, seconds in probes):
        return each
    if abs(factor - 1.0) < ALIKE and abs(start_s) < ALIKE * least_s:
        return quick
    return lambda queries, lengths: start_s + factor * quick(queries, lengths)


class LastPrompts:
    """Seconds over prompts; of those of the last call without a computation: layers of several kinds may have one
    kernel."""

    def __init__(self, seconds: Seconds) -> None:
        self._seconds = seconds
        self._last: tuple[tuple[int, ...], tuple[int, ...]] = (), ()
        self._last_s = 0.0

    def __call__(self, queries: tuple[int, ...], lengths: tuple[int, ...]) -> float:
        last, last_lengths = self._last
        if queries is not last or lengths is not last_lengths:
            self._last_s = self._seconds(queries, lengths)
            self._last = queries, lengths
        return self._last_s


def seconds_over_sums(
    operator: Operator, exact: Callable[[Operator], float], quick: OverSums | None
) -> Callable[[RowSums], float]:
    """:func:`seconds_over` of an operator that reads all rows."""
    field = operator.rows_field
    assert field is not None
    kernel_of = over_rows(operator, field)

    def each(sums: RowSums) -> float:
        return exact(kernel_of(field.of(sums.rows)))

    if quick is None:
        return each
    every = [RowSums(queries, tuple(map(sub, lengths, queries)), 1, CONTEXTS) for queries, lengths in PROBES]
    return quick if all(abs(quick(sums) - each(sums)) <= ALIKE * each(sums) for sums in every) else each


def over_caches_as(
    operator: CachedContext, exact: Callable[[Operator], float], quick: OverCaches | None
) -> OverCaches | None:
    """Seconds of an operator over the caches of equal contexts as ``exact`` prices it, up to a factor and a start;
    None where ``quick`` knows them no better."""
    if quick is None:
        return None
    every: list[Any] = [replace(operator, rows=((context, batch),)) for batch, context in CACHES]
    exact_s = np.array([exact(one) for one in every])
    quick_s = quick(*np.array(CACHES, dtype=float).T)
    factor = np.ptp(exact_s) / np.ptp(quick_s)
    start_s = exact_s.min() - factor * quick_s.min()
    if (abs(start_s + factor * quick_s - exact_s) > ALIKE * exact_s).any():
        return None
    if abs(factor - 1.0) < ALIKE and abs(start_s) < ALIKE * exact_s.min():
        return quick
    return lambda batches, contexts: start_s + factor * quick(batches, contexts)


def bent_consumer_of(call: StageCall, passes: Sequence[Job]) -> RowConsumer | None:
    """A kernel of prompts that a window or chunks bend; None where its kind of attention does not say how."""
    for part in passes:
        for maker in part.attention_operators.values():
            if any(operator is call.what for operator in maker.operators):
                field = call.what.rows_field if isinstance(call.what, Operator) else None
                bends = maker.layer.attention_kind.bent(maker.layer, (1,), (1,)) is not None
                return RowConsumer(call, field, maker) if field is not None and bends else None
    return None


def consumer_of(call: StageCall, quantity: BatchQuantity, decodes: bool) -> RowConsumer | None:
    """A kernel whose size depends on ``quantity``, with the field that holds the rows of its pass; None where no field
    does. Where nothing decodes, prompts are all rows."""
    field = call.what.rows_field if isinstance(call.what, Operator) else None
    if field is None or (decodes and quantity is not field.reads):
        return None
    return RowConsumer(call, field)
