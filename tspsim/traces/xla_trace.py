"""Traces of XLA's profiler (JAX, MaxText, TensorFlow): ``*.trace.json.gz``, Chrome trace events without categories.

Processes are devices (``/device:GPU:0``) and hosts; a device's threads are its streams (*Stream #14(Compute)*) beside
lines that repeat the same time by module (*XLA Modules*), operation (*XLA Ops*) and step (*Steps*). Kernels are the
events of streams. Times are in microseconds. Every device is a rank.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .pieces import Ending, events
from .reader import TRACE_READERS, FilePart, TraceReader
from .table import Mark, Rows, TracedDevice

_DEVICE = re.compile(r"^/device:(?:GPU|TPU|gpu):(?P<number>\d+)\s*(?P<name>.*)$")
_STREAM = re.compile(r"^(Stream #?\S*|stream)", re.IGNORECASE)


class _Reading:
    """The events that are kept: names of processes and threads may come behind what ran on them."""

    def __init__(self) -> None:
        self.processes: dict[Any, str] = {}
        self.threads: dict[tuple[Any, Any], str] = {}
        self.ran: list[tuple[Any, Any, float, float, str, dict[str, Any]]] = []

    def one(self, event: dict[str, Any]) -> None:
        """Keep an event; raises ValueError where it has no time."""
        kind, arguments = event.get("ph"), event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        process, thread = str(event.get("pid")), str(event.get("tid"))
        if kind == "M" and event.get("name") == "process_name":
            self.processes[process] = str(arguments.get("name", ""))
        elif kind == "M" and event.get("name") == "thread_name":
            self.threads[process, thread] = str(arguments.get("name", ""))
        elif kind == "X":
            start, length = float(event["ts"]), float(event.get("dur", 0.0))
            if not (abs(start) < 1e18 and 0.0 <= length < 1e15):
                raise ValueError("no time")
            self.ran.append((process, thread, start, length, str(event.get("name", "")), arguments))


def _refused(text: bytes) -> list[None]:
    raise ValueError("events are kept one by one")


def read_xla(path: Path) -> FilePart:
    """Read a file; raises InputError where it has no events."""
    reading, ending = _Reading(), Ending()
    for _ in events(path, _refused, reading.one, ending):
        pass
    ranks = {
        process: int(match["number"]) for process, name in reading.processes.items() if (match := _DEVICE.match(name))
    }
    missing = [] if ending.whole else ["the file's end: it is cut off, and whole events before the cut are kept"]
    if ending.refused:
        missing.append(f"{ending.refused} events that are no valid JSON or have no time; they are left out")
    own = sorted((event for event in reading.ran if event[0] in ranks), key=lambda event: (event[2], -event[3]))
    first = own[0][2] if own else 0.0
    rows, marks = Rows(), []
    for process, thread, start, length, name, arguments in own:
        line = reading.threads.get((process, thread), "")
        if _STREAM.match(line):
            launched = str(arguments.get("tf_op") or arguments.get("hlo_op") or "")
            rows.add(
                rank=ranks[process], device=ranks[process], stream=line, start_s=(start - first) / 1e6,
                duration_s=length / 1e6, name=name, operator=launched,
            )  # fmt: skip
        elif line in ("Steps", "XLA Modules"):
            text = f"step {name}" if line == "Steps" else name
            marks.append(Mark(ranks[process], text, (start - first) / 1e6, (start + length - first) / 1e6, line))
    marks = _steps(marks)
    if len(ranks) > 1:
        missing.append(f"one file per rank: this file has {len(ranks)} ranks, devices")
    machine = next((match["name"] for name in reading.processes.values() if (match := _DEVICE.match(name))), "")
    return FilePart(rows, TracedDevice(machine), len(ranks), marks=tuple(marks), missing=tuple(missing))


def _steps(marks: list[Mark]) -> list[Mark]:
    """Marks with numbered steps: the profiler's own, else the calls of the module that takes longest in all."""
    if any(mark.thread == "Steps" for mark in marks):
        return [mark for mark in marks if mark.thread == "Steps"]
    time: dict[str, float] = {}
    for mark in marks:
        time[mark.name] = time.get(mark.name, 0.0) + mark.end_s - mark.start_s
    longest = max(time, key=lambda name: time[name], default="")
    counts: dict[int, int] = {}
    steps = []
    for mark in marks:
        if mark.name == longest:
            counts[mark.rank] = counts.get(mark.rank, -1) + 1
            steps.append(Mark(mark.rank, f"step {counts[mark.rank]}", mark.start_s, mark.end_s, mark.name))
    return steps


def _takes(path: Path, start: bytes) -> bool:
    text = start.lstrip()
    return (
        text[:1] in (b"{", b"[")
        and b'"ph"' in text
        and (b'"highres-ticks"' in text or re.search(rb'"name":\s*"/(device:(GPU|TPU):\d|host:CPU)', text) is not None)
    )


TRACE_READERS.register(
    TraceReader("xla", "XLA's profiler: trace.json of JAX, MaxText and TensorFlow", _takes, read_xla)
)
