"""What an engine did, as a table of runs of steps: a few bytes a run, whatever its requests are."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray


class Kind(IntEnum):
    """What a step computes."""

    DECODE = 0
    MIXED = 1
    PREFILL = 2


class StepLog:
    """Runs of steps, in order of time; each column an array.

    ============== =======================================================================
    start_s, end_s of the run, on the clock of the simulation
    steps          in it, alike but for their contexts
    kind           :class:`Kind`
    sequences      that decode, over all attention replicas
    chunk_tokens   of prompts, computed in it
    waiting        requests that were not admitted when it began
    used_tokens    of the cache when it ended: whole blocks where the cache is limited
    ============== =======================================================================
    """

    #: Column → type of its array.
    COLUMNS: ClassVar[dict[str, str]] = {
        "start_s": "d",
        "end_s": "d",
        "steps": "l",
        "kind": "b",
        "sequences": "i",
        "chunk_tokens": "l",
        "waiting": "l",
        "used_tokens": "q",
    }

    def __init__(self) -> None:
        self._columns = [array(code) for code in self.COLUMNS.values()]
        self._append = tuple(column.append for column in self._columns)

    def add(self, *row: float) -> None:
        """One run, in the order of the columns."""
        for append, value in zip(self._append, row, strict=True):
            append(value)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._columns[0])

    def column(self, name: str) -> NDArray[np.generic]:
        """Its values, one a run."""
        return np.array(self._columns[list(self.COLUMNS).index(name)])

    def to_frame(self) -> pd.DataFrame:
        """All columns."""
        return pd.DataFrame({name: self.column(name) for name in self.COLUMNS})
