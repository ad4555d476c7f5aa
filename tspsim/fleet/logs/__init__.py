"""Logs of finished jobs: one registered form per file, recognized by a file's first lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from ...base.errors import InputError, shorten
from . import philly, sacct, swf, table
from .base import LOG_FORMS, Log, LogForm, Logged

__all__ = ["LOG_FORMS", "Log", "LogForm", "Logged", "philly", "read", "sacct", "swf", "table"]

#: Lines from which a form is recognized.
HEAD = 200


def read(path: Path, log: Log) -> Iterator[Logged]:
    """The jobs of a log, in the order of its rows.

    Raises
    ------
    InputError
        It cannot be read, has no known form, lacks a column, or has a wrong row: file, row, column, what is allowed.
    """
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            head = [line.rstrip("\r\n") for line in islice(file, HEAD)]
            form = next((candidate for candidate in LOG_FORMS.values() if head and candidate.reads(head)), None)
            if form is None:
                forms = ", ".join(known_form.summary for known_form in LOG_FORMS.values())
                raise InputError(f"row 1: is no known form of a job log: {forms}", file=shorten(path, 200))
            file.seek(0)
            yield from form.rows((line.rstrip("\r\n") for line in file), log)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=shorten(path, 200)) from None
