"""Read the tables of a folder, predict every row, and measure the errors of the predictions."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tspsim.base.display import Pictured, Progress, html_table
from tspsim.base.errors import InputError, shorten

from ..base.memo import once
from .answers import RowAnswers
from .statistics import errors
from .tables import TABLES, MeasuredTable

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

#: Version of the JSON layout.
SCHEMA_VERSION = 1
#: Columns whose groups have fewer values than this are listed by value; columns with more values form no groups.
MOST_GROUPS = 400

#: Counts above this are not shapes.
LARGEST_COUNT = 1e15

#: Some complete and checked rows of the table at a path.
Rows = tuple[str, "pd.DataFrame"]
#: How the rows of all tables are predicted: :func:`map`, or a map over processes that keeps the order.
Mapper = Callable[[Callable[[Rows], RowAnswers], Sequence[Rows]], Iterable[RowAnswers]]


@dataclass(frozen=True)
class TableOutcome:
    """One table with its predictions."""

    #: Description of the table.
    table: MeasuredTable
    #: Cells of the table as text, as in the file.
    rows: pd.DataFrame = field(repr=False)
    #: One answer per row.
    answers: RowAnswers = field(repr=False)

    @once
    def measured(self) -> NDArray[np.float64]:
        """The main column, shape (rows,); NaN if a cell is not a number."""
        return _numbers(self.rows, self.table.column)

    @once
    def predicted(self) -> NDArray[np.bool_]:
        """Which rows have a prediction, shape (rows,)."""
        finite: NDArray[np.bool_] = np.isfinite(self.answers.predicted)
        return finite

    def error(self, where: Any = slice(None)) -> dict[str, Any]:
        """Errors of some rows (see :func:`statistics.errors`)."""
        parts = (self.measured, self.answers.predicted, self.answers.low, self.answers.high)
        return errors(*(part[where] for part in parts))

    def summary(self) -> dict[str, Any]:
        """The table's part of the JSON."""
        answers = self.answers
        reasons, counts = np.unique(answers.reason[answers.reason != ""].astype(str), return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {
            "rows": len(answers),
            "predicted": int(self.predicted.sum()),
            "column": self.table.column,
            "skipped": {str(reasons[i]): int(counts[i]) for i in order},
            **self.error(),
            "by": {", ".join(columns): self._by(columns) for columns in self.table.groups if self._has(columns)},
            "further": {column: self._further(column) for column in answers.further},
            "notes": dict(sorted(answers.notes.items())),
        }

    def _has(self, columns: tuple[str, ...]) -> bool:
        return all(column in self.rows or column in self.answers.labels for column in columns)

    def _words(self, column: str) -> NDArray[Any]:
        """The cell of every row in a column, or its label."""
        return self.answers.labels[column] if column in self.answers.labels else self.rows[column].to_numpy()

    def _by(self, columns: tuple[str, ...]) -> dict[str, Any]:
        """Errors by the values of some columns."""
        rows_of: dict[str, list[int]] = {}
        for row, cells in enumerate(zip(*(self._words(column) for column in columns), strict=True)):
            if all(cells) or not any(column in self.answers.labels for column in columns):
                rows_of.setdefault(", ".join(cells), []).append(row)
        by_value: dict[str, Any] = {}
        for value in sorted(rows_of):
            where = np.array(rows_of[value])
            by_value[value] = {"rows": len(where), "predicted": int(self.predicted[where].sum()), **self.error(where)}
            if any(column in self.answers.labels for column in columns):
                by_value[value]["further"] = {column: self._further(column, where) for column in self.answers.further}
        return dict(list(by_value.items())[:MOST_GROUPS])

    def _further(self, column: str, where: Any = slice(None)) -> dict[str, Any]:
        """Errors of a further column: for numbers as for the main column, for words the share of right ones."""
        cells = self.answers.further[column][where]
        present = np.array([value is not None for value in cells], dtype=bool)
        if any(isinstance(value, str) for value in cells):
            name = column.removeprefix("predicted_")
            right = [
                truth == value for truth, value in zip(self.rows[name][where][present], cells[present], strict=True)
            ] if name in self.rows else []  # fmt: skip
            return {"predicted": int(present.sum()), "right": sum(right) / len(right) if right else None}
        values = np.array([np.nan if value is None else value for value in cells], dtype=float)
        error = errors(_numbers(self.rows, column)[where], values, values, values)
        return {"predicted": int(present.sum())} | {k: v for k, v in error.items() if k != "in_range"}

    def csv(self) -> str:
        """The table's CSV with further columns ``predicted``, ``low``, ``high``, ``predicted_…`` and ``reason``."""
        out = self.rows.copy()
        answers = self.answers
        for name in ("predicted", "low", "high"):
            out[name] = _cells(getattr(answers, name))
        for column, values in answers.further.items():
            name = column if column.startswith("predicted_") else f"predicted_{column}"
            out[name] = _cells(values)
        out["reason"] = answers.reason
        text = io.StringIO()
        out.to_csv(text, index=False, lineterminator="\n")
        return text.getvalue()


@dataclass(frozen=True, repr=False)
class Validation(Pictured):
    """Every table of a folder with its predictions, in the registry's order, and the CSV files of no known table."""

    outcomes: tuple[TableOutcome, ...]
    unknown: tuple[str, ...] = ()

    def __repr__(self) -> str:
        rows = sum(outcome.summary()["predicted"] for outcome in self.outcomes)
        return f"<Validation: {rows:,} rows of {len(self.outcomes)} tables predicted; to_frame() has their errors>"

    def _repr_html_(self) -> str:
        frame = self.to_frame()
        rows = [
            [path, *(f"{row[key]:,}" for key in ("predicted", "rows")),
             *("–" if row[key] is None or row[key] != row[key] else f"{100.0 * row[key]:.1f} %"
               for key in ("median_ape", "mape", "p90_ape", "bias"))]
            for path, row in zip(frame.index, frame.to_dict("records"), strict=True)
        ]  # fmt: skip
        columns = ("table", "predicted", "rows", "median error", "mean", "nine of ten below", "bias")
        return html_table("Predictions against measurements", columns, rows)

    def to_frame(self) -> pd.DataFrame:
        """One row per table: its errors as shares of one, and its number of predicted rows."""
        import pandas as pd

        keys = ("median_ape", "mape", "p90_ape", "bias", "predicted", "rows")
        rows = [{key: outcome.summary()[key] for key in keys} for outcome in self.outcomes]
        return pd.DataFrame(rows, index=pd.Index([outcome.table.path for outcome in self.outcomes], name="table"))

    def outcome(self, path: str) -> TableOutcome:
        """The outcome of the table at ``path``; raises KeyError."""
        return next(outcome for outcome in self.outcomes if outcome.table.path == path)

    def to_json(self) -> dict[str, Any]:
        """The JSON of the contract; errors are shares of one."""
        tables = {outcome.table.path: outcome.summary() for outcome in self.outcomes}
        return {"schema": SCHEMA_VERSION, "tables": tables, "unknown_files": list(self.unknown)}

    def write_rows(self, folder: Path) -> None:
        """Write one file per table under ``folder``, at the table's own relative path.

        Raises
        ------
        InputError
            A file cannot be written.
        """
        from tspsim.base.files import atomic_write

        for outcome in self.outcomes:
            atomic_write(folder / outcome.table.path, outcome.csv())


def reference_folder() -> Path:
    """The folder of rows that ship with the package, each with its source."""
    return Path(str(resources.files("tspsim.validation").joinpath("reference")))


def validate(
    folder: Path | str | None = None,
    *,
    tables: Mapping[str, pd.DataFrame] | None = None,
    progress: Progress | None = None,
    mapper: Mapper = map,
) -> Validation:
    """Predict every row of every known table under ``folder``.

    Parameters
    ----------
    folder
        The layout of docs/validation.md, with any subset of the tables; None: the rows that ship with the package,
        or only ``tables``.
    tables
        Further rows, cells as text, by the path of their table.
    progress
        Called with a table's path and the share of the work done before it.
    mapper
        Maps the prediction over rows; the answers do not depend on it.

    Raises
    ------
    InputError
        The folder does not exist, holds no known table, or a file in it is not a table.
    """
    more = tables or {}
    root = reference_folder() if folder is None else Path(folder)
    if not root.is_dir():
        raise InputError("is not a folder of measured tables", file=shorten(root, 200))
    read_too = folder is not None or not more
    paths = [path for path in TABLES if read_too and (root / path).is_file()]
    if not paths and not more:
        raise InputError(
            f"holds none of the known tables, such as {', '.join(list(TABLES)[:3])}", file=shorten(root, 200)
        )
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.csv")) if read_too else []
    checked = []
    for path in [path for path in TABLES if path in paths or path in more]:
        parts_of = [*([read(root / path)] if path in paths else []), *([more[path]] if path in more else [])]
        checked.append(CheckedTable.of(TABLES[path], _joined(parts_of)))
    work = [rows for table in checked for rows in table.work]
    done = iter(mapper(predict_rows, work))
    outcomes: list[TableOutcome] = []
    count = 0
    for table in checked:
        parts = []
        for rows in table.work:
            if progress is not None:
                progress(rows[0], count / len(work))
            parts.append(next(done))
            count += 1
        outcomes.append(table.outcome(parts))
    return Validation(tuple(outcomes), tuple(file for file in files if file not in TABLES))


def _joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The rows of one table below each other; cells missing from a part are empty."""
    import pandas as pd

    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True).fillna("")


def read(file: Path) -> pd.DataFrame:
    """The cells of a CSV file as text. Raises InputError if it is not a table."""
    import pandas as pd

    try:
        return pd.read_csv(file, dtype=str, keep_default_na=False, encoding="utf-8")
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except (OSError, ValueError) as error:  # pandas' parser errors and bad encodings are ValueErrors
        raise InputError(f"cannot be read as CSV: {shorten(error, 120)}", file=shorten(file, 200)) from None


@dataclass(frozen=True)
class CheckedTable:
    """A table whose incomplete rows have their reason, so that predictors see only complete rows.

    ``work`` holds the other rows in pieces, as the table divides them, and ``places`` the positions of their rows.
    """

    table: MeasuredTable
    rows: pd.DataFrame
    answers: RowAnswers
    work: tuple[Rows, ...]
    places: tuple[NDArray[Any], ...]

    @classmethod
    def of(cls, table: MeasuredTable, rows: pd.DataFrame) -> CheckedTable:
        answers = RowAnswers(len(rows))
        if table.mend is not None and all(name in rows for name in table.texts):
            mended, notes = table.mend(rows)
            answers.notes.update(notes)
        else:
            mended = rows
        frame, whole = _checked(table, mended, answers)
        pieces = [list(piece) for piece in table.pieces(frame) if len(piece)]
        work = ((table.path, _part(frame, piece)) for piece in pieces)
        return cls(table, rows, answers, tuple(work), tuple(whole[piece] for piece in pieces))

    def outcome(self, parts: Iterable[RowAnswers]) -> TableOutcome:
        """The outcome with the answers to the work, in its order."""
        for places, part in zip(self.places, parts, strict=True):
            self.answers.put(places, part)
        self.answers.check()
        return TableOutcome(self.table, self.rows, self.answers)


def _part(frame: pd.DataFrame, piece: list[int]) -> pd.DataFrame:
    """Some rows, numbered from 0; adjacent rows are not copied."""
    neighbours = piece == list(range(piece[0], piece[0] + len(piece)))
    rows = frame.iloc[piece[0] : piece[0] + len(piece)] if neighbours else frame.iloc[piece]
    return rows.reset_index(drop=True)


def predict_rows(rows: Rows) -> RowAnswers:
    """Predict some rows of a table, in any process."""
    path, frame = rows
    answers = RowAnswers(len(frame))
    TABLES[path].predict(frame, answers)
    return answers


def predict(table: MeasuredTable, rows: pd.DataFrame) -> TableOutcome:
    """Predict one table."""
    checked = CheckedTable.of(table, rows)
    return checked.outcome(map(predict_rows, checked.work))


def whole_rows(table: MeasuredTable, rows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """The rows with every cell that the table needs, and counts of rows by missing cell."""
    answers = RowAnswers(len(rows))
    frame, _ = _checked(table, rows, answers)
    reasons, counts = np.unique(answers.reason[answers.reason != ""].astype(str), return_counts=True)
    return frame, dict(zip(reasons.tolist(), counts.tolist(), strict=True))


def _checked(table: MeasuredTable, rows: pd.DataFrame, answers: RowAnswers) -> tuple[pd.DataFrame, NDArray[Any]]:
    """The complete rows with numbers as numbers, and their positions; incomplete rows get their reason."""
    missing = [name for name in (*table.counts, *table.numbers, *table.texts) if name not in rows]
    if missing:
        answers.skip(slice(None), f"column {missing[0]} is missing")
        return rows.iloc[:0], np.zeros(0, dtype=int)
    frame = rows.copy()
    for name in table.texts:
        answers.skip(frame[name].str.strip().to_numpy() == "", f"{name} is empty")
    for name in (*table.counts, *table.numbers):
        values = frame[name] = _numbers(rows, name)
        answers.skip(~(np.isfinite(values) & (values >= 0.0)), f"{name} is not a number of zero or more")
        if name in table.counts:
            whole_number = (values >= 1.0) & (values <= LARGEST_COUNT) & (values == np.round(values))
            answers.skip(~whole_number, f"{name} is not a whole number of one or more")
    whole = np.flatnonzero(answers.reason == "")
    return frame.iloc[whole].reset_index(drop=True), whole


def _numbers(rows: pd.DataFrame, column: str) -> NDArray[np.float64]:
    import pandas as pd

    if column not in rows:
        return np.full(len(rows), np.nan)
    return pd.to_numeric(rows[column], errors="coerce").to_numpy(float)


def _cells(values: NDArray[Any]) -> list[str]:
    """The cells of a CSV: six digits, empty if there is no value."""
    return [
        value if isinstance(value, str) else "" if value is None or not np.isfinite(value) else f"{value:.6g}"
        for value in values
    ]
