"""Logs of training frameworks and engines, and the JSON of serving benchmarks: times of whole steps or runs.

A row of a log is a step (kind ``step``), a row of a benchmark a measure (kind ``measure``). The lines are those of
Megatron-LM ``training.py`` (*elapsed time per iteration (ms)*), torchtitan ``metrics.py`` (*step: … tps: …*), NeMo
(*train_step_timing in s*), vLLM with ``--enable-logging-iteration-details`` and SGLang's *Decode batch*. The results
are those of ``vllm bench serve``, ``sglang.bench_serving`` and AIPerf ``profile_export_aiperf.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..base.errors import InputError
from .kinds import MEASURE, STEP
from .pieces import Ending, chunks, opened
from .reader import TRACE_READERS, FilePart, TraceReader
from .table import Rows

#: The largest log that is read, in bytes.
LARGEST = 1 << 28
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

_MEGATRON = re.compile(r"\biteration\s+(?P<step>\d+)/\s*\d+ \|.*?elapsed time per iteration \(ms\):\s*(?P<ms>[\d.]+)")
_BATCH = re.compile(r"global batch size:\s*(\d+)")
_FLOPS = re.compile(r"throughput per GPU \(TFLOP/s/GPU\):\s*([\d.]+)")
_TITAN = re.compile(r"\bstep:\s*(?P<step>\d+)\s.*?\b(?:tps|wps):\s*(?P<tps>[\d,.]+)")
_NEMO = re.compile(r"(?:global_step[:=]\s*(?P<step>[\d.]+).*?)?train_step_timing in s[:=]\s*(?P<s>[\d.]+)")
_NEMO_BATCH = re.compile(r"global_batch_size:\s*(\d+)")
_VLLM = re.compile(
    r"Iteration\((?P<step>\d+)\):\s+(?P<prompts>\d+)\s+context requests,\s+(?P<tokens>\d+)\s+context tokens,\s+"
    r"(?P<rows>\d+)\s+generation requests,\s+(?P<generated>\d+)\s+generation tokens,\s+"
    r"iteration elapsed time:\s+(?P<ms>[\d.]+)\s+ms"
)
_SGLANG = re.compile(r"Decode batch.*?#running-req:\s*(?P<rows>\d+).*?gen throughput \(token/s\):\s*(?P<rate>[\d.]+)")


def _lines(path: Path) -> list[str]:
    text, ending = bytearray(), Ending()
    with opened(path) as file:
        for piece in chunks(file, ending):
            text += piece
            if len(text) > LARGEST:
                raise InputError("is a log over 256 MiB; cut it to the steps that matter", file=str(path))
    return _COLOURS.sub("", bytes(text).decode("utf-8", "replace")).splitlines()


def _number(text: str) -> float:
    value = float(text.replace(",", "").rstrip("."))
    if not 0.0 <= value < 1e12:
        raise ValueError
    return value


def _stamp(line: str) -> float | None:
    match = _STAMP.search(line)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(match.group(1).replace(",", ".")).timestamp()
    except ValueError:
        return None


class _Steps:
    """Rows of a log, one step after the other on one clock."""

    def __init__(self) -> None:
        self.rows, self.clock, self.refused = Rows(), 0.0, 0

    def step(self, number: int, seconds: float, *, phase: str = "", shapes: str = "", rate: float = 0.0) -> None:
        self.rows.add(
            rank=0, start_s=self.clock, duration_s=seconds, name=f"step {number}", kind=STEP, phase=phase,
            shapes=shapes, step=number, value=rate,
        )  # fmt: skip
        self.clock += seconds


def read_log(path: Path) -> FilePart:
    """Read the step lines of a log of any of the frameworks.

    Raises
    ------
    InputError
        No line states a step.
    """
    steps, missing = _Steps(), ["kernels: a log has times of whole steps"]
    titan: list[tuple[int, float, float | None]] = []
    written = "Megatron"
    for line in _lines(path):
        try:
            if match := _MEGATRON.search(line):
                batch, flops = _BATCH.search(line), _FLOPS.search(line)
                shapes = f"global batch {batch.group(1)}" if batch else ""
                rate = _number(flops.group(1)) * 1e12 if flops else 0.0
                steps.step(int(match["step"]), _number(match["ms"]) / 1e3, phase="training", shapes=shapes, rate=rate)
            elif match := _VLLM.search(line):
                written = "vLLM"
                prompts, rows = int(match["prompts"]), int(match["rows"])
                phase = "mixed" if prompts and rows else "prefill" if prompts else "decode"
                shapes = f"{prompts} prompts of {match['tokens']} tokens, {rows} rows of {match['generated']} tokens"
                steps.step(int(match["step"]), _number(match["ms"]) / 1e3, phase=phase, shapes=shapes)
            elif match := _NEMO.search(line):
                written = "NeMo"
                number = int(float(match["step"])) if match["step"] else len(steps.rows)
                batch = _NEMO_BATCH.search(line)
                steps.step(
                    number,
                    _number(match["s"]),
                    phase="training",
                    shapes=f"global batch {batch.group(1)}" if batch else "",
                )
            elif match := _TITAN.search(line):
                written = "torchtitan"
                titan.append((int(match["step"]), _number(match["tps"]), _stamp(line)))
            elif match := _SGLANG.search(line):
                written = "SGLang"
                rows, rate = int(match["rows"]), _number(match["rate"])
                if rate:
                    steps.step(len(steps.rows), rows / rate, phase="decode", shapes=f"{rows} rows", rate=rate)
        except (ValueError, OverflowError):
            steps.refused += 1
    _of_titan(steps, titan, missing)
    if steps.refused:
        missing.append(f"{steps.refused} lines whose numbers cannot be read; they are left out")
    if written == "vLLM":
        missing.append(
            "the device's share: vLLM's iteration time ends when the host has launched, with asynchronous scheduling"
        )
    return FilePart(steps.rows, missing=tuple(missing), facts={"written_by": written})


def _of_titan(steps: _Steps, lines: list[tuple[int, float, float | None]], missing: list[str]) -> None:
    """Add torchtitan's steps. Its lines have tokens per second and GPU but no time, so the steps between two lines
    share the time between them."""
    if not lines:
        return
    for (before, _, then), (number, rate, now) in pairwise(lines):
        if then is not None and now is not None and number > before and now > then:
            steps.step(number, (now - then) / (number - before), phase="training", rate=rate)
    if not len(steps.rows):
        number, rate, _ = lines[-1]
        missing.append("times of steps: all lines have the same time stamp; `value` has tokens per second and GPU")
        steps.step(number, 0.0, phase="training", rate=rate)


#: Units of measures that are times, in seconds.
_UNITS = {"ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0, "us": 1e-6, "milliseconds": 1e-3}


def read_bench(path: Path) -> FilePart:
    """Read the result of ``vllm bench serve`` or of SGLang's bench_serving (JSON, or the last of JSON lines)."""
    document = _document(path)
    rows = Rows()
    for name, value in document.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
            seconds = value * 1e-3 if name.endswith("_ms") else float(value) if name == "duration" else 0.0
            rows.add(rank=0, start_s=0.0, duration_s=max(seconds, 0.0), name=name, kind=MEASURE, value=float(value))
    facts = {key: str(document[key]) for key in ("backend", "model_id", "endpoint_type") if document.get(key)}
    return FilePart(rows, missing=("kernels: a benchmark has times of whole requests",), facts=facts)


def read_aiperf(path: Path) -> FilePart:
    """Read AIPerf's ``profile_export_aiperf.json``: one row for each metric and statistic."""
    rows = Rows()
    for name, entry in _document(path).items():
        if not isinstance(entry, dict) or "unit" not in entry:
            continue
        scale = _UNITS.get(str(entry["unit"]).lower(), 0.0)
        for statistic, value in entry.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
                rows.add(
                    rank=0, start_s=0.0, duration_s=max(value * scale, 0.0), name=f"{name}.{statistic}", kind=MEASURE,
                    value=float(value), shapes=str(entry["unit"]),
                )  # fmt: skip
    return FilePart(rows, missing=("kernels: a benchmark has times of whole requests",))


def _document(path: Path) -> dict[str, Any]:
    text = "\n".join(_lines(path)).strip()
    for candidate in (text, text.rpartition("\n")[2]):
        try:
            document = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            return document
    raise InputError("is cut off or no JSON of a benchmark", file=str(path))


def _is_json(start: bytes) -> bool:
    return start.lstrip()[:1] == b"{"


def _takes_log(path: Path, start: bytes) -> bool:
    if _is_json(start) or b"\x00" in start[:4096]:
        return False
    if path.suffix in (".log", ".txt", ".out"):
        return True
    text = _COLOURS.sub("", start.decode("utf-8", "replace"))
    return any(pattern.search(text) for pattern in (_MEGATRON, _VLLM, _NEMO, _TITAN, _SGLANG))


def _holds(*keys: bytes) -> Callable[[Path, bytes], bool]:
    return lambda path, start: _is_json(start) and all(key in start for key in keys)


TRACE_READERS.register(
    TraceReader("log", "step lines of Megatron, torchtitan, NeMo, vLLM and SGLang", _takes_log, read_log)
)
TRACE_READERS.register(
    TraceReader(
        "bench", "`vllm bench serve` and SGLang's bench_serving", _holds(b'"mean_ttft_ms"', b'"completed"'), read_bench
    )
)
TRACE_READERS.register(
    TraceReader("aiperf", "AIPerf's summary", _holds(b'"time_to_first_token"', b'"unit"'), read_aiperf)
)
