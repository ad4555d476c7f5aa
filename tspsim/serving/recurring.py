"""Steps that finish a few tokens of prompts beside sequences that decode: written once, whatever is in the caches.

A prompt that does not fit into what is left of a step's budget may leave a few tokens to the next step, so few that the
kernels that decode take them. Such steps are priced as their whole programs say; and as of all that depends on contexts
they have attention alone, the program of one is that of the next with the rows of its attention exchanged. That it is
so is looked at: the second step of as many sequences and tokens is written too, and its program must be the first's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

from ..model.attention.base import MOST_DECODED, Rows
from ..operators import Operator
from ..parallel import Job
from ..program import Program
from .flat import things_of

#: Programs that are kept.
MOST_WRITTEN = 512


class Written:
    """The programs of a step, and which of their kernels carry rows of its contexts."""

    def __init__(self, job: Job, stages: list[Program]) -> None:
        self.stages, self.sure = stages, False
        rows = job.rows
        self.things = things_of(stages)
        every = {thing.what for thing in self.things if isinstance(thing.what, Operator)}
        self.carrying = [what for what in every if carries(what, rows)]

    def exchanged(self, rows: Rows) -> dict[Operator, Operator]:
        """The kernels that carry rows, each with the one that takes its place where rows are others."""
        return {what: replace(what, rows=rows_of(what, rows)) for what in self.carrying}  # type: ignore[type-var]

    def is_of(self, job: Job, stages: list[Program]) -> bool:
        """Whether another step's programs are these with its rows."""
        others, exchanged = things_of(stages), self.exchanged(job.rows)
        if len(others) != len(self.things):
            return False
        for thing, other in zip(self.things, others, strict=True):
            own = thing.what
            if isinstance(own, Operator):
                own = exchanged.get(own, own)
            if thing._replace(what=own).does != other.does:
                return False
        return True


def rows_of(what: Any, rows: Rows) -> tuple[tuple[int, int], ...]:
    """Tokens and sequences of the rows that a kernel takes which decodes so many queries of each."""
    return tuple((queries + context, count) for queries, context, count in rows if queries == what.queries)


def carries(what: Any, rows: Rows) -> bool:
    """Whether a kernel has just those."""
    return hasattr(what, "queries") and getattr(what, "rows", None) == rows_of(what, rows)


class Recurring:
    """Prices of such steps.

    Parameters
    ----------
    write
        The programs of a job's stages.
    walk
        Seconds of a job from its programs and the seconds of kernels; None where they are no chain.
    """

    def __init__(
        self,
        write: Callable[[Job], list[Program]],
        walk: Callable[[Job, list[Program], Callable[[Operator], float]], float | None],
    ) -> None:
        self._write, self._walk = write, walk
        self._written: OrderedDict[Hashable, Written | None] = OrderedDict()

    def seconds(self, job: Job, cost: Callable[[Operator], float]) -> float | None:
        """Of a step, from kernels' seconds; None where it is another kind of step, or its programs are no chain."""
        pieces = job.work.load.pieces
        if not pieces or not job.work.load.batch or any(piece.query_tokens > MOST_DECODED for piece in pieces):
            return None
        counts = tuple((piece.query_tokens, piece.context_tokens > 0, piece.ends) for piece in pieces)
        key = counts, job.work.load.batch, job.capture
        if key not in self._written:
            stages = self._write(job)
            self._written[key] = Written(job, stages)
            if len(self._written) > MOST_WRITTEN:
                self._written.popitem(last=False)
            return self._walk(job, stages, cost)
        written = self._written[key]
        if written is not None and not written.sure:
            stages = self._write(job)
            written.sure = written.is_of(job, stages)
            if not written.sure:
                self._written[key] = written = None
        if written is None:
            return None
        exchanged = written.exchanged(job.rows)
        return self._walk(job, written.stages, lambda operator: cost(exchanged.get(operator, operator)))
