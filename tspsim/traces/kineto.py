"""Traces of the PyTorch profiler (Kineto's Chrome trace events), plain or gzip, read in pieces.

Format: "Trace Event Format" (Google, 2016) with the categories of Kineto's ``output_json.cpp``: ``kernel``,
``gpu_memcpy`` and ``gpu_memset`` ran on a device, ``cuda_runtime`` launched them (same ``correlation``), ``cpu_op`` are
operators (same ``External id``), ``user_annotation`` are ``record_function`` blocks. Times are microseconds.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .pieces import Ending, events
from .reader import TRACE_READERS, FilePart, TraceReader
from .steps import phase_of
from .table import Mark, Rows, TracedDevice, TracedGroup, Words

_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
_OPERATORS = frozenset({"cpu_op", "Operator"})
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "privateuse1_runtime"})
_NOTES = frozenset({"user_annotation", "UserAnnotation"})
_KEPT = _DEVICE_CATEGORIES | _OPERATORS | _RUNTIME | _NOTES
#: Annotations that every collective writes are no marks of a step.
_NO_MARKS = ("nccl:", "gloo:", "c10d::", "record_param_comms", "## Call CompiledFxGraph", "## metrics")
#: What autograd's engine names the operators that it runs.
_BACKWARD = "autograd::engine::evaluate_function"

#: ``(category, name, thread, start in µs, length in µs, arguments as JSON)``.
Event = tuple[str, str, str, float, float, bytes]


def _lenient(event: dict[str, Any]) -> Event:
    """An event that was read as a dictionary."""
    category = event.get("cat", "")
    if event.get("ph") != "X" or category not in _KEPT:
        return ("", "", "", 0.0, 0.0, b"")
    start, length = float(event.get("ts", "nan")), float(event.get("dur", 0.0))
    if not _timed(start, length):
        raise ValueError("no time")
    arguments = json.dumps(event.get("args") or {}).encode()
    return (category, str(event.get("name", "")), str(event.get("tid", "")), start, length, arguments)


def _timed(start: float, length: float) -> bool:
    return abs(start) < 1e18 and abs(length) < 1e15


def _parser() -> Callable[[bytes], list[Event]]:
    """Reads a list of events; with msgspec, which leaves arguments alone until they are wanted, six times as fast."""
    try:
        import msgspec
    except ImportError:
        return lambda text: [_lenient(event) for event in json.loads(text)]

    # What is not named here is skipped unread.
    fields = [
        ("ph", str, ""),
        ("cat", str, ""),
        ("name", str, ""),
        ("tid", int | str, 0),
        ("ts", float, float("nan")),
        ("dur", float, 0.0),
    ]
    fast: Any = msgspec.defstruct("Event", [*fields, ("args", msgspec.Raw, msgspec.Raw(b""))], gc=False)
    decoder: Any = msgspec.json.Decoder(list[fast])

    def parse(text: bytes) -> list[Event]:
        try:
            found = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        kept = [event for event in found if event.ph == "X" and event.cat in _KEPT]
        if not all(_timed(event.ts, event.dur) for event in kept):
            raise ValueError("no time")
        return [(event.cat, event.name, str(event.tid), event.ts, event.dur, bytes(event.args)) for event in kept]

    return parse


class EventsKept:
    """What is kept of a file while it is read."""

    def __init__(self) -> None:
        # Of kernels, of which a profile may have millions, columns and no objects; what collectives state beside.
        self.ran_start, self.ran_length, self.ran_bytes = array("d"), array("d"), array("d")
        self.ran_correlation, self.ran_external, self.ran_node = array("q"), array("q"), array("q")
        self.ran_device = array("i")
        self.ran_name, self.ran_stream, self.ran_grid, self.ran_group = Words(), Words(), Words(), Words()
        self.collectives: dict[int, dict[str, Any]] = {}
        self.threads = Words()
        self.op_start, self.op_end, self.op_external = array("d"), array("d"), array("q")
        self.op_thread, self.op_name, self.op_shapes = array("i"), Words(), Words()
        self.run_start, self.run_correlation, self.run_thread, self.run_graph = (
            array("d"),
            array("q"),
            array("i"),
            array("b"),
        )
        self.notes: list[tuple[str, int, float, float]] = []
        self.negative = 0

    def take(self, event: Event) -> None:
        category, name, thread, start, length, raw = event
        if category in _OPERATORS:
            shapes, external = _of_operator(raw)
            self.op_thread.append(self.threads.code(thread))
            self.op_start.append(start)
            self.op_end.append(start + length)
            self.op_external.append(external)
            self.op_name.append(name)
            self.op_shapes.append(shapes)
        elif category in _DEVICE_CATEGORIES:
            if length < 0.0:
                self.negative += 1
                return
            self._ran(name, thread, start, length, _arguments(raw))
        elif category in _RUNTIME:
            correlation = _number(raw, b'"correlation"')
            if correlation >= 0:
                self.run_start.append(start)
                self.run_correlation.append(correlation)
                self.run_thread.append(self.threads.code(thread))
                self.run_graph.append("GraphLaunch" in name)
        elif category in _NOTES:
            self.notes.append((name, self.threads.code(thread), start, start + length))

    def _ran(self, name: str, thread: str, start: float, length: float, said: dict[str, Any]) -> None:
        if said.get("Collective name"):
            self.collectives[len(self.ran_start)] = said
        grid = said.get("grid")
        self.ran_start.append(start)
        self.ran_length.append(length)
        self.ran_bytes.append(_size(said.get("bytes", 0.0)))
        self.ran_correlation.append(_whole(said.get("correlation")))
        self.ran_external.append(_whole(said.get("External id")))
        self.ran_node.append(_whole(said.get("graph node id")))
        self.ran_device.append(min(max(_whole(said.get("device")), 0), 1 << 30))
        self.ran_name.append(name)
        self.ran_stream.append(str(said.get("stream", thread)))
        self.ran_grid.append("×".join(map(str, grid)) if isinstance(grid, list) else "")
        self.ran_group.append(str(said.get("Process Group Description") or said.get("Process Group Name") or ""))


def _arguments(raw: bytes) -> dict[str, Any]:
    """A kernel's arguments; its own few that are wanted."""
    try:
        found = _DECODE(raw) if raw else {}
    except (ValueError, RecursionError):
        found = _loosely(raw)
    return found if isinstance(found, dict) else {}


def _loosely(raw: bytes) -> Any:
    """The same with control characters in texts; nothing where it is no JSON."""
    try:
        return json.loads(raw, strict=False)
    except (ValueError, RecursionError):
        return {}


def _decoder() -> Callable[[bytes], Any]:
    """Reads one JSON value; raises ValueError where it is none."""
    try:
        import msgspec
    except ImportError:
        return _loosely
    decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode
    return decode


_DECODE = _decoder()


def _number(raw: bytes, key: bytes) -> int:
    """The whole number behind a key, −1 where there is none; a runtime call has no other argument that is wanted."""
    place = raw.find(key)
    if place < 0:
        return -1
    place = raw.find(b":", place) + 1
    end = place
    while end < len(raw) and raw[end : end + 1] in b" \t\r\n":
        end += 1
    place = end
    while end < len(raw) and raw[end : end + 1].isdigit():
        end += 1
    return int(raw[place:end]) if 0 < end - place < 19 else -1


def _of_operator(raw: bytes) -> tuple[str, int]:
    """Input shapes as text without blanks, and the external id."""
    external = _number(raw, b'"External id"')
    place = raw.find(b'"Input Dims"')
    if place < 0:
        place = raw.find(b'"Input dims"')
    if place < 0:
        return "", external
    start = raw.find(b"[", place)
    depth = 0
    for index in range(start, min(len(raw), start + 4096)):
        letter = raw[index]
        if letter == 91:
            depth += 1
        elif letter == 93:
            depth -= 1
            if not depth:
                return raw[start : index + 1].decode("ascii", "replace").replace(" ", ""), external
    return "", external


def read_events(path: Path, reading: EventsKept) -> Ending:
    """Give a file's events to what keeps them, piece by piece; returns how it ends and what stands beside them."""
    ending = Ending()
    for found in events(path, _parser(), _lenient, ending):
        for event in found:
            if event[0]:
                reading.take(event)
    return ending


def read_kineto(path: Path) -> FilePart:
    """Read a file; raises InputError where it has no events."""
    reading = EventsKept()
    ending = read_events(path, reading)
    missing = []
    if not ending.whole:
        missing.append("the file's end: it is cut off, and whole events before the cut are kept")
    if ending.refused:
        missing.append(f"{ending.refused} events that are no valid JSON or have no time; they are left out")
    if reading.negative:
        missing.append(f"{reading.negative} kernels whose length is negative; they are left out")
    about = ending.beside
    distributed = about.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    rank = distributed.get("rank")
    known = isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0
    if not known:
        missing.append("the rank (distributedInfo)")
    rank = rank if isinstance(rank, int) and known else 0
    world = distributed.get("world_size", 0)
    rows, origin = _rows(reading, rank)
    return FilePart(
        rows,
        machine_of(about.get("deviceProperties"), rows.numbers["device"][0] if len(rows) else 0),
        world if isinstance(world, int) else 0,
        tuple(_groups(distributed)),
        tuple(_marks(reading, rank, origin)),
        tuple(missing),
        {"origin_us": {rank: origin}},
        rank_unknown=not known,
    )


def machine_of(properties: object, device: int) -> TracedDevice:
    """The device by its number from Kineto's ``deviceProperties``, which some versions write as Python text."""
    if isinstance(properties, str):
        import ast

        try:
            properties = ast.literal_eval(properties[: 1 << 20])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return TracedDevice()
    if not isinstance(properties, list) or not all(isinstance(entry, dict) for entry in properties) or not properties:
        return TracedDevice()
    entry = next((entry for entry in properties if entry.get("id") == device), properties[0])
    units, memory = entry.get("numSms", 0), entry.get("totalGlobalMem", 0)
    return TracedDevice(
        str(entry.get("name", "")), units if isinstance(units, int) else 0, memory if isinstance(memory, int) else 0
    )


def _groups(distributed: dict[str, Any]) -> list[TracedGroup]:
    found = []
    for entry in distributed.get("pg_config") or []:
        if isinstance(entry, dict):
            ranks = entry.get("ranks")
            ranks = tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list) else ()
            name = f"{entry.get('pg_name', '')} {entry.get('pg_desc', '')}".strip()
            size = entry.get("pg_size", len(ranks))
            found.append(TracedGroup(name, size if isinstance(size, int) else len(ranks), ranks))
    return found


def _marks(reading: EventsKept, rank: int, origin: float) -> list[Mark]:
    return [
        Mark(rank, name, (start - origin) / 1e6, (end - origin) / 1e6, reading.threads.words[thread])
        for name, thread, start, end in sorted(reading.notes, key=lambda note: (note[2], -note[3]))
        if not name.startswith(_NO_MARKS)
    ]


def _rows(reading: EventsKept, rank: int) -> tuple[Rows, float]:
    """Kernels as rows, each with what launched it; the time that is zero."""
    rows = Rows()
    if not len(reading.ran_start):
        return rows, 0.0
    order = np.argsort(np.frombuffer(reading.ran_start), kind="stable")
    first = reading.ran_start[int(order[0])]
    origin = min(first, min((note[2] for note in reading.notes), default=first))
    operator_of = Launchers(reading)
    in_graph: dict[int, int] = {}
    autograd = _Spans(reading)
    phases = [(start, end, thread, phase) for name, thread, start, end in reading.notes if (phase := phase_of(name))]
    phases.sort()
    begins = [entry[0] for entry in phases]
    for index in order.tolist():
        correlation, stated = reading.ran_correlation[index], reading.ran_node[index]
        operator, shapes, launched, launcher, graph = operator_of(correlation, reading.ran_external[index])
        phase = _phase(phases, begins, autograd, launched, launcher)
        node = -1
        if graph:
            node = stated if stated > 0 else in_graph.get(correlation, 0)
            in_graph[correlation] = in_graph.get(correlation, 0) + 1
        said = reading.collectives.get(index)
        rows.add(
            rank=rank,
            device=reading.ran_device[index],
            stream=reading.ran_stream.of(index),
            start_s=(reading.ran_start[index] - origin) / 1e6,
            duration_s=reading.ran_length[index] / 1e6,
            name=reading.ran_name.of(index),
            operator=operator,
            shapes=shapes,
            grid=reading.ran_grid.of(index),
            phase=phase,
            collective=str(said["Collective name"]) if said is not None else "",
            size_bytes=_collective_bytes(said) if said is not None else reading.ran_bytes[index],
            group=reading.ran_group.of(index),
            graph_node=node,
            launch_s=(launched - origin) / 1e6 if launched is not None else float("nan"),
        )
    return rows, origin


def _phase(
    phases: list[tuple[float, float, int, str]],
    begins: list[float],
    autograd: _Spans,
    launched: float | None,
    thread: int,
) -> str:
    """By the innermost annotation that names one, else whether autograd's engine launched it."""
    if launched is None:
        return ""
    place = bisect_right(begins, launched) - 1
    for index in range(place, max(place - 16, -1), -1):
        _, end, owner, phase = phases[index]
        if end >= launched and owner == thread:
            return phase
    if not autograd:
        return ""
    return "backward" if autograd.around(thread, launched) else "forward"


class _Spans:
    """When autograd's engine was at work, by thread."""

    def __init__(self, reading: EventsKept) -> None:
        self._of: dict[int, tuple[list[float], list[float]]] = {}
        back = {number for number, word in enumerate(reading.op_name.words) if word.startswith(_BACKWARD)}
        for index in sorted(
            (index for index, code in enumerate(reading.op_name.codes) if code in back),
            key=lambda each: reading.op_start[each],
        ):
            starts, ends = self._of.setdefault(reading.op_thread[index], ([], []))
            starts.append(reading.op_start[index])
            ends.append(reading.op_end[index])

    def __bool__(self) -> bool:
        return bool(self._of)

    def around(self, thread: int, time: float) -> bool:
        starts, ends = self._of.get(thread, ([], []))
        place = bisect_right(starts, time) - 1
        return place >= 0 and ends[place] >= time


def _whole(value: object) -> int:
    if isinstance(value, str) and value.isdigit() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else -1


def _size(value: object) -> float:
    if isinstance(value, str) and value.isdigit():
        value = int(value[:18])
    return float(value) if isinstance(value, int | float) and abs(value) < 1e18 else 0.0


#: Bytes an element, by the names that NCCL's record in a trace uses.
_WIDTHS = {
    "double": 8,
    "long": 8,
    "int64": 8,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
}


def _collective_bytes(arguments: dict[str, Any]) -> float:
    """As nccl-tests counts: the larger of what goes in and what comes out."""
    kind = str(arguments.get("dtype", "")).lower().removeprefix("c10::")
    width = _WIDTHS.get(kind, 1 if "float8" in kind else 2)
    elements = max(_whole(arguments.get("In msg nelems")), _whole(arguments.get("Out msg nelems")), 0)
    return float(elements * width)


class Launchers:
    """Finds the operator that launched a kernel: by external id, else the innermost one around the launching call."""

    def __init__(self, reading: EventsKept) -> None:
        self._reading = reading
        order = np.argsort(np.frombuffer(reading.run_correlation or array("q", [0]), np.int64), kind="stable").tolist()
        order = order[: len(reading.run_correlation)]
        self._runs = {reading.run_correlation[index]: index for index in order}
        externals = list(zip(reading.ran_external[:4096], reading.ran_correlation[:4096], strict=True))
        # Older versions repeat the correlation there, which numbers no operator.
        by_external = not externals or any(external != correlation for external, correlation in externals)
        self._external = (
            {external: index for index, external in enumerate(reading.op_external) if external >= 0}
            if by_external
            else {}
        )
        self._around = self._innermost()

    def _innermost(self) -> dict[int, tuple[list[float], list[int]]]:
        """By thread: borders in time, and the innermost operator from each on (−1: none)."""
        reading = self._reading
        if not reading.op_start:
            return {}
        start, end = np.frombuffer(reading.op_start), np.frombuffer(reading.op_end)
        thread = np.frombuffer(reading.op_thread, np.int32)
        found: dict[int, tuple[list[float], list[int]]] = {}
        for number in np.unique(thread).tolist():
            own = np.flatnonzero(thread == number)
            own = own[np.lexsort((-end[own], start[own]))]
            borders: list[float] = []
            inner: list[int] = []
            stack: list[tuple[float, int]] = []
            for index, first, last in zip(own.tolist(), start[own].tolist(), end[own].tolist(), strict=True):
                while stack and stack[-1][0] <= first:
                    borders.append(stack.pop()[0])
                    inner.append(stack[-1][1] if stack else -1)
                borders.append(first)
                inner.append(index)
                stack.append((last, index))
            while stack:
                borders.append(stack.pop()[0])
                inner.append(stack[-1][1] if stack else -1)
            found[number] = (borders, inner)
        return found

    def __call__(self, correlation: int, external: int) -> tuple[str, str, float | None, int, bool]:
        """Name, shapes, when and on which thread it was launched, and whether by a graph."""
        reading = self._reading
        run = self._runs.get(correlation)
        launched = reading.run_start[run] if run is not None else None
        thread = reading.run_thread[run] if run is not None else -1
        graph = bool(reading.run_graph[run]) if run is not None else False
        index = self._external.get(external, -1)
        if index < 0 and launched is not None and not graph:
            borders, inner = self._around.get(thread, ([], []))
            place = bisect_right(borders, launched) - 1
            index = inner[place] if place >= 0 else -1
        if index < 0:
            return "", "", launched, thread, graph
        names, shapes = reading.op_name, reading.op_shapes
        if thread < 0:
            launched, thread = reading.op_start[index], reading.op_thread[index]
        return names.words[names.codes[index]], shapes.words[shapes.codes[index]], launched, thread, graph


def _takes(path: Path, start: bytes) -> bool:
    text = start.lstrip()
    if text[:1] == b"[":
        return b'"ph"' in text
    return text[:1] == b"{" and (
        b'"traceEvents"' in text
        or b'"deviceProperties"' in text
        or b'"distributedInfo"' in text
        or b'"schemaVersion"' in text
    )


TRACE_READERS.register(TraceReader("kineto", "PyTorch's profiler, JSON or gzip", _takes, read_kineto))
