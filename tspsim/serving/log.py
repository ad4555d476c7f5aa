"""An engine's log: a table of runs of steps, a few bytes per run for any number of requests."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .spill_pages import PAGE, SpillPages

if TYPE_CHECKING:
    import pandas as pd


class StepKind(IntEnum):
    """Kinds of steps by content."""

    DECODE = 0
    MIXED = 1
    PREFILL = 2


#: Column → type, packed.
_TYPES = {
    "start_s": "d",
    "end_s": "d",
    "steps": "q",
    "kind": "b",
    "sequences": "i",
    "chunk_tokens": "q",
    "waiting": "i",
    "used_tokens": "q",
    "staying": "i",
}
_RECORD = np.dtype([(name, f"={code}" if code != "b" else "i1") for name, code in _TYPES.items()])
_pack = struct.Struct("=" + "".join(_TYPES.values())).pack
_PAGE_BYTES = PAGE * _RECORD.itemsize


class StepLog:
    """Runs of steps in order of time; each column is an array.

    ============== =======================================================================
    start_s, end_s of the run, on the clock of the simulation
    steps          in it, alike but for their contexts
    kind           :class:`StepKind`
    sequences      that decode, over all attention replicas
    chunk_tokens   of prompts, computed in it
    waiting        requests that were not admitted when it began
    used_tokens    of the cache when it ended, in whole blocks
    staying        sequences that put out a token in its last step and have more to come
    ============== =======================================================================
    """

    COLUMNS = tuple(_TYPES)
    TYPE = _RECORD

    def __init__(self) -> None:
        #: Preemptions by time of readmission: number of the request, when it lost its cache, when it was readmitted.
        self.preemptions: tuple[array[int], array[float], array[float]] = (array("q"), array("d"), array("d"))
        self._spilled = SpillPages(_RECORD)
        #: Packed runs of a page that is not full.
        self._packed = bytearray()
        #: The last run, which further steps may extend, and the conditions for that: its end, its sequences and its
        #: waiting requests.
        self._run: tuple[Any, ...] | None = None
        self._last: tuple[float, int, int] | None = None

    def add(
        self,
        start_s: float,
        end_s: float,
        steps: int,
        kind: StepKind,
        sequences: int,
        chunk_tokens: int,
        waiting: int,
        used_tokens: int,
        staying: int | None = None,
    ) -> None:
        """Adds a run; merges decode steps that continue the last run. ``staying`` None: all decoding sequences stay,
        and no other."""
        run = self._run
        if kind is StepKind.DECODE and chunk_tokens == 0:
            if self._last == (start_s, sequences, waiting):
                assert run is not None
                start_s, steps = run[0], run[2] + steps
            elif run is not None:
                self._keep(run)
            self._last = end_s, sequences, waiting
        else:
            if run is not None:
                self._keep(run)
            self._last = None
        stay = sequences if staying is None else staying
        self._run = start_s, end_s, steps, kind, sequences, chunk_tokens, waiting, used_tokens, stay

    def _keep(self, run: tuple[Any, ...]) -> None:
        self._packed += _pack(*run)
        if len(self._packed) == _PAGE_BYTES:
            self._spilled.append(np.frombuffer(bytes(self._packed), dtype=_RECORD))
            self._packed.clear()

    def add_preemption(self, number: int, lost_s: float, admitted_s: float) -> None:
        """A preempted request has been readmitted."""
        numbers, lost, admitted = self.preemptions
        numbers.append(number)
        lost.append(lost_s)
        admitted.append(admitted_s)

    def __len__(self) -> int:
        return self._spilled.pages * PAGE + len(self._packed) // _RECORD.itemsize + (self._run is not None)

    def pieces(self) -> Iterator[NDArray[Any]]:
        """All runs in order, some thousand at a time: records with the columns' names."""
        yield from self._spilled
        last = b"" if self._run is None else _pack(*self._run)
        if self._packed or last:
            yield np.frombuffer(bytes(self._packed) + last, dtype=_RECORD)

    def column(self, name: str) -> NDArray[np.generic]:
        """A column, one value per run."""
        pieces = [piece[name] for piece in self.pieces()]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=_RECORD[name])

    def to_frame(self) -> pd.DataFrame:
        """All columns."""
        import pandas as pd

        return pd.DataFrame({name: self.column(name) for name in self.COLUMNS})
