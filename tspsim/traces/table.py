"""A trace as one table: a row is a kernel, with facts of the trace beside the table."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas

#: Columns of numbers, with their types.
NUMBERS: dict[str, str] = {
    "rank": "i",
    "device": "i",
    "start_s": "d",
    "duration_s": "d",
    "launch_s": "d",
    "value": "d",
    "layer": "i",
    "step": "i",
    "bytes": "d",
    "graph_node": "q",
    "wait_s": "d",
}
#: Values for numbers that are not stated; 0 for other columns.
EMPTY = {"layer": -1, "step": -1, "graph_node": -1, "launch_s": float("nan"), "wait_s": float("nan")}
#: Columns of words; each distinct word is stored once.
WORDS = ("stream", "name", "kind", "operator", "shapes", "grid", "phase", "collective", "group")
COLUMNS = (
    "rank", "device", "stream", "start_s", "duration_s", "name", "kind", "operator", "shapes", "grid", "phase",
    "layer", "step", "collective", "bytes", "group", "graph_node", "launch_s", "wait_s", "value",
)  # fmt: skip


@dataclass(frozen=True)
class Mark:
    """A stretch of time that the program annotated: a step or a part of one."""

    rank: int
    name: str
    start_s: float
    end_s: float
    thread: str = ""


@dataclass(frozen=True)
class TracedDevice:
    """The device of a trace as its file states it; ``name`` is blank where the file has none."""

    name: str = ""
    compute_units: int = 0
    memory_bytes: int = 0


NO_MACHINE = TracedDevice()


@dataclass(frozen=True)
class TracedGroup:
    """Ranks that communicate with each other."""

    name: str
    size: int
    ranks: tuple[int, ...] = ()


class Words:
    """A column of words: a code for each row, and each distinct word once."""

    __slots__ = ("_of", "codes", "words")

    def __init__(self) -> None:
        self.codes = array("i")
        self.words: list[str] = []
        self._of: dict[str, int] = {}

    def code(self, word: str) -> int:
        number = self._of.get(word)
        if number is None:
            number = self._of[word] = len(self.words)
            self.words.append(word)
        return number

    def append(self, word: str) -> None:
        self.codes.append(self.code(word))

    def extend(self, words: Sequence[str]) -> None:
        """Append words, one for each row."""
        for word in dict.fromkeys(words):
            self.code(word)
        self.codes.extend(map(self._of.__getitem__, words))

    @classmethod
    def of_codes(cls, codes: NDArray[np.int32], words: Sequence[str]) -> Words:
        """A column from codes, where −1 is the empty word; words without a row are left out."""
        column = cls()
        used = np.flatnonzero(np.bincount(codes + 1, minlength=1))
        numbers = np.zeros(len(words) + 1, np.int32)
        numbers[used] = [column.code(words[place - 1] if place else "") for place in used.tolist()]
        column.codes.frombytes(numbers[codes + 1].data.cast("B"))
        return column

    def of(self, row: int) -> str:
        """The word of a row."""
        return self.words[self.codes[row]]


class Rows:
    """Rows that grow while a file is read; :meth:`columns` returns them as arrays."""

    def __init__(self) -> None:
        self.numbers: dict[str, array[Any]] = {name: array(kind) for name, kind in NUMBERS.items()}
        self.words = {name: Words() for name in WORDS}

    @classmethod
    def of(
        cls,
        count: int,
        numbers: Iterable[tuple[str, NDArray[Any]]],
        words: Iterable[tuple[str, NDArray[np.int32], Sequence[str]]],
    ) -> Rows:
        """``count`` rows from whole columns; a column of words is codes and their words. Columns come one at a time, so
        that their source can free each one. Left-out columns are empty, as in :meth:`add`."""
        rows = cls()
        for name, column in numbers:
            rows.numbers[name].frombytes(np.ascontiguousarray(column, NUMBERS[name]).data.cast("B"))
        for name, codes, own in words:
            rows.words[name] = Words.of_codes(codes, own)
        for name, values in rows.numbers.items():
            if not len(values):
                values.extend(array(NUMBERS[name], [EMPTY.get(name, 0)]) * count)
        for word_column in rows.words.values():
            if not len(word_column.codes):
                word_column.codes.extend(array("i", [word_column.code("")]) * count)
        return rows

    def __len__(self) -> int:
        return len(self.numbers["start_s"])

    def add(
        self,
        *,
        rank: int,
        start_s: float,
        duration_s: float,
        name: str,
        kind: str = "",
        device: int = 0,
        stream: str = "",
        operator: str = "",
        shapes: str = "",
        grid: str = "",
        phase: str = "",
        layer: int = -1,
        step: int = -1,
        collective: str = "",
        size_bytes: float = 0.0,
        group: str = "",
        graph_node: int = -1,
        launch_s: float = float("nan"),
        wait_s: float = float("nan"),
        value: float = 0.0,
    ) -> None:
        """Append one row. Times are in seconds; ``size_bytes`` is the data of a collective or copy, ``launch_s`` the
        time of the launch, ``wait_s`` the waiting in a collective, and ``value`` a log's measure in its own unit."""
        numbers, words = self.numbers, self.words
        numbers["rank"].append(rank)
        numbers["device"].append(device)
        numbers["start_s"].append(start_s)
        numbers["duration_s"].append(duration_s)
        numbers["layer"].append(layer)
        numbers["step"].append(step)
        numbers["bytes"].append(size_bytes)
        numbers["graph_node"].append(graph_node)
        numbers["launch_s"].append(launch_s)
        numbers["wait_s"].append(wait_s)
        numbers["value"].append(value)
        words["stream"].append(stream)
        words["name"].append(name)
        words["kind"].append(kind)
        words["operator"].append(operator)
        words["shapes"].append(shapes)
        words["grid"].append(grid)
        words["phase"].append(phase)
        words["collective"].append(collective)
        words["group"].append(group)

    def columns(self) -> tuple[dict[str, NDArray[Any]], dict[str, list[str]]]:
        """Arrays by name (of words their codes), and the words of each column. Nothing is copied, so no rows can
        follow."""
        arrays: dict[str, NDArray[Any]] = {
            name: np.frombuffer(column, dtype=column.typecode) if len(column) else np.zeros(0, column.typecode)
            for name, column in self.numbers.items()
        }
        for name, column in self.words.items():
            arrays[name] = np.frombuffer(column.codes, np.int32) if len(column.codes) else np.zeros(0, np.int32)
        return arrays, {name: column.words for name, column in self.words.items()}


@dataclass(frozen=True)
class Trace:
    """The content of one or more files.

    Attributes
    ----------
    columns
        Arrays of :data:`COLUMNS`, in order of rank and start; columns of words hold numbers of :attr:`words`.
    format, files
        The files, and the reader of them.
    machine
        The device as the files name it; ``device`` is its name in the catalog, empty where none fits.
    ranks, world_size
        The ranks in the files, and the number of ranks in the run (0: not stated).
    marks
        Annotations of the program on its host threads.
    missing
        Facts that the files do not state, in sentences.
    """

    columns: Mapping[str, NDArray[Any]]
    words: Mapping[str, Sequence[str]]
    format: str
    files: tuple[Path, ...] = ()
    machine: TracedDevice = NO_MACHINE
    device: str = ""
    world_size: int = 0
    groups: tuple[TracedGroup, ...] = ()
    marks: tuple[Mark, ...] = ()
    missing: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["start_s"])

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(np.unique(self.columns["rank"]).tolist())

    def word(self, column: str) -> NDArray[Any]:
        """A column of words as an object array."""
        words = np.array([*self.words[column], ""], dtype=object)
        values: NDArray[Any] = words[self.columns[column]]
        return values

    @property
    def end_s(self) -> NDArray[np.float64]:
        ends: NDArray[np.float64] = self.columns["start_s"] + self.columns["duration_s"]
        return ends

    def of(self, rows: NDArray[Any]) -> Trace:
        """The trace with some rows: their numbers, or a mask."""
        from dataclasses import replace

        return replace(self, columns={name: column[rows] for name, column in self.columns.items()})

    def frame(self) -> pandas.DataFrame:
        """All rows as a DataFrame with :data:`COLUMNS`."""
        import pandas

        return pandas.DataFrame(
            {
                name: pandas.Categorical.from_codes(self.columns[name], pandas.Index(list(self.words[name])))
                if name in WORDS
                else self.columns[name]
                for name in COLUMNS
            }
        )

    def write(self, path: Path) -> None:
        """Write the table as Parquet, whole or not at all; the file's metadata have the facts beside it."""
        import json

        import pyarrow
        import pyarrow.parquet

        from ..base.files import replacing

        columns = [
            pyarrow.DictionaryArray.from_arrays(self.columns[name], list(self.words[name]))
            if name in WORDS
            else pyarrow.array(self.columns[name])
            for name in COLUMNS
        ]
        table = pyarrow.table(columns, names=list(COLUMNS))
        about = {"format": self.format, "device": self.device, "world_size": self.world_size, "missing": self.missing}
        with replacing(path) as temporary:
            pyarrow.parquet.write_table(
                table.replace_schema_metadata({"tspsim.trace": json.dumps(about)}), temporary, compression="zstd"
            )

    def time_by(self, column: str) -> dict[str, float]:
        """Seconds by the words of a column, the longest first."""
        sums = np.bincount(self.columns[column], self.columns["duration_s"], len(self.words[column]))
        pairs = zip(self.words[column], sums.tolist(), strict=True)
        return dict(sorted(((word, seconds) for word, seconds in pairs if seconds > 0.0), key=lambda pair: -pair[1]))


def busy_s(starts: NDArray[Any], ends: NDArray[Any]) -> float:
    """Length of the union of intervals: times in which several streams work count once.

    >>> import numpy as np
    >>> busy_s(np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0]))
    4.0
    """
    if not len(starts):
        return 0.0
    order = np.argsort(starts, kind="stable")
    first, last = starts[order], np.maximum.accumulate(ends[order])
    gaps = np.maximum(first[1:] - last[:-1], 0.0)
    return float(last[-1] - first[0] - gaps.sum())


def step_length_s(trace: Trace) -> float:
    """The median time from a step's first kernel to the next step's, of one rank; of a single step to its last
    kernel's end. 0 without steps."""
    numbers = trace.columns["step"]
    steps = np.unique(numbers[numbers >= 0])
    if not len(steps):
        return 0.0
    begins = np.array([trace.columns["start_s"][numbers == step].min() for step in steps])
    if len(steps) > 1:
        return float(np.median(np.diff(begins)))
    own = numbers == steps[0]
    begin = at_work_from(trace.columns["start_s"][own], trace.end_s[own])
    return float(trace.end_s[own].max() - trace.columns["start_s"][own][begin])


def at_work_from(starts: NDArray[Any], ends: NDArray[Any]) -> int:
    """The first kernel of a step behind the last stretch in which the device waits for longer than the step works; 0
    where most kernels ran before it. A host launches some kernels ahead."""
    last = np.maximum.accumulate(ends)
    long = np.flatnonzero(starts[1:] - last[:-1] > busy_s(starts, ends))
    first = int(long[-1]) + 1 if len(long) else 0
    return first if 2 * first <= len(starts) else 0


def joined(pieces: Iterable[tuple[Mapping[str, NDArray[Any]], Mapping[str, Sequence[str]]]]) -> tuple[Any, Any]:
    """Columns of several ranks as one, with new codes for the words."""
    parts = list(pieces)
    if len(parts) == 1:
        return parts[0]
    words: dict[str, list[str]] = {}
    columns: dict[str, NDArray[Any]] = {name: np.concatenate([part[0][name] for part in parts]) for name in NUMBERS}
    for name in WORDS:
        number_of: dict[str, int] = {}
        codes = []
        for arrays, own in parts:
            numbers = np.array(
                [number_of.setdefault(word, len(number_of)) for word in own[name]] or [0], dtype=np.int32
            )
            codes.append(numbers[arrays[name]])
        columns[name] = np.concatenate(codes)
        words[name] = list(number_of)
    return columns, words
