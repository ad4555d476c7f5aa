"""What an engine did, as a table of runs of steps: a few bytes a run, whatever its requests are."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


class Kind(IntEnum):
    """What a step computes."""

    DECODE = 0
    MIXED = 1
    PREFILL = 2


#: Column → type of its array.
_TYPES = {
    "start_s": "d",
    "end_s": "d",
    "steps": "q",
    "kind": "b",
    "sequences": "i",
    "chunk_tokens": "q",
    "waiting": "i",
    "used_tokens": "q",
}


class StepLog:
    """Runs of steps, in order of time; each column an array.

    ============== =======================================================================
    start_s, end_s of the run, on the clock of the simulation
    steps          in it, alike but for their contexts
    kind           :class:`Kind`
    sequences      that decode, over all attention replicas
    chunk_tokens   of prompts, computed in it
    waiting        requests that were not admitted when it began
    used_tokens    of the cache when it ended, in whole blocks
    ============== =======================================================================

    Attributes
    ----------
    put_back
        Preemptions, in order of their ends: number of the request, when it lost its cache, when it was admitted again.
    """

    COLUMNS = tuple(_TYPES)

    def __init__(self) -> None:
        self._columns: dict[str, array[Any]] = {name: array(code) for name, code in _TYPES.items()}
        self.put_back: tuple[array[int], array[float], array[float]] = (array("q"), array("d"), array("d"))
        self._appends = tuple([column.append for column in self._columns.values()])
        #: What the last run must be followed by to go on: where it ended, its sequences and those that waited.
        self._last: tuple[float, int, int] | None = None

    def add(
        self,
        start_s: float,
        end_s: float,
        steps: int,
        kind: Kind,
        sequences: int,
        chunk_tokens: int,
        waiting: int,
        used_tokens: int,
    ) -> None:
        """A run; decode steps that go on like those before them are one run with them."""
        decodes = kind is Kind.DECODE and chunk_tokens == 0
        if decodes and self._last == (start_s, sequences, waiting):
            columns = self._columns
            columns["end_s"][-1], columns["used_tokens"][-1] = end_s, used_tokens
            columns["steps"][-1] += steps
        else:
            row = (start_s, end_s, steps, kind, sequences, chunk_tokens, waiting, used_tokens)
            for append, value in zip(self._appends, row, strict=True):
                append(value)
        self._last = (end_s, sequences, waiting) if decodes else None

    def add_put_back(self, number: int, lost_s: float, admitted_s: float) -> None:
        """A request that was preempted has been admitted again."""
        numbers, lost, admitted = self.put_back
        numbers.append(number)
        lost.append(lost_s)
        admitted.append(admitted_s)

    def __len__(self) -> int:
        return len(self._columns["steps"])

    def column(self, name: str) -> NDArray[np.generic]:
        """Its values, one a run."""
        return np.array(self._columns[name])

    def to_frame(self) -> pd.DataFrame:
        """All columns."""
        import pandas as pd

        return pd.DataFrame({name: self.column(name) for name in self.COLUMNS})
