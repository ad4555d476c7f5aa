"""The answers of a sweep as a table: one row per plan and point, in the order of the points.

Columns: ``point``; the swept paths; ``plan``; then the numbers of :meth:`tspsim.step.result.PlanResult.to_json` under
flat names, times in seconds, sizes in bytes; ``error``; and ``wall_s``, the time an answer took. Columns whose names
begin with ``wall_`` differ from run to run, all others are the same to the bit for the same question.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.display import Pictured, html_table
from ..base.errors import InputError
from ..base.files import atomic_write, replacing
from ..base.units import compact, duration
from ..step.cells import Cell, flat
from ..step.result import Memory, PlanResult, Range, Result

if TYPE_CHECKING:
    import pandas

Row = Mapping[str, Cell]
SUFFIXES = (".parquet", ".csv")
#: The remedy in messages where a table cannot be written.
REMEDY = "make room or name another file; the answers are kept, run again with --resume"
#: Rows that a notebook shows of a table.
ROWS_SHOWN = 40

#: Columns of every table; columns of families, kinds and price bases depend on the answers.
_NUMBERS = (
    "tokens_per_s",
    "tokens_per_s_low",
    "tokens_per_s_high",
    "tokens_per_s_per_gpu",
    "block_forward_tokens_per_s",
    "step_time_s",
    "mfu",
    "dropped_share",
    "compute_s",
    "exposed_communication_s",
    "bubble_s",
    "idle_s",
    "memory_peak_bytes",
    "memory_capacity_bytes",
    "communication_bytes_per_layer",
    "communication_bytes_per_step",
)


@dataclass(frozen=True, repr=False)
class Table(Pictured):
    """Rows of equal columns."""

    #: The swept paths, which are names of columns.
    swept: tuple[str, ...]
    #: Name → cells, one per row; a column holds one type and None.
    columns: Mapping[str, Sequence[Cell]]
    #: The rows as one :class:`~tspsim.step.result.Result` per point, for pages and pictures; without timelines.
    results: tuple[Result, ...]
    #: Unit of a swept path's cells, where they are quantities.
    units: Mapping[str, str] = field(default_factory=dict)
    #: Whether the paths step together, without combinations.
    zipped: bool = False

    def __len__(self) -> int:
        return len(self.columns["point"])

    @property
    def ran(self) -> int:
        """Rows with an answer."""
        return sum(error is None for error in self.columns["error"])

    def rows(self) -> Iterator[dict[str, Cell]]:
        for cells in zip(*self.columns.values(), strict=True):
            yield dict(zip(self.columns, cells, strict=True))

    def __repr__(self) -> str:
        what = ", ".join(self.swept) or "nothing"
        return f"<Table: {len(self):,} rows over {what}, {self.ran:,} ran; to_frame() has them>"

    def _repr_html_(self) -> str:
        """Swept values, rate and step of the first rows, for notebooks."""
        columns = ["plan", *self.swept, "tokens/s", "step"]
        rows = [
            [str(row["plan"]), *(str(row[path]) for path in self.swept if path != "plan"), *_rate_and_step(row)]
            for row in itertools.islice(self.rows(), ROWS_SHOWN)
        ]
        left = len(self) - len(rows)
        notes = [f"and {left:,} more rows; to_frame() has them all"] if left > 0 else []
        return html_table(f"{len(self):,} rows, {self.ran:,} ran", columns, rows, notes)

    def to_frame(self) -> pandas.DataFrame:
        """The columns as a DataFrame."""
        import pandas

        return pandas.DataFrame({name: list(cells) for name, cells in self.columns.items()})

    def csv(self) -> str:
        """Full digits, a header, empty cells for None; text that a spreadsheet took for a formula is quoted."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows():
            writer.writerow(map(_csv_cell, row.values()))
        return text.getvalue()

    def write(self, path: Path) -> None:
        """Write a ``.parquet`` or ``.csv`` file, whole or not at all.

        Raises
        ------
        InputError
            The suffix is another, or the file cannot be written.
        """
        if path.suffix == ".csv":
            atomic_write(path, self.csv(), REMEDY)
        else:
            check_suffix(path)
            with replacing(path, REMEDY) as temporary:
                self._write_parquet(temporary)

    def _write_parquet(self, path: Path) -> None:
        import pyarrow
        import pyarrow.parquet

        arrays = {name: pyarrow.array(cells, _arrow_type(cells, name)) for name, cells in self.columns.items()}
        pyarrow.parquet.write_table(pyarrow.table(arrays), path)


def _rate_and_step(row: Row) -> list[str]:
    rate, step_s = row["tokens_per_s"], row["step_time_s"]
    if not isinstance(rate, float) or not isinstance(step_s, float):
        return [f"refused: {row['error']}", ""]
    return [compact(rate), duration(step_s)]


def check_suffix(path: Path) -> None:
    """Refuse a file that is neither Parquet nor CSV."""
    if path.suffix not in SUFFIXES:
        raise InputError("a table is written as .parquet or .csv; end the name with one of them", file=str(path))


def numbers_of(document: Mapping[str, Any]) -> dict[str, Cell]:
    """One answer's cells (see :class:`~tspsim.studies.worker.Answer` for the document)."""
    return {**{name: document[name] for name in ("cluster", "device", "gpus")}, **flat(document["plan"])}


def make_columns(rows: Sequence[Row], leading: Sequence[str]) -> dict[str, list[Cell]]:
    """Rows as columns: ``leading`` first, then the numbers of every table, then the rows' further ones, by name."""
    last = ("bottleneck", "error", "wall_s")
    named = (*leading, *_NUMBERS, *last)
    others = sorted({name for row in rows for name in row} - set(named))
    order = (*leading, *_NUMBERS, *others, *last)
    return {name: [row.get(name) for row in rows] for name in order}


def plan_result(document: Mapping[str, Any]) -> PlanResult:
    """An answer as the object that reports read."""
    plan = document["plan"]
    memory = plan.get("memory", {"parts": {}, "capacity_bytes": 0.0})
    common: dict[str, Any] = {
        "name": plan["name"],
        "degrees": plan.get("degrees", {}),
        "settings": plan.get("settings", {}),
        "memory": Memory(memory["parts"], memory["capacity_bytes"]),
        "notes": tuple(plan.get("notes", ())),
    }
    if "error" in plan:
        return PlanResult(**common, error=plan["error"])
    spread = {name: value for name, value in plan["range"].items() if not isinstance(value, Mapping)}
    others = {
        name: (value["low"], value["high"]) for name, value in plan["range"].items() if isinstance(value, Mapping)
    }
    if "serving" in plan:
        return PlanResult(
            **common,
            step_time_s=plan["serving"]["wall_s"],
            tokens_per_step=plan["serving"]["output_tokens"],
            gpus=document["gpus"],
            cost=plan["cost"],
            bottleneck=plan["bottleneck"],
            range=Range(**spread, others=others),
            serving=plan["serving"],
            curve=tuple(plan.get("curve", ())),
        )
    same = (
        "step_time_s",
        "tokens_per_step",
        "block_forward_tokens_per_s",
        "mfu",
        "breakdown_s",
        "compute_by_kind_s",
        "communication_bytes_per_layer",
        "cost",
        "bottleneck",
    )
    return PlanResult(
        **common,
        **{name: plan[name] for name in same},
        dropped_share=plan.get("dropped_share", 0.0),  # older stores lack it
        communication_bytes_per_step=plan.get("communication_bytes_per_step", {}),
        gpus=document["gpus"],
        checkpoint=plan.get("checkpoint", {}),
        inference=plan.get("inference", {}),
        range=Range(**spread),
    )


def _arrow_type(cells: Sequence[Cell], name: str) -> Any:
    import pyarrow

    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds == {bool}:
        return pyarrow.bool_()
    if kinds == {int}:
        return pyarrow.int64()
    text = name in ("plan", "error", "bottleneck") or kinds == {str}
    return pyarrow.string() if text else pyarrow.float64()


def _csv_cell(cell: Cell) -> Cell:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t")) else cell
