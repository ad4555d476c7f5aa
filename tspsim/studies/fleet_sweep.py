"""A sweep over a fleet: many jobs asked at many points, a row each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

from ..answer import simulate
from ..cells import Cell
from ..errors import InfeasibleError, InputError
from ..fleet import FleetAnswer, answer, load
from ..result import Result
from ..scenario import Scenario
from .axes import points, read_axis
from .table import Table

Progress = Callable[[str, float], None]


class FleetTable(Table):
    """Rows of a sweep over a fleet."""

    @property
    def ran(self) -> int:
        """Rows with an answer."""
        return sum(error is None for error in self.columns["error"])


class FleetSweep:
    """A fleet and the points it is asked at; :meth:`run` answers them. A job's step is simulated once for all points
    that have it.

    Parameters
    ----------
    source
        Catalog name or path of a fleet.
    over, zipped, overrides
        As of :class:`~tspsim.studies.Sweep`.

    Raises
    ------
    InputError
        The fleet is wrong as it stands, or an axis is.
    """

    def __init__(
        self, source: str, over: Sequence[str], *, zipped: bool = False, overrides: Sequence[str] = ()
    ) -> None:
        self.source, self.overrides, self.zipped = source, tuple(overrides), zipped
        self.base = load(source, overrides)
        self.axes = [read_axis(text) for text in over]
        self.points = points(self.axes, zipped=zipped)
        for axis in self.axes:
            try:
                load(source, [*self.overrides, f"{axis.path}={axis.texts[0]}"])
            except InputError as error:
                if error.message.startswith("unknown key") or "has no keys" in error.message:
                    raise InputError(error.message, file=f"--over {axis.path}") from None
        self._steps: dict[str, Result] = {}

    def run(self, progress: Progress | None = None) -> Table:
        """Answer every point and make the table: what is wrong of a point stands in its row."""
        rows: list[dict[str, Cell]] = []
        for number, point in enumerate(self.points):
            if progress is not None:
                progress(f"{number:,} of {len(self.points):,} points", number / len(self.points))
            named = dict(zip((axis.path for axis in self.axes), point.cells, strict=True))
            try:
                found = answer(load(self.source, [*self.overrides, *point.overrides]), self._step)
                rows.append({"point": point.number, **named, **_cells(found), "error": None})
            except (InputError, InfeasibleError) as error:
                rows.append({"point": point.number, **named, "error": str(error)})
        names = dict.fromkeys(name for row in rows for name in row if name != "error")
        columns = {name: [row.get(name) for row in rows] for name in (*names, "error")}
        units = {axis.path: axis.unit for axis in self.axes if axis.unit}
        return FleetTable(tuple(axis.path for axis in self.axes), columns, (), units, self.zipped)

    def _step(self, scenario: Scenario) -> Result:
        key = json.dumps(scenario.to_dict(), sort_keys=True, default=str)
        if key not in self._steps:
            self._steps[key] = simulate(scenario)
        return self._steps[key]


def _cells(found: FleetAnswer) -> dict[str, Cell]:
    """A fleet's numbers under flat names."""
    facts = found.facts
    waits = [job.wait_s for job in facts.jobs if job.wait_s is not None]
    half, most = (float(np.quantile(waits, share)) if waits else None for share in (0.5, 0.95))
    return {
        "nodes": facts.nodes,
        "gpus": facts.gpus,
        "jobs": len(facts.jobs),
        "done": sum(job.state == "done" for job in facts.jobs),
        "horizon_s": facts.horizon_s,
        "allocated": facts.allocated,
        "productive": facts.productive,
        "mean_wait_s": float(np.mean(waits)) if waits else None,
        "p50_wait_s": half,
        "p95_wait_s": most,
        "restarts": sum(job.restarts for job in facts.jobs),
        **{f"lost_{part}_gpu_hours": hours for part, hours in facts.lost_gpu_hours.items()},
        "energy_kwh": facts.energy_kwh,
        "cost_usd": facts.cost_usd,
    }
