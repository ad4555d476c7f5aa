"""The common part of all sweeps: storage of answers, workers, interruptions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

from ..base.display import Progress
from ..base.errors import InputError, Interrupted, TspsimError
from ..base.units import duration
from .axes import Axis, points, read_axis
from .executors import Work, answers, executor_of
from .query import Entry, Query, QuestionType
from .store import AnswerStore
from .table import Table


class SweepInterruptedError(TspsimError):
    """Ctrl-C: answers so far are stored, and ``table`` has them; exit code 130."""

    exit_code = 130
    table: Table | None = None


class Sweeping(Generic[QuestionType]):
    """A question and the points of its sweep, checked; :meth:`run` answers them.

    Parameters
    ----------
    source
        Catalog name or path of the question, or a mapping of the same shape.
    over
        ``path=values``, as :mod:`tspsim.studies.axes` reads them.
    zipped
        Axes step together instead of making a product.
    overrides
        ``path=value`` that hold at every point.

    Raises
    ------
    InputError
        The question or an axis is wrong: an unknown path or plan, an empty range, too many points.
    """

    def __init__(
        self,
        source: str | Mapping[str, Any],
        over: Sequence[str],
        *,
        zipped: bool = False,
        overrides: Sequence[str] = (),
    ) -> None:
        self.source, self.overrides = source, tuple(overrides)
        self.base = self.load(overrides)
        self.axes = [read_axis(text) for text in over]
        if not self.axes:
            raise InputError("name at least one path to sweep, such as workload.sequence=32Ki..1Mi*2", file="--over")
        for axis in self.axes:
            self.check_path(axis)
        self.zipped = zipped
        self.points = points(self.axes, zipped=zipped)

    @property
    def work(self) -> Work[Any]:
        """The function by which a worker answers some questions."""
        raise NotImplementedError

    def load(self, overrides: Sequence[str]) -> QuestionType:
        """The question with these overrides; raises InputError."""
        raise NotImplementedError

    def check_path(self, axis: Axis) -> None:
        """Refuse an unknown path, which is wrong at every point, before the work; other errors are a point's own."""
        raise NotImplementedError

    @property
    def expected(self) -> int:
        """Number of rows to come, without points whose question is wrong."""
        raise NotImplementedError

    def questions(self, answered: set[str], entries: list[Entry], clock: Clock) -> Iterator[Query[QuestionType]]:
        """Questions without a stored answer, each once; ``entries`` grows with every row to come."""
        raise NotImplementedError

    def table(self, store: AnswerStore, entries: Sequence[Entry], bugs: dict[str, str]) -> Table:
        """The table of the answers."""
        raise NotImplementedError

    def run(
        self,
        *,
        store: Path | None = None,
        resume: bool = False,
        jobs: int | None = None,
        scheduler: str | None = None,
        progress: Progress | None = None,
    ) -> Table:
        """Answer every point and make the table.

        Parameters
        ----------
        store
            SQLite file that keeps the answers; None keeps them in memory.
        resume
            Continue that file; its answers are not simulated again.
        jobs
            Processes; None: as many as are of use. One answers in this process.
        scheduler
            Address of a Dask scheduler, instead of processes.
        progress
            Called with a sentence and the share that is done.

        Raises
        ------
        InputError
            The store exists and ``resume`` is False, or it cannot be written; the Dask cluster does not answer.
        SweepInterruptedError
            Ctrl-C.
        """
        kept = AnswerStore(store, resume=resume)
        try:
            return self._run(kept, jobs, scheduler, progress)
        except KeyboardInterrupt as interrupted:
            remedy = f"are kept in {store}; add --resume to go on" if store else "are lost; name --out to keep them"
            error = SweepInterruptedError(f"interrupted; {len(kept)} answers {remedy}")
            error.table = getattr(interrupted, "found", None)
            raise error from None
        finally:
            kept.close()

    def _run(self, store: AnswerStore, jobs: int | None, scheduler: str | None, progress: Progress | None) -> Table:
        entries: list[Entry] = []
        bugs: dict[str, str] = {}
        clock = Clock(self.expected, progress)
        questions = self.questions(store.keys(), entries, clock)
        executor = executor_of(jobs, scheduler, self.expected)
        finished = False
        try:
            for batch in answers(questions, executor, self.work):
                store.add(answer for answer in batch if not answer.bug)
                bugs |= {answer.key: answer.bug for answer in batch if answer.bug}
                clock.answered(len(batch))
            finished = True
        except KeyboardInterrupt:
            done = [entry for entry in entries if entry.error or store.get(entry.key)]
            raise Interrupted(self.table(store, done, bugs)) from None
        finally:
            executor.close(now=not finished)
        return self.table(store, entries, bugs)


class Clock:
    """Counts answers and estimates the remaining time, from the pace of the answers of this run."""

    def __init__(self, expected: int, progress: Progress | None, what: str = "plans") -> None:
        self._expected, self._progress, self._what = expected, progress, what
        self._done = self._answered = 0
        self._begin_s = time.monotonic()

    def skipped(self) -> None:
        self._done += 1

    def answered(self, count: int) -> None:
        self._done += count
        self._answered += count
        if self._progress is not None:
            left_s = (time.monotonic() - self._begin_s) / self._answered * (self._expected - self._done)
            words = f"{self._done:,} of {self._expected:,} {self._what}, {duration(max(left_s, 0.0))} left"
            self._progress(words, min(1.0, self._done / self._expected))
