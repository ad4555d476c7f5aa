"""A sweep: one scenario asked at many points, every answer kept as it comes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..cells import Cell
from ..errors import InputError, Interrupted, TspsimError, UnknownNameError
from ..result import PlanResult, Result
from ..scenario import Scenario, load
from ..units import duration
from .axes import Axis, Point, choose, points, read_axis
from .executors import answers, executor_of
from .query import Entry, Library, Query, ask
from .store import Store
from .table import Table, make_columns, numbers_of, plan_result
from .worker import Answer

#: Called with what is under way and the share that is done.
Progress = Callable[[str, float], None]


class SweepInterruptedError(TspsimError):
    """Ctrl-C: what was answered is kept, and ``found`` is the table of it; exit code 130."""

    exit_code = 130
    found: Table | None = None


class Sweep:
    """A scenario and the points it is asked at, checked; :meth:`run` answers them.

    Parameters
    ----------
    source
        Catalog name or path of a scenario.
    over
        ``path=values``, as :mod:`tspsim.studies.axes` reads them.
    zipped
        Axes step together instead of making a product.
    overrides
        ``path=value`` that hold at every point.

    Raises
    ------
    InputError
        The scenario is wrong as it stands, or an axis is: an unknown path or plan, an empty range, too many points.

    Examples
    --------
    >>> sweep = Sweep("tsp-8x-h100", ["workload.sequence=32Ki,64Ki", "plans=TSP8"])
    >>> table = sweep.run()
    >>> table.columns["workload.sequence"], table.columns["plan"]
    ([32768, 65536], ['TSP8', 'TSP8'])
    """

    def __init__(
        self, source: str, over: Sequence[str], *, zipped: bool = False, overrides: Sequence[str] = ()
    ) -> None:
        self.source, self.overrides = source, tuple(overrides)
        self.base = load(source, overrides)
        self.axes = [read_axis(text) for text in over]
        if not self.axes:
            raise InputError("name at least one path to sweep, such as workload.sequence=32Ki..1Mi*2", file="--over")
        for axis in self.axes:
            self._check_path(axis)
        self.zipped = zipped
        self.points = points(self.axes, zipped=zipped)

    def _check_path(self, axis: Axis) -> None:
        """A path nobody knows is wrong at every point: refuse it before the work; other errors are a point's own."""
        for step in range(len(axis)):
            chosen = axis.chosen_plans(step)
            if chosen is not None:
                try:
                    choose(self.base, chosen)
                except UnknownNameError as error:
                    raise error.at(file=f"--over {axis.path}") from None
        if axis.chosen_plans(0) is not None:
            return
        try:
            load(self.source, [*self.overrides, f"{axis.path}={axis.texts[0]}"])
        except InputError as error:
            unknown_plan = isinstance(error, UnknownNameError) and axis.path.startswith("plans.") and error.key is None
            if unknown_plan or error.message.startswith("unknown key") or "has no keys" in error.message:
                raise InputError(error.message, file=f"--over {axis.path}") from None

    @property
    def plans(self) -> int:
        """Rows to come, points with a wrong scenario aside."""
        return sum(len(self.base.plans if point.plans is None else set(point.plans)) for point in self.points)

    def scenario_at(self, point: Point) -> Scenario:
        """The scenario of one point; raises InputError."""
        return choose(load(self.source, [*self.overrides, *point.overrides]), point.plans)

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
            Go on with that file; what it holds is not asked again.
        jobs
            Processes; None: as many as help. One answers in this process.
        scheduler
            Address of a Dask scheduler, instead of processes.
        progress
            Called with a sentence and the share that is done.

        Raises
        ------
        InputError
            The store exists and ``resume`` is not asked for, or it cannot be written; the cluster does not answer.
        SweepInterruptedError
            Ctrl-C.
        """
        kept = Store(store, resume=resume)
        try:
            return self._run(kept, jobs, scheduler, progress)
        except KeyboardInterrupt as interrupted:
            remedy = f"are kept in {store}; add --resume to go on" if store else "are lost; name --out to keep them"
            error = SweepInterruptedError(f"interrupted; {len(kept)} answers {remedy}")
            error.found = getattr(interrupted, "found", None)
            raise error from None
        finally:
            kept.close()

    def _run(self, store: Store, jobs: int | None, scheduler: str | None, progress: Progress | None) -> Table:
        entries: list[Entry] = []
        bugs: dict[str, str] = {}
        clock = _Clock(self.plans, progress)
        questions = self._questions(store.keys(), entries, clock)
        executor = executor_of(jobs, scheduler, self.plans)
        finished = False
        try:
            for found in answers(questions, executor):
                store.add(answer for answer in found if not answer.bug)
                bugs |= {answer.key: answer.bug for answer in found if answer.bug}
                clock.answered(len(found))
            finished = True
        except KeyboardInterrupt:
            done = [entry for entry in entries if entry.error or store.get(entry.key)]
            raise Interrupted(self._table(store, done, bugs)) from None
        finally:
            executor.close(now=not finished)
        return self._table(store, entries, bugs)

    def _questions(self, known: set[str], entries: list[Entry], clock: _Clock) -> Iterator[Query]:
        """Questions nobody has answered, each once; ``entries`` grows with every row to come."""
        library, seen = Library(), set(known)
        for point in self.points:
            try:
                asked = ask(library, point.number, self.scenario_at(point))
            except InputError as error:
                entries.append(Entry(point.number, "", error=str(error)))
                continue
            for entry, question in asked:
                entries.append(entry)
                if question is None or question.key in seen:
                    clock.skipped()
                else:
                    seen.add(question.key)
                    yield question

    def _table(self, store: Store, entries: Sequence[Entry], bugs: dict[str, str]) -> Table:
        swept = tuple(axis.path for axis in self.axes)
        rows: list[dict[str, Cell]] = []
        results: dict[int, list[PlanResult]] = {}
        places: dict[int, dict[str, Any]] = {}
        for entry in entries:
            answer = store.get(entry.key) if entry.key and entry.key not in bugs else None
            document = _document(answer, store.path) if answer else _failed(entry, bugs)
            named = dict(zip(swept, self.points[entry.point].cells, strict=True))
            row = {"point": entry.point, **named, "plan": entry.plan or None, **numbers_of(document)}
            rows.append(row | ({"wall_s": answer.wall_s} if answer else {}))
            results.setdefault(entry.point, []).append(plan_result(document))
            places[entry.point] = {"gpus": document["gpus"] or 0, "device": {"name": document["device"] or "–"}}
        _told_apart(rows, self.points, swept)
        shown = tuple(
            Result({"name": self.label(self.points[number])}, places[number], tuple(plans))
            for number, plans in results.items()
        )
        columns = make_columns(rows, ("point", *swept, "plan", "cluster", "device", "gpus"))
        units = {axis.path: axis.unit for axis in self.axes if axis.unit}
        return Table(swept, columns, shown, units, self.zipped)

    def label(self, point: Point) -> str:
        """A point in words: the last part of every swept path, and its value."""
        cells = [str(cell).lower() if isinstance(cell, bool) else cell for cell in point.cells]
        names = [axis.path.rpartition(".")[2] for axis in self.axes]
        return ", ".join(f"{name} {cell}" for name, cell in zip(names, cells, strict=True))


def _told_apart(rows: Sequence[dict[str, Cell]], points: Sequence[Point], swept: Sequence[str]) -> None:
    """Where clusters are swept, their column has the names of what answered; as swept where those are not as many, and
    of points that nothing answered."""
    if "cluster" not in swept:
        return
    place = swept.index("cluster")
    stated = [points[number].cells[place] for row in rows if isinstance(number := row["point"], int)]
    named = {(text, row["cluster"]) for text, row in zip(stated, rows, strict=True) if row["cluster"] is not None}
    alike = len({name for _, name in named}) < len({text for text, _ in named})
    for text, row in zip(stated, rows, strict=True):
        if alike or row["cluster"] is None:
            row["cluster"] = text


def _document(answer: Answer, path: Path | None) -> dict[str, Any]:
    """What an answer says; raises InputError where it was changed since it was kept."""
    try:
        document: dict[str, Any] = json.loads(answer.text)
        numbers_of(document)
        plan_result(document)
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = "holds an answer that cannot be read, so something else changed it; name another --out"
        raise InputError(problem, file=str(path or "memory")) from None
    return document


def _failed(entry: Entry, bugs: dict[str, str]) -> dict[str, Any]:
    """The document of a row that no answer fills."""
    error = entry.error or f"bug: {bugs[entry.key]}"
    return {"cluster": None, "device": None, "gpus": None, "plan": {"name": entry.plan or "–", "error": error}}


class _Clock:
    """Counts plans and says how long the rest will take, from the pace of those that were answered here."""

    def __init__(self, plans: int, progress: Progress | None) -> None:
        self._plans, self._progress = plans, progress
        self._done = self._answered = 0
        self._begin_s = time.monotonic()

    def skipped(self) -> None:
        self._done += 1

    def answered(self, count: int) -> None:
        self._done += count
        self._answered += count
        if self._progress is not None:
            left_s = (time.monotonic() - self._begin_s) / self._answered * (self._plans - self._done)
            words = f"{self._done:,} of {self._plans:,} plans, {duration(max(left_s, 0.0))} left"
            self._progress(words, min(1.0, self._done / self._plans))
