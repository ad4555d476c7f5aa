"""Logs of jobs that have run: the family of their forms.

A form is told by a file's first lines, so that a scenario names the file alone.
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
        Seconds since any origin that the file has.
    runs_s
        How long it ran.
    gpus
        In all; 0 where the log counts nodes alone.
    nodes
        0 where the log counts GPUs alone.
    limit_s
        What its user asked for; None where the log does not say.
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
    """How a log is written."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    def reads(self, head: Sequence[str]) -> bool:
        """Whether a file that begins with these lines is one."""

    def rows(self, lines: Iterator[str], log: Log) -> Iterator[Logged]:
        """Its jobs; ``log`` takes what is left out and makes errors."""


LOG_FORMS: Registry[LogForm] = Registry("form of a log of jobs", "tspsim.job_logs", LogForm)


class Log:
    """A log under way: where its reader is, and what was left out and why."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.left_out: dict[str, int] = {}

    def leave_out(self, why: str) -> None:
        """Count a row that is no job to run."""
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def wrong(self, row: int, column: str, value: object, allowed: str) -> InputError:
        """One line with file, row, column, and what is allowed."""
        told = f"row {row}, column {column}: {shorten(value)!r} is not {allowed}"
        return InputError(told, file=shorten(self.path, 200))

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
        """Seconds of a time, as a number or in ISO 8601; without a zone it is UTC; raises InputError."""
        try:
            value = float(text)
        except ValueError:
            pass
        else:
            if isfinite(value):
                return value
            raise self.wrong(row, column, text, "a time: seconds, or such as 2023-05-17T08:30:00")
        try:
            told = datetime.fromisoformat(text.strip())
        except ValueError:
            raise self.wrong(row, column, text, "a time: seconds, or such as 2023-05-17T08:30:00") from None
        return (told if told.tzinfo is not None else told.replace(tzinfo=UTC)).timestamp()

    def span(self, row: int, start: tuple[str, float], end: tuple[str, float]) -> float:
        """Seconds between two times; raises InputError where they go back."""
        if end[1] < start[1]:
            raise InputError(
                f"row {row}, column {end[0]}: lies {start[1] - end[1]:g} s before {start[0]}; times do not go back",
                file=shorten(self.path, 200),
            )
        return end[1] - start[1]
