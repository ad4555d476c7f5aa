"""Recorded requests: files of arrivals and lengths, in their published forms.

A form has names of columns and a unit of time; the first line of a file identifies it. Lines that begin with # name the
file's source. A missing or negative value is an error that names its line.

References
----------
Azure LLM inference traces (2023, 2024): github.com/Azure/AzurePublicDataset, CC-BY 4.0 (Patel et al., Splitwise, ISCA
2024). Mooncake traces: github.com/kvcache-ai/Mooncake, FAST 2025. BurstGPT: github.com/HPMLL/BurstGPT, CC-BY 4.0.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..base import catalog
from ..base.errors import InputError, UnknownNameError, shorten
from ..base.memo import remembered
from ..base.registry import Registry
from .kind import Floats, Ints

FOLDER = "workloads/traffic"
SUFFIXES = (".csv", ".jsonl")
LARGEST_BYTES = 2**30


@dataclass(frozen=True)
class RequestTrace:
    """Requests in the order of their arrival.

    Attributes
    ----------
    arrival_s
        Seconds; empty where a file has only lengths.
    hashes
        Identities of each prompt's blocks, first to last, one tuple per request; empty where the file has none.
    """

    name: str
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    hashes: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    @property
    def rate(self) -> float:
        """Mean requests a second; 0 where all arrive at once."""
        span_s = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self.arrival_s) else 0.0
        return (len(self) - 1) / span_s if span_s > 0.0 else 0.0


@dataclass(frozen=True)
class TraceForm:
    """A publisher's form of traces: names of columns, and the conversion of a time to seconds.

    ``time`` and ``hashes`` are empty where the form has none.
    """

    name: str
    time: str
    prompt: str
    output: str
    hashes: str = ""
    seconds: Callable[[Any], float] = float

    def matches(self, columns: Iterable[str]) -> bool:
        """Whether a file with these columns is of this form."""
        return {self.time, self.prompt, self.output} - {""} <= set(columns)


def _timestamp(value: Any) -> float:
    """Seconds of ``2023-11-16 18:15:46.6805900`` or ``2024-05-10 00:00:01+00:00``; digits beyond microseconds count."""
    whole, _, fraction = str(value).strip().partition(".")
    zone = fraction.lstrip("0123456789")
    digits = fraction.removesuffix(zone)
    date = datetime.fromisoformat(whole + zone)
    if date.tzinfo is not None:
        date = date.astimezone(UTC).replace(tzinfo=None)
    return (date - datetime(2000, 1, 1)).total_seconds() + (float(f"0.{digits}") if digits else 0.0)


TRACE_FORMS: Registry[TraceForm] = Registry("form of a trace", "tspsim.trace_forms", TraceForm)
for _form in (
    TraceForm("plain", "arrival_s", "prompt_tokens", "output_tokens", "hash_ids"),
    TraceForm("seconds", "timestamp_s", "prompt_tokens", "output_tokens", "hash_ids"),
    TraceForm("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", seconds=_timestamp),
    TraceForm("mooncake", "timestamp", "input_length", "output_length", "hash_ids", lambda value: float(value) / 1e3),
    TraceForm("burstgpt", "Timestamp", "Request tokens", "Response tokens"),
    TraceForm("vidur", "", "num_prefill_tokens", "num_decode_tokens"),
    TraceForm("lengths", "", "prompt_tokens", "output_tokens", "hash_ids"),
):
    TRACE_FORMS.register(_form)


def locate_trace(name: str, beside: Path | None = None) -> Path:
    """The file of a trace: a path (from here, or beside the scenario), or a name in the catalog.

    Raises
    ------
    InputError
        No such trace; the message offers the nearest catalog name.
    """
    if "/" in name or "\\" in name or name.endswith(SUFFIXES):
        for path in (Path(name), *([beside / name] if beside else [])):
            if path.is_file():
                return path
        raise InputError(f"no such file '{shorten(name)}'; give a path that exists or the name of a catalog trace")
    paths: dict[str, Path] = {}
    for root in reversed(catalog.roots()):
        paths |= {path.stem: path for suffix in SUFFIXES for path in sorted((root / FOLDER).glob(f"*{suffix}"))}
    if name not in paths:
        raise UnknownNameError("trace", name, paths)
    return paths[name]


def read_trace(name: str) -> RequestTrace:
    """A trace by its file or catalog name.

    Raises
    ------
    InputError
        No such trace, an unknown form, no rows, or holes; the message names line and column.
    """
    path = locate_trace(name)
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=shorten(name)) from None
    if state.st_size > LARGEST_BYTES:
        raise InputError("is larger than 1 GiB, the most a trace may have", file=shorten(name))
    return _read(str(path), state.st_mtime_ns)


def with_times(name: str) -> RequestTrace:
    """A trace whose requests have times: :func:`read_trace`.

    Raises
    ------
    InputError
        As of ``read_trace``, or the file has lengths only.
    """
    trace = read_trace(name)
    if not len(trace.arrival_s):
        columns = ", ".join(f"{form.time} of {form.name}" for form in TRACE_FORMS.values() if form.time)
        raise InputError(f"has lengths but no column of times (known: {columns})", file=shorten(name))
    return trace


@remembered(8)
def _read(file: str, _changed: int) -> RequestTrace:
    path = Path(file)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            numbered = ((number, line) for number, line in enumerate(stream, 1) if line.strip()[:1] not in ("", "#"))
            rows = _json_rows(numbered, file) if path.suffix == ".jsonl" else _csv_rows(numbered, file)
            return _trace(path.stem, rows, file)
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=file) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file) from None


#: Line number and the row's values by column.
Numbered = Iterator[tuple[int, Mapping[str, Any]]]


def _csv_rows(lines: Iterator[tuple[int, str]], file: str) -> Numbered:
    _, header = next(lines, (0, ""))
    columns = [name.strip() for name in next(csv.reader([header]), [])]
    for number, line in lines:
        (cells,) = csv.reader([line])
        if len(cells) != len(columns):
            raise InputError(f"line {number} has {len(cells)} values for {len(columns)} columns", file=file)
        yield number, dict(zip(columns, cells, strict=True))


def _json_rows(lines: Iterator[tuple[int, str]], file: str) -> Numbered:
    for number, line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"line {number} is not a JSON object", file=file)
        yield number, row


def _trace(name: str, rows: Numbered, file: str) -> RequestTrace:
    form: TraceForm | None = None
    times: list[float] = []
    lengths: tuple[list[int], list[int]] = ([], [])
    hashes: list[tuple[int, ...]] = []
    for number, row in rows:
        if form is None:
            form = _form_of(row, file)
        if form.time:
            times.append(_value(row, form.time, form.seconds, number, file))
            if len(times) > 1 and times[-1] < times[-2]:
                raise InputError(f"line {number}: {form.time} goes back; sort the trace by time", file=file)
        for column, kept in zip((form.prompt, form.output), lengths, strict=True):
            tokens = _value(row, column, float, number, file)
            if tokens < 1 or tokens != int(tokens):
                what = "is negative" if tokens < 0 else "must be a whole number of at least one token"
                raise InputError(f"line {number}: {column} {tokens:g} {what}", file=file)
            kept.append(int(tokens))
        if form.hashes and form.hashes in row:
            hashes.append(_hashes(row[form.hashes], form.hashes, number, file))
    if form is None:
        raise InputError("has no rows; a trace has a line of column names and a line a request", file=file)
    prompts, outputs = (np.array(kept, dtype=np.int64) for kept in lengths)
    return RequestTrace(name, np.array(times), prompts, outputs, tuple(hashes))


def _form_of(row: Mapping[str, Any], file: str) -> TraceForm:
    for form in TRACE_FORMS.values():
        if form.matches(row):
            return form
    columns = [filter(None, (form.time, form.prompt, form.output)) for form in TRACE_FORMS.values()]
    forms = "; ".join(f"{name}: {', '.join(names)}" for name, names in zip(TRACE_FORMS, columns, strict=True))
    raise InputError(f"is of no known form; columns are {shorten(', '.join(row))} (known: {forms})", file=file)


def _value(row: Mapping[str, Any], column: str, read: Callable[[Any], float], number: int, file: str) -> float:
    value = row.get(column)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise InputError(f"line {number}: {column} is missing; a trace has no holes", file=file)
    try:
        parsed = read(value)
    except (TypeError, ValueError):
        raise InputError(f"line {number}: {column} '{shorten(value)}' is not a number", file=file) from None
    if not np.isfinite(parsed):
        raise InputError(f"line {number}: {column} '{shorten(value)}' is not a number; a trace has no holes", file=file)
    return parsed


def _hashes(value: Any, column: str, number: int, file: str) -> tuple[int, ...]:
    entries: Sequence[Any] = value.split() if isinstance(value, str) else value
    try:
        return tuple(int(entry) for entry in entries)
    except (TypeError, ValueError):
        raise InputError(f"line {number}: {column} '{shorten(value)}' is not a list of numbers", file=file) from None
