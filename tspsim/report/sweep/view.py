"""A sweep as its page reads it: axes, measures, and rows that ran or were refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from tspsim.base.units import compact, digits, gib, percent, si_unit
from tspsim.report.numbers import seconds
from tspsim.step.cells import Cell
from tspsim.studies.table import Table

from ...base.memo import once

#: The noun after a path's number, where the path's last word does not say it.
COUNTED = {"sequence": "tokens", "context": "tokens", "chunk": "tokens", "tokens": "tokens"}
#: The name of the plans' coordinate.
PLAN = "plan"


@dataclass(frozen=True)
class SweepAxis:
    """One coordinate: a swept path, or the plans.

    ``values`` keep the order of the sweep. Values of a ``numeric`` axis lie on a line, other values side by side.
    """

    path: str
    title: str
    values: tuple[Cell, ...]
    numeric: bool
    unit: str = ""

    @property
    def name(self) -> str:
        """The title without its unit."""
        return self.title.partition(",")[0]

    @property
    def of_plan(self) -> str:
        """The plan whose key the path is; empty for other paths."""
        parts = self.path.split(".")
        return parts[1] if parts[0] == "plans" and len(parts) > 2 else ""

    def counted(self, value: Cell) -> str:
        """A value with the noun it counts.

        >>> SweepAxis("workload.sequence", "sequence, tokens", (), True).counted(4096)
        '4Ki tokens of sequence'
        >>> SweepAxis("cluster.nodes", "nodes", (), True).counted(8), SweepAxis("x.rate", "rate", (), True).counted(8)
        ('8 nodes', '8 of rate')
        """
        what = "" if self.unit else self.title.partition(", ")[2]
        if what:
            return f"{self.words(value)} {what} of {self.name}"
        return f"{self.words(value)}{' ' if self.name.split()[0].endswith('s') else ' of '}{self.name}"

    @property
    def geometric(self) -> bool:
        """Whether a logarithmic line suits the numbers: all positive, and far apart."""
        numbers = [float(value) for value in self.values if isinstance(value, int | float)]
        return self.numeric and min(numbers) > 0 and max(numbers) >= 8 * min(numbers)

    def words(self, value: Cell) -> str:
        """A value in the words of ticks and sentences.

        >>> SweepAxis("workload.sequence", "sequence, tokens", (32768,), True).words(32768)
        '32Ki'
        """
        if value is None:
            return "none"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int | float) and self.numeric:
            if self.unit == si_unit("s"):
                return seconds(float(value))
            if value >= 1024 and float(value).is_integer() and int(value) % 1024 == 0:
                power = min(3, (len(f"{int(value):b}") - 1) // 10)
                while int(value) % 1024**power:
                    power -= 1
                return f"{int(value) // 1024**power:,}{'KMG'[power - 1]}i"
            text = f"{value:,.4g}" if abs(value) < 1e5 else compact(float(value))
            return text if self.unit in ("", si_unit("bytes")) else f"{text} {self.unit}"
        return str(value)


@dataclass(frozen=True)
class Measure:
    """One number of every row: the table's column, its heading with the unit, and a function that writes values."""

    column: str
    title: str
    words: Callable[[float], str]
    #: The drawn number is the column's number times this.
    scale: float = 1.0
    #: Whether more is better.
    more: bool = True

    @property
    def name(self) -> str:
        """The title without its unit, as sentences have it."""
        return self.title.partition(",")[0]


#: Measures that rows may have, the leading one first; dollars follow, one column per price basis.
MEASURES = (
    Measure("goodput_requests_per_s", "requests/s within the bounds", digits),
    Measure("tokens_per_s", "tokens/s", compact),
    Measure("tokens_per_s_per_gpu", "tokens/s/GPU", compact),
    Measure("step_time_s", "step, s", seconds, more=False),
    Measure("mfu", "MFU, %", percent, scale=100.0),
    Measure("time_to_first_token_s", "time to first token, s", seconds, more=False),
    Measure("time_per_output_token_s", "time per output token, s", seconds, more=False),
    Measure("ttft_s_mean", "TTFT, mean, s", seconds, more=False),
    Measure("tpot_s_mean", "TPOT, mean, s", seconds, more=False),
    Measure("tokens_per_s_per_user", "tokens/s per user", digits),
    Measure("memory_peak_bytes", "memory per GPU, GiB", gib, scale=2.0**-30, more=False),
)
DOLLARS = ("usd_per_million_tokens_", "usd_per_million_output_tokens_")


@dataclass(frozen=True)
class SweepRow:
    """One plan at one point: coordinates by path, and numbers by column; ``error`` is why the row is refused."""

    coordinates: dict[str, Cell]
    numbers: dict[str, float]
    error: str = ""
    point: int = 0

    @property
    def plan(self) -> str:
        return str(self.coordinates[PLAN])


@dataclass(frozen=True)
class SweepView:
    """The table as the page reads it."""

    table: Table
    title: str
    description: str = ""
    rows: tuple[SweepRow, ...] = field(init=False)
    #: The name of a point's best answer in captions; empty where a point has one answer.
    BEST: ClassVar[str] = "best plan"
    #: What the pointer at a mark shows beside the number.
    MARK: ClassVar[str] = "Point at a mark for its plan."

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self._rows()))

    def _rows(self) -> list[SweepRow]:
        rows = []
        for cells in self.table.rows():
            coordinates = {path: cells[path] for path in self.paths} | {PLAN: cells["plan"] or "–"}
            error = cells.get("error")
            columns = [measure.column for measure in MEASURES] + [name for name in cells if name.startswith(DOLLARS)]
            numbers = {
                name: float(value)
                for name in (*columns, "tokens_per_s_low", "tokens_per_s_high", "tokens_per_step", "gpus")
                if isinstance(value := cells.get(name), int | float) and not isinstance(value, bool)
            }
            place = cells["point"]
            assert isinstance(place, int)
            rows.append(SweepRow(coordinates, numbers, str(error) if error is not None else "", place))
        return rows

    @once
    def paths(self) -> tuple[str, ...]:
        """Swept paths that are coordinates; the plans, swept by name, are a coordinate anyway."""
        return tuple(path for path in self.table.swept if path != "plans")

    @property
    def counted(self) -> str:
        """How many points, plans and rows there are, and how many ran."""
        points, plans = len({row.point for row in self.rows}), len(self.plans.values)
        counts = f"{points:,} points, {plans} plan{'s' * (plans != 1)}"
        return f"{counts}, {len(self.ran):,} of {len(self.rows):,} rows ran"

    @property
    def ran(self) -> tuple[SweepRow, ...]:
        return tuple(row for row in self.rows if not row.error)

    @property
    def refused(self) -> tuple[SweepRow, ...]:
        return tuple(row for row in self.rows if row.error)

    @once
    def axes(self) -> tuple[SweepAxis, ...]:
        """Swept paths with more than one value, in the order of the command; of paths that step together the first."""
        every = [self.axis(path) for path in self.paths]
        several = [axis for axis in every if len(axis.values) > 1]
        return tuple(several[:1] if self.table.zipped else several)

    @once
    def together(self) -> tuple[SweepAxis, ...]:
        """Paths that step with the first axis."""
        return tuple(self.axis(path) for path in self.paths[1:]) if self.table.zipped else ()

    @once
    def plans(self) -> SweepAxis:
        """The plans, in the scenario's order."""
        return SweepAxis(PLAN, "plan", tuple(dict.fromkeys(row.plan for row in self.rows)), False)

    def axis(self, path: str) -> SweepAxis:
        """A swept path with its values."""
        values = tuple(dict.fromkeys(row.coordinates[path] for row in self.rows))
        present = [value for value in values if value is not None]
        numeric = bool(present) and all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in present
        )
        if numeric:
            values = tuple(sorted(present))
        unit = self.table.units.get(path, "")
        counted = COUNTED.get(path.rpartition(".")[2], "")
        name = self._name(path)
        return SweepAxis(path, f"{name}, {unit or counted}" if unit or counted else name, values, numeric, unit)

    def _name(self, path: str) -> str:
        """The last word of a path and its plan; the whole path where two paths end alike."""
        parts = path.split(".")
        last = Counter(other.rpartition(".")[2] for other in self.paths)
        name = parts[-1].replace("_", " ")
        if parts[0] == "plans" and len(parts) > 2:
            return f"{name} of {parts[1]}"
        return name if last[parts[-1]] == 1 else path

    @once
    def measures(self) -> tuple[Measure, ...]:
        """The measures that rows have; the first leads."""
        names = {name for row in self.ran for name in row.numbers}
        measures = [measure for measure in MEASURES if measure.column in names]
        measures += [
            Measure(name, f"$/M tokens, {name.rpartition('_')[2]}", lambda value: f"${digits(value)}", more=False)
            for name in sorted(names)
            if name.startswith(DOLLARS)
        ]
        return tuple(measures)

    def value(self, row: SweepRow, measure: Measure) -> float:
        """The number a figure draws; not a number where the row has none."""
        return row.numbers.get(measure.column, math.nan) * measure.scale

    def place_words(self, row: SweepRow) -> str:
        """The point of a row in words."""
        axes = [*self.axes, *self.together]
        return ", ".join(f"{axis.name} {axis.words(row.coordinates[axis.path])}" for axis in axes)

    def point_words(self, row: SweepRow) -> str:
        """A row's coordinates in words, the plan last."""
        return ", ".join(filter(None, [self.place_words(row), row.plan]))
