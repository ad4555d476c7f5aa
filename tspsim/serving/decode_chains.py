"""Decode steps whose programs are chains: kernels that read contexts are priced for the contexts of every step.

A program of B sequences that decode is written once for both ends of a cell of numbers (:meth:`Decodes.cell`). In it
only kernels of attention depend on contexts. With H the host's time up to a place, n how often a kernel runs from there
on, and t what it takes,

    seconds = max over places of ( H + Σ n·t of kernels without contexts + Σ n·t(contexts) ) + host time after the step

The first sum is a constant at both ends, and linear between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.quick import replace
from ..operators import GrowingSums, RowSums
from ..parallel import Job
from ..parallel.serving_engine import Captured
from ..parallel.step import passes_of
from ..program.layout import InstructionLayout, StageCall
from ..step import metrics
from .cached_attention import CachedAttention
from .programs import StepPrograms
from .tables import Floats
from .work import StepWork

#: Context of the sequences of written programs.
STANDING = 1024
#: Steps of a run that are priced one by one.
FEW_STEPS = 2


class DecodingRows(NamedTuple):
    """Rows of a pass of a decode step.

    Attributes
    ----------
    own
        Query tokens of a sequence.
    later
        By how much their contexts are longer than those of the step.
    padding
        Context of sequences that pad the batch; below 0: attention has none.
    """

    own: int
    later: int
    padding: int


class ContextKernels(NamedTuple):
    """Kernels of a program that read contexts.

    Attributes
    ----------
    positions, operators
        Where they stand, and what they are but for rows.
    columns
        Of each different one, how often it runs from every place on; numbers where there is one place.
    rows
        Rows of passes, different ones.
    seconds
        Of each different kernel, the number of its rows and its time by their sums.
    """

    positions: tuple[int, ...]
    operators: tuple[Any, ...]
    columns: list[Any]
    rows: list[DecodingRows]
    seconds: list[tuple[int, Callable[[RowSums], float]]]


class DecodeChain(NamedTuple):
    """A written program of some sequences.

    Attributes
    ----------
    issued_s
        Seconds until the host has issued each place, and of all kernels from there on that read no contexts.
    host_s, hidden_s
        Host seconds after the step, and those beside it.
    """

    layout: InstructionLayout
    kernels: ContextKernels
    issued_s: Any
    host_s: float
    hidden_s: float


class Standing(NamedTuple):
    """Steps of a number of sequences, but for kernels that read contexts.

    Attributes
    ----------
    most
        Sequences of the cell's last program.
    first_s, least_s
        Seconds from the first place on, and of the whole program.
    host_s, hidden_s
        Host seconds after the step, and those beside it.
    reading
        Positions of the kernels that read contexts.
    """

    most: int
    first_s: float
    least_s: float
    host_s: float
    hidden_s: float
    reading: tuple[int, ...]


class DecodeCell:
    """Steps of the numbers of sequences between two that are written.

    Parameters
    ----------
    low, high
        These numbers.
    padded
        Whether all steps are padded to ``high``.
    ends
        Their programs.
    """

    def __init__(self, low: int, high: int, padded: bool, ends: tuple[DecodeChain, DecodeChain]) -> None:
        self._low, self._high, self._padded, self._ends = low, high, padded, ends
        self._kernels = ends[0].kernels
        self._weighed = list(zip(self._kernels.columns, self._kernels.seconds, strict=True))
        #: Sequences → :meth:`_between`.
        self._inside: dict[int, tuple[Any, float, float, list[tuple[int, int, tuple[int, ...]]]]] = {}

    def _between(self, batch: int) -> tuple[Any, float, float, list[tuple[int, int, tuple[int, ...]]]]:
        """What a program of so many sequences has, and its rows: query tokens, tokens beyond the contexts of the step,
        contexts of padding."""
        first, last = self._ends
        share = (batch - self._low) / (self._high - self._low) if batch > self._low else 0.0
        issued_s = first.issued_s + (last.issued_s - first.issued_s) * share
        host_s = first.host_s + (last.host_s - first.host_s) * share
        hidden_s = first.hidden_s + (last.hidden_s - first.hidden_s) * share
        fewer = self._high - batch if self._padded else 0
        rows = [(of.own, of.later, (of.padding,) * fewer if of.padding >= 0 else ()) for of in self._kernels.rows]
        return issued_s, host_s, hidden_s, rows

    def standing(self, batch: int) -> Standing:
        """Steps of a number of sequences, but for kernels that read contexts."""
        issued_s, host_s, hidden_s, _ = self._between(batch)
        places = [issued_s] if isinstance(issued_s, float) else issued_s.tolist()
        return Standing(self._high, places[0], max(places), host_s, hidden_s, self._kernels.positions)

    def step_s(self, work: StepWork) -> float:
        """Seconds of a step."""
        batch = work.sequences
        inside = self._inside.get(batch)
        if inside is None:
            inside = self._inside[batch] = self._between(batch)
        total, host_s, hidden_s, rows = inside
        sums = [work.sums(own, more, padding) for own, more, padding in rows]
        for column, (number, seconds) in self._weighed:
            total = total + column * seconds(sums[number])
        makespan_s: float = total if isinstance(total, float) else max(total.tolist())
        return makespan_s + (host_s + max(0.0, hidden_s - makespan_s))

    def steps_s(self, work: StepWork, steps: int) -> Floats:
        """Seconds of each of the next steps: shape (steps,), bit for bit those of :meth:`step_s`."""
        if steps <= FEW_STEPS:
            return np.array([self.step_s(work.later(step) if step else work) for step in range(steps)])
        batch = work.sequences
        inside = self._inside.get(batch)
        if inside is None:
            inside = self._inside[batch] = self._between(batch)
        total, host_s, hidden_s, rows = inside
        if not isinstance(total, float):
            total = total[:, None]
        sums = [GrowingSums(work.sums(own, more, padding), batch, steps) for own, more, padding in rows]
        for column, (number, seconds) in self._weighed:
            own, more, padding = rows[number]
            of_run = getattr(seconds, "each", None)
            if of_run is not None and (own == 1 or isinstance(seconds, CachedAttention)):
                each_s = of_run(sums[number])
            else:
                grown = [work.sums(own, more + step, padding) for step in range(steps)]
                each_s = np.array([seconds(one) for one in grown])
            total = total + (column if isinstance(column, float) else column[:, None]) * each_s
        whole_s: Floats = total if np.ndim(total) < 2 else total.max(axis=0)
        if np.shape(whole_s) != (steps,):
            whole_s = np.broadcast_to(whole_s, steps)
        if hidden_s <= 0.0:
            return whole_s + host_s
        return whole_s + (host_s + np.maximum(0.0, hidden_s - whole_s))


class DecodeChains:
    """Decode steps of one plan.

    Parameters
    ----------
    programs
        Programs of the plan's engine.
    """

    def __init__(self, programs: StepPrograms) -> None:
        self._programs = programs
        self._chains: dict[int, DecodeChain | None] = {}
        #: Layout and capture → its kernels; None where some cannot be priced for contexts.
        self._kernels: dict[tuple[int, Captured], ContextKernels | None] = {}

    def cell(self, low: int, high: int, padded: bool) -> DecodeCell | None:
        """Steps of numbers of sequences; None where programs of theirs are no chains."""
        first = self._chain(low)
        last = first if first is None or high == low else self._chain(high)
        if first is None or last is None or first.kernels is not last.kernels:
            return None
        return DecodeCell(low, high, padded, (first, last))

    def _chain(self, batch: int) -> DecodeChain | None:
        if batch not in self._chains:
            self._chains[batch] = self._written(batch)
        return self._chains[batch]

    def _written(self, batch: int) -> DecodeChain | None:
        job = self._programs.decoding((STANDING,) * batch)
        variant = self._programs.variant(job)
        if variant is None or len(variant[0].layout.starts) > 1:
            return None
        (calls, layout), _ = variant
        kernels = self._kernels_of(job, batch, calls, layout)
        if kernels is None or kernels.operators != of_no_rows([calls[i] for i in kernels.positions]):
            return None
        constant = [i for i in range(len(calls)) if i not in kernels.positions]
        taken_s = self._programs.taken_s([calls[i] for i in constant], job.capture)
        if taken_s is None:
            return None
        issued_s = layout.issued_s + layout.follows[:, constant] @ np.array(taken_s)
        hidden_s = metrics.hidden_host_s(job)
        host_s = metrics.host_s(job, 0.0, 0.0) - max(0.0, hidden_s)
        return DecodeChain(layout, kernels, issued_s if len(issued_s) > 1 else float(issued_s[0]), host_s, hidden_s)

    def _kernels_of(
        self, job: Job, batch: int, calls: Sequence[StageCall], layout: InstructionLayout
    ) -> ContextKernels | None:
        key = id(layout), job.capture
        if key not in self._kernels:
            self._kernels[key] = self._found(job, batch, calls, layout)
        return self._kernels[key]

    def _found(
        self, job: Job, batch: int, calls: Sequence[StageCall], layout: InstructionLayout
    ) -> ContextKernels | None:
        programs, captured = self._programs, job.capture
        shorter = programs.decoding((1,) * batch)
        other = programs.variant(shorter)
        if other is None or other[0].layout is not layout:
            return None
        positions = [i for i, (one, two) in enumerate(zip(calls, other[0].calls, strict=True)) if one.what != two.what]
        passes, makers = passes_of(job), other[1]
        rows: list[DecodingRows] = []
        #: Layers of several kinds may have one kernel.
        columns: dict[tuple[int, Callable[[RowSums], float]], Floats] = {}
        for i in positions:
            what, maker = calls[i].what, makers[i]
            own, *padding = passes[maker.number].rows
            of_pass = DecodingRows(own[0], own[1] - STANDING, padding[0][1] if padding else 1)
            if of_pass not in rows:
                rows.append(of_pass)
            seconds = programs.rows.over_rows_of(what, maker.maker.layer, maker.of, own[0], captured)
            if seconds is None:
                return None
            key = rows.index(of_pass), seconds
            columns[key] = columns.get(key, 0.0) + layout.follows[:, i]
        numbers = [float(column[0]) if len(column) == 1 else column for column in columns.values()]
        return ContextKernels(tuple(positions), of_no_rows([calls[i] for i in positions]), numbers, rows, [*columns])


def of_no_rows(calls: Sequence[StageCall]) -> tuple[Any, ...]:
    """Kernels but for their rows."""
    whats: list[Any] = [call.what for call in calls]
    fields = [getattr(what, "rows_field", None) for what in whats]
    names = [field.name if field else "rows" for field in fields]
    return tuple([replace(what, **{name: ()}) for what, name in zip(whats, names, strict=True)])
