"""The answers of a predictor to the rows of a table: a value with its range, or the reason for none."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from tspsim.base.errors import InputError

from .cells import Row

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

#: Fills in the answers of a table's rows.
Predictor = Callable[["pd.DataFrame", "RowAnswers"], None]


class RowAnswers:
    """One answer per row, filled in by a predictor."""

    def __init__(self, rows: int) -> None:
        #: Shape (rows,), in the unit of the table's main column; NaN where a row is skipped.
        self.predicted = np.full(rows, np.nan)
        self.low = np.full(rows, np.nan)
        self.high = np.full(rows, np.nan)
        #: Shape (rows,), text; empty where a row is predicted.
        self.reason: NDArray[Any] = np.full(rows, "", dtype=object)
        #: Further predicted columns by name, shape (rows,): numbers or words; None where there is no answer.
        self.further: dict[str, NDArray[Any]] = {}
        #: Labels that group rows beside their own columns, shape (rows,) by name; empty where a row has none.
        self.labels: dict[str, NDArray[Any]] = {}
        #: Sentence → number of rows that it applies to: borrowed parameters and assumptions.
        self.notes: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.predicted)

    def predict(self, where: Any, predicted: Any, low: Any, high: Any) -> None:
        """Set values with their ranges for the rows ``where`` (a mask, positions, or one position)."""
        self.predicted[where] = predicted
        self.low[where] = low
        self.high[where] = high

    def skip(self, where: Any, reason: str) -> None:
        """Set no value for these rows, and the reason."""
        self.predicted[where] = self.low[where] = self.high[where] = np.nan
        self.reason[where] = reason

    def also(self, where: Any, column: str, values: Any) -> None:
        """Set values of a further column."""
        if column not in self.further:
            self.further[column] = np.full(len(self), None, dtype=object)
        self.further[column][where] = values

    def label(self, where: Any, name: str, words: Any) -> None:
        """Set the labels that group rows."""
        if name not in self.labels:
            self.labels[name] = np.full(len(self), "", dtype=object)
        self.labels[name][where] = words

    def note(self, sentence: str, rows: int) -> None:
        """Add a sentence that a reader of these answers should know."""
        self.notes[sentence] = self.notes.get(sentence, 0) + rows

    def put(self, where: NDArray[Any], part: RowAnswers) -> None:
        """Copy the answers of a table whose row i is row ``where[i]`` of this one."""
        self.predict(where, part.predicted, part.low, part.high)
        self.reason[where] = part.reason
        for column, values in part.further.items():
            self.also(where, column, values)
        for name, words in part.labels.items():
            self.label(where, name, words)
        for sentence, rows in part.notes.items():
            self.note(sentence, rows)

    def check(self) -> None:
        """Check that every row has a finite positive value within its range, or a reason. A predictor that forgets a
        row has a bug, and the row must not pass for a skipped one."""
        skipped = self.reason != ""
        answered = np.isfinite(self.predicted) & (self.low <= self.predicted) & (self.predicted <= self.high)
        if not np.all(answered ^ skipped):
            where = int(np.flatnonzero(~(answered ^ skipped))[0])
            raise AssertionError(f"row {where} has no answer: {self.predicted[where]}, '{self.reason[where]}'")


def each_row(answer: Callable[[Row, int, RowAnswers], None]) -> Predictor:
    """A predictor that answers row by row; the message of an InputError is the reason why a row is skipped."""

    @wraps(answer)
    def predict(frame: pd.DataFrame, answers: RowAnswers) -> None:
        for position, row in enumerate(frame.to_dict("records")):
            try:
                answer(row, position, answers)
            except InputError as error:
                answers.skip(position, error.message)

    return predict


def unpredicted(reason: str) -> Predictor:
    """A predictor that gives one reason for every row."""

    def predict(frame: pd.DataFrame, answers: RowAnswers) -> None:
        answers.skip(slice(None), reason)

    return predict
