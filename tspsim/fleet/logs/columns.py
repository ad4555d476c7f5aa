"""Rows with named columns, as in most logs of GPU clusters."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...base.errors import InputError, shorten
from .base import Log

#: Names of columns by meaning; the first that a file has counts.
NAMES: dict[str, tuple[str, ...]] = {
    "name": ("job_id", "jobid", "job", "id", "name"),
    "user": ("user", "user_id"),
    "kind": ("type", "job_type", "partition", "vc", "class"),
    "submit": ("submit_time", "submitted_time", "submit", "submit_s"),
    "start": ("start_time", "start"),
    "end": ("end_time", "finished_time", "end"),
    "runs": ("duration", "duration_s", "run_time", "runtime", "elapsedraw"),
    "gpus": ("gpu_num", "num_gpus", "gpus", "gpu", "used_num_of_gpus"),
    "nodes": ("node_num", "num_nodes", "nodes", "nnodes"),
    "limit": ("time_limit", "limit_s", "walltime"),
}


#: Texts for an unknown time.
UNKNOWN = ("", "Unknown", "None")


@dataclass
class LogColumns:
    """The columns of one file by meaning; required ones exist."""

    names: Mapping[str, str]
    at: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, header: Sequence[str], log: Log, names: Mapping[str, Sequence[str]]) -> LogColumns:
        """Columns of a header. Raises InputError where one is missing, or named twice."""
        lower = [cell.strip().lower() for cell in header]
        twice = next((cell for cell in lower if cell and lower.count(cell) > 1), None)
        if twice is not None:
            raise InputError(f"row 1, column {shorten(twice)}: stands there twice", file=shorten(log.path, 200))
        at, headers = {}, {}
        for what, words in names.items():
            word = next((word for word in words if word in lower), None)
            if word is not None:
                at[what], headers[what] = lower.index(word), header[lower.index(word)].strip()
        return cls(headers, at)

    def need(self, log: Log, what: str, *others: str, names: Mapping[str, Sequence[str]]) -> None:
        """Requires one of these columns; raises InputError."""
        if not any(option in self.at for option in (what, *others)):
            words = " or ".join(names[what])
            beside = "".join(f", or {' or '.join(names[option])}" for option in others)
            raise InputError(f"row 1: no column says {what}; name one {words}{beside}", file=shorten(log.path, 200))

    def cell(self, cells: Sequence[str], what: str) -> str:
        """A cell of a row; empty where there is no such column."""
        return cells[self.at[what]].strip() if what in self.at else ""


def in_order(row: int, cells: Sequence[str], columns: LogColumns, log: Log) -> None:
    """Checks that a row is submitted, starts and ends in this order, as far as its columns say; raises InputError."""
    last: tuple[str, float] | None = None
    for what in ("submit", "start", "end"):
        text = columns.cell(cells, what)
        if text in UNKNOWN:
            continue
        name = columns.names[what]
        at = name, log.moment(row, name, text)
        if last is not None:
            log.span(row, last, at)
        last = at


def cells_of(lines: Iterator[str], log: Log, separator: str) -> Iterator[tuple[int, list[str]]]:
    """(row, cells) of every line, the header first. Raises InputError where lengths differ."""
    reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE if separator == "|" else csv.QUOTE_MINIMAL)
    wide = 0
    for cells in reader:
        if not cells:
            continue
        wide = wide or len(cells)
        if len(cells) != wide:
            problem = f"row {reader.line_num}: {len(cells)} columns, and row 1 has {wide}"
            raise InputError(problem, file=shorten(log.path, 200))
        yield reader.line_num, cells
