"""A sweep: one scenario at many points, with every answer stored as it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..base.errors import InputError, UnknownNameError
from ..scenario import Scenario, load
from ..step.cells import Cell
from ..step.result import PlanResult, Result
from .axes import Axis, Point, choose
from .executors import Work
from .query import Entry, Library, Query, ask
from .store import AnswerStore
from .sweeping import Clock, Sweeping
from .table import Table, make_columns, numbers_of, plan_result
from .worker import Answer, answer


class Sweep(Sweeping[Scenario]):
    """A scenario and the points of its sweep; parameters and errors of :class:`Sweeping`.

    Examples
    --------
    >>> sweep = Sweep("tsp-8x-h100", ["workload.sequence=32Ki,64Ki", "plans=TSP8"])
    >>> table = sweep.run()
    >>> table.columns["workload.sequence"], table.columns["plan"]
    ([32768, 65536], ['TSP8', 'TSP8'])
    """

    @property
    def work(self) -> Work[Any]:
        return answer

    def load(self, overrides: Sequence[str]) -> Scenario:
        return load(self.source, overrides)

    def check_path(self, axis: Axis) -> None:
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
            self.load([*self.overrides, f"{axis.path}={axis.texts[0]}"])
        except InputError as error:
            unknown_plan = isinstance(error, UnknownNameError) and axis.path.startswith("plans.") and error.key is None
            if unknown_plan or error.message.startswith("unknown key") or "has no keys" in error.message:
                raise InputError(error.message, file=f"--over {axis.path}") from None

    @property
    def expected(self) -> int:
        return sum(len(self.base.plans if point.plans is None else set(point.plans)) for point in self.points)

    def scenario_at(self, point: Point) -> Scenario:
        """The scenario of one point; raises InputError."""
        return choose(load(self.source, [*self.overrides, *point.overrides]), point.plans)

    def questions(self, answered: set[str], entries: list[Entry], clock: Clock) -> Iterator[Query[Scenario]]:
        library, seen = Library(), set(answered)
        for point in self.points:
            try:
                pairs = ask(library, point.number, self.scenario_at(point))
            except InputError as error:
                entries.append(Entry(point.number, "", error=str(error)))
                continue
            for entry, question in pairs:
                entries.append(entry)
                if question is None or question.key in seen:
                    clock.skipped()
                else:
                    seen.add(question.key)
                    yield question

    def table(self, store: AnswerStore, entries: Sequence[Entry], bugs: dict[str, str]) -> Table:
        swept = tuple(axis.path for axis in self.axes)
        rows: list[dict[str, Cell]] = []
        results: dict[int, list[PlanResult]] = {}
        places: dict[int, dict[str, Any]] = {}
        for entry in entries:
            stored = store.get(entry.key) if entry.key and entry.key not in bugs else None
            document = _document(stored, store.path) if stored else _failed(entry, bugs)
            named = dict(zip(swept, self.points[entry.point].cells, strict=True))
            row = {"point": entry.point, **named, "plan": entry.plan or None, **numbers_of(document)}
            rows.append(row | ({"wall_s": stored.wall_s} if stored else {}))
            results.setdefault(entry.point, []).append(plan_result(document))
            places[entry.point] = {"gpus": document["gpus"] or 0, "device": {"name": document["device"] or "–"}}
        _set_clusters(rows, self.points, swept)
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


def _set_clusters(rows: Sequence[dict[str, Cell]], points: Sequence[Point], swept: Sequence[str]) -> None:
    """Fill the column of a swept ``cluster``: with the names of the simulated clusters, or with the swept texts where
    names repeat or a point has no answer."""
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
    """An answer's document; raises InputError where it was changed since it was stored."""
    try:
        document: dict[str, Any] = json.loads(answer.text)
        numbers_of(document)
        plan_result(document)
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = "holds an answer that cannot be read, so something else changed it; name another --out"
        raise InputError(problem, file=str(path or "memory")) from None
    return document


def _failed(entry: Entry, bugs: dict[str, str]) -> dict[str, Any]:
    """The document of a row without an answer."""
    error = entry.error or f"bug: {bugs[entry.key]}"
    return {"cluster": None, "device": None, "gpus": None, "plan": {"name": entry.plan or "–", "error": error}}
