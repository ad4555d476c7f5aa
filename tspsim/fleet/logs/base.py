"""Logs of finished jobs: the family of their forms.

A file's first lines identify its form, so a scenario names only the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Protocol

from ...base.errors import InputError, shorten
from ...base.registry import Registry


@dataclass(frozen=True, slots=True)
class Logged:
    """One job of a log.

    Attributes
    ----------
    row
        Line of the file, from 1.
    submit_s
        Seconds since the file's own origin.
    runs_s
        Seconds that it ran.
    gpus
        GPUs in all; 0 where the log has only nodes.
    nodes
        Nodes; 0 where the log has only GPUs.
    limit_s
        Time limit requested by its user; None where the log has none.
    """

    row: int
    name: str
    user: str
    kind: str
    submit_s: float
    runs_s: float
    gpus: int
    nodes: int
    limit_s: float | None = None


class LogForm(Protocol):
    """The form of a log."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    def reads(self, head: Sequence[str]) -> bool:
        """Whether a file that begins with these lines has this form."""

    def rows(self, lines: Iterator[str], log: Log) -> Iterator[Logged]:
        """The jobs of a file; ``log`` counts skipped rows and makes errors."""


LOG_FORMS: Registry[LogForm] = Registry("form of a log of jobs", "tspsim.job_logs", LogForm)


class Log:
    """A log during reading: its path, and the skipped rows by reason."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_out: dict[str, int] = {}

    def leave_out(self, why: str) -> None:
        """Counts a skipped row."""
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def wrong(self, row: int, column: str, value: object, allowed: str) -> InputError:
        """An error with file, row, column, and what is allowed."""
        problem = f"row {row}, column {column}: {shorten(value)!r} is not {allowed}"
        return InputError(problem, file=shorten(self.path, 200))

    def number(self, row: int, column: str, text: str, minimum: float = 0.0) -> float:
        """A number of a cell, at least ``minimum``; raises InputError."""
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not isfinite(value) or value < minimum:
            raise self.wrong(row, column, text, f"a number of at least {minimum:g}")
        return value

    def whole(self, row: int, column: str, text: str) -> int:
        """A whole number of a cell, from 0 on; raises InputError."""
        value = self.number(row, column, text)
        if value != int(value) or value > 2**31:
            raise self.wrong(row, column, text, "a whole number")
        return int(value)

    def moment(self, row: int, column: str, text: str) -> float:
        """Seconds of a time: a number, or ISO 8601 (UTC without a zone); raises InputError."""
        try:
            value = float(text)
        except ValueError:
            pass
        else:
            if isfinite(value):
                return value
            raise self.wrong(row, column, text, "a time: seconds, or such as 2023-05-17T08:30:00")
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            raise self.wrong(row, column, text, "a time: seconds, or such as 2023-05-17T08:30:00") from None
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()

    def span(self, row: int, start: tuple[str, float], end: tuple[str, float]) -> float:
        """Seconds between two times. Raises InputError where they go back."""
        if end[1] < start[1]:
            raise InputError(
                f"row {row}, column {end[0]}: lies {start[1] - end[1]:g} s before {start[0]}; times do not go back",
                file=shorten(self.path, 200),
            )
        return end[1] - start[1]
