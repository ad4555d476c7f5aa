"""Results of serving benchmarks: a row is a measure (kind ``measure``).

``vllm bench serve`` and ``sglang.bench_serving`` write JSON (or JSON lines, of which the last counts) and a table of
text; AIPerf and GenAI-Perf a JSON and a CSV with statistics of each metric, and JSON lines of requests;
``trtllm-bench`` a JSON report and a text.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import InputError
from .kinds import MEASURE
from .logs import lines_of
from .reader import TRACE_READERS, FilePart, TraceReader
from .table import Rows

#: Units of measures that are times, in seconds.
_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "ns": 1e-9, "milliseconds": 1e-3}
MISSING = ("kernels: a benchmark has times of whole requests",)
#: A line of a table: name, unit in brackets, number.
_MEASURE = re.compile(
    r"^[\s#]*(?P<name>[A-Z][\w .\-]*?[\w.])\s*(?P<rest>\([^:]*\))?\s*:\s+"
    r"(?P<value>-?[\d,]+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*$"
)
#: Headings of the tables of texts.
_TABLES = re.compile(r"Serving Benchmark Result|PERFORMANCE OVERVIEW|Offline Throughput Benchmark Result")
#: Words of a table → the key that the JSON of the same benchmark has.
_KEYS = {
    "benchmark_duration": "duration",
    "successful_requests": "completed",
    "output_token_throughput": "output_throughput",
    "input_token_throughput": "input_throughput",
    "total_generated_tokens": "total_output_tokens",
    "mean_e2e_latency": "mean_e2e_latency_ms",
    "median_e2e_latency": "median_e2e_latency_ms",
}


def row(rows: Rows, name: str, value: float, seconds: float = 0.0, shapes: str = "") -> None:
    """Add a measure, with its time in seconds where it is one."""
    if abs(value) < 1e15:
        rows.add(
            rank=0, start_s=0.0, duration_s=max(seconds, 0.0), name=name, kind=MEASURE, value=value, shapes=shapes
        )  # fmt: skip


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_bench(path: Path) -> FilePart:
    """Read the result of ``vllm bench serve`` or of SGLang's bench_serving (JSON, or the last of JSON lines)."""
    document = _document(path)
    rows = Rows()
    for name, value in document.items():
        if _is_number(value):
            row(rows, name, float(value), value * 1e-3 if name.endswith("_ms") else value if name == "duration" else 0)
    facts = {key: str(document[key]) for key in ("backend", "model_id", "endpoint_type") if document.get(key)}
    return FilePart(rows, missing=MISSING, facts=facts)


def read_bench_text(path: Path) -> FilePart:
    """Read the last table that a benchmark printed, with the names that its JSON has."""
    lines = lines_of(path)
    begin = max((number for number, line in enumerate(lines) if _TABLES.search(line)), default=0)
    rows = Rows()
    for line in lines[begin:]:
        match = _MEASURE.match(line)
        if match is None:
            continue
        name, value = (
            re.sub(r"[^a-z0-9]+", "_", match["name"].lower()).strip("_"),
            float(match["value"].replace(",", "")),
        )
        unit = (match["rest"] or "").strip("() ").lower()
        scale = _UNITS.get(unit, 0.0)
        name = _KEYS.get(name, f"{name}_{unit}" if unit == "ms" and not name.endswith("_ms") else name)
        row(rows, name, value, value * scale, unit)
    return FilePart(rows, missing=MISSING)


def read_aiperf(path: Path) -> FilePart:
    """Read AIPerf's or GenAI-Perf's JSON: one row for each metric and statistic; of JSON lines of requests, the mean
    and percentiles of each metric."""
    rows = Rows()
    entries = documents(path)
    requests = [entry["metrics"] for entry in entries if isinstance(entry.get("metrics"), dict)]
    if requests:
        for name, values, unit in _over_requests(requests):
            scale = _UNITS.get(unit.lower(), 0.0)
            for statistic, value in (("avg", values.mean()), *((f"p{q}", np.percentile(values, q)) for q in (50, 99))):
                row(rows, f"{name}.{statistic}", float(value), float(value) * scale, unit)
        return FilePart(rows, missing=MISSING, facts={"requests": len(requests)})
    for name, entry in entries[-1].items():
        if not isinstance(entry, dict) or "unit" not in entry:
            continue
        scale = _UNITS.get(str(entry["unit"]).lower(), 0.0)
        for statistic, value in entry.items():
            if _is_number(value):
                row(rows, f"{name}.{statistic}", float(value), value * scale, str(entry["unit"]))
    return FilePart(rows, missing=MISSING)


def _over_requests(requests: list[dict[str, Any]]) -> Iterator[tuple[str, Any, str]]:
    """Every metric of requests, with its values and its unit."""
    for name in dict.fromkeys(name for request in requests for name in request):
        entries = [request[name] for request in requests if isinstance(request.get(name), dict)]
        values = [entry["value"] for entry in entries if _is_number(entry.get("value"))]
        if values:
            yield name, np.array(values, float), str(entries[0].get("unit", ""))


def read_aiperf_table(path: Path) -> FilePart:
    """Read AIPerf's or GenAI-Perf's CSV: a table of statistics of each metric, and one of single values."""
    rows, header = Rows(), []
    for cells in csv.reader(lines_of(path)):
        if not cells or cells[0] == "Metric":
            header = cells
            continue
        unit = re.search(r"\(([^()]*)\)\s*$", cells[0])
        scale = _UNITS.get(unit[1].strip().lower(), 0.0) if unit else 0.0
        for statistic, cell in zip(header[1:], cells[1:], strict=False):
            try:
                value = float(cell.replace(",", ""))
            except ValueError:
                continue
            name = cells[0] if statistic.lower() == "value" else f"{cells[0]}.{statistic}"
            row(rows, name, value, value * scale, unit[1] if unit else "")
    return FilePart(rows, missing=MISSING)


def read_trtllm(path: Path) -> FilePart:
    """Read the report of ``trtllm-bench --report_json``: the numbers of its performance and streaming sections."""
    document = _document(path)
    rows = Rows()
    for section in ("performance", "streaming_metrics"):
        for name, value in flat(document.get(section, {})):
            row(rows, name, value, value * 1e-3 if re.search(r"_ms\b", name) else 0.0)
    return FilePart(rows, missing=MISSING)


def flat(entry: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Numbers of nested sections, with their keys joined."""
    if isinstance(entry, dict):
        for key, value in entry.items():
            yield from flat(value, f"{name}.{key}" if name else str(key))
    elif isinstance(entry, int | float) and not isinstance(entry, bool):
        yield name, float(entry)


def _document(path: Path) -> dict[str, Any]:
    return documents(path)[-1]


def documents(path: Path) -> list[dict[str, Any]]:
    """The objects of a file: one, or one a line; raises InputError where there is none."""
    lines = lines_of(path)
    for texts in (["\n".join(lines)], lines):
        objects = []
        for text in texts:
            try:
                document = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(document, dict):
                objects.append(document)
        if objects:
            return objects
    raise InputError("is cut off or no JSON of a benchmark", file=str(path))


def _is_json(start: bytes) -> bool:
    return start.lstrip()[:1] == b"{"


def holds(*ways: tuple[bytes, ...]) -> Callable[[Path, bytes], bool]:
    """Whether a file is JSON with all keys of one of the ways."""
    return lambda path, start: _is_json(start) and any(all(key in start for key in keys) for keys in ways)


TRACE_READERS.register(
    TraceReader(
        "bench-text",
        "tables that `vllm bench`, SGLang's bench_serving and `trtllm-bench` print",
        lambda path, start: not _is_json(start) and _TABLES.search(start.decode("utf-8", "replace")) is not None,
        read_bench_text,
    )
)
TRACE_READERS.register(
    TraceReader(
        "bench",
        "`vllm bench serve` and SGLang's bench_serving",
        # With details, the lists of all requests come before the means.
        holds((b'"mean_ttft_ms"', b'"completed"'), (b'"completed"', b'"total_input_tokens"', b'"duration"')),
        read_bench,
    )
)
TRACE_READERS.register(
    TraceReader(
        "aiperf",
        "AIPerf's and GenAI-Perf's summary and requests",
        holds((b'"time_to_first_token"', b'"unit"'), (b'"request_latency"', b'"unit"')),
        read_aiperf,
    )
)
TRACE_READERS.register(
    TraceReader(
        "aiperf-csv",
        "AIPerf's and GenAI-Perf's CSV",
        lambda path, start: re.match(rb"\s*Metric,\s*(avg|value)", start, re.IGNORECASE) is not None,
        read_aiperf_table,
    )
)
TRACE_READERS.register(
    TraceReader(
        "trtllm-bench",
        "`trtllm-bench --report_json`",
        holds((b'"performance"', b'"request_throughput_req_s"')),
        read_trtllm,
    )
)
