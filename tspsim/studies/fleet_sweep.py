"""A sweep over a fleet: the fleet's answer at many points, one row each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from ..base.errors import InfeasibleError, InputError
from ..fleet import FleetQuestion, load
from ..step.cells import Cell
from .axes import Axis
from .best_plans import fleet_with_best
from .executors import Work
from .fleet_worker import answer, key_of
from .query import Entry, Library, Query
from .store import AnswerStore
from .sweeping import Clock, Sweeping
from .table import Table


class FleetSweep(Sweeping[FleetQuestion]):
    """A fleet and the points of its sweep; :meth:`run` answers them. A process simulates a job's step once for all
    points that share it. A job's ``plan: best`` is searched once for all points where the job is the same.

    Parameters
    ----------
    source
        Catalog name or path of a fleet.
    over, zipped, overrides
        As in :class:`~tspsim.studies.Sweep`.

    Raises
    ------
    InputError
        The fleet or an axis is wrong.

    Examples
    --------
    >>> table = FleetSweep("fleet-from-sacct", ["cluster.nodes=12,16"]).run(jobs=1)
    >>> table.columns["cluster.nodes"], table.ran
    ([12, 16], 2)
    """

    @property
    def work(self) -> Work[Any]:
        return answer

    def load(self, overrides: Sequence[str]) -> FleetQuestion:
        return load(self.source, overrides)

    def check_path(self, axis: Axis) -> None:
        try:
            self.load([*self.overrides, f"{axis.path}={axis.texts[0]}"])
        except InputError as error:
            if error.message.startswith("unknown key") or "has no keys" in error.message:
                raise InputError(error.message, file=f"--over {axis.path}") from None

    @property
    def expected(self) -> int:
        return len(self.points)

    def questions(self, answered: set[str], entries: list[Entry], clock: Clock) -> Iterator[Query[FleetQuestion]]:
        library, seen = Library(), set(answered)
        best: dict[str, dict[str, Any]] = {}
        for point in self.points:
            try:
                question = fleet_with_best(self.load([*self.overrides, *point.overrides]), cache=best)
                key = key_of(question, library)
            except (InputError, InfeasibleError) as error:
                entries.append(Entry(point.number, "", error=str(error)))
                clock.skipped()
                continue
            library.tidy()
            entries.append(Entry(point.number, "", key))
            if key in seen:
                clock.skipped()
            else:
                seen.add(key)
                yield Query(key, question)

    def table(self, store: AnswerStore, entries: Sequence[Entry], bugs: dict[str, str]) -> Table:
        rows: list[dict[str, Cell]] = []
        for entry in entries:
            kept = store.get(entry.key) if entry.key and entry.key not in bugs else None
            named = dict(zip((axis.path for axis in self.axes), self.points[entry.point].cells, strict=True))
            row: dict[str, Cell] = {"point": entry.point, **named, "error": None}
            if kept is not None:
                row |= _document(kept.text, store) | {"wall_s": kept.wall_s}
            else:
                row["error"] = entry.error or f"bug: {bugs[entry.key]}"
            rows.append(row)
        last = ("error", "wall_s")
        names = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in last]
        columns = {name: [row.get(name) for row in rows] for name in (*names, *last)}
        units = {axis.path: axis.unit for axis in self.axes if axis.unit}
        return Table(tuple(axis.path for axis in self.axes), columns, (), units, self.zipped)


def _document(text: str, store: AnswerStore) -> dict[str, Any]:
    """The numbers of a stored answer; raises InputError where it was changed since, or is no fleet's."""
    try:
        document = json.loads(text)
        if "error" not in document and "allocated" not in document:
            raise ValueError
    except (ValueError, TypeError):
        problem = "holds an answer that cannot be read, so something else changed it; name another --out"
        raise InputError(problem, file=str(store.path or "memory")) from None
    return dict(document)
