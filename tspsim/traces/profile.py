"""The kept columns of a PyTorch profile: a profile may have millions of events, so none stays an object."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from .table import Words

RAN = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
OPERATORS = frozenset({"cpu_op", "Operator"})
RUNTIME = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "privateuse1_runtime"})
NOTES = frozenset({"user_annotation", "UserAnnotation"})
#: Types of events that begin and end a stretch of a thread, one within the other.
PAIRED = frozenset({"B", "E"})
KEPT = RAN | OPERATORS | RUNTIME | NOTES
_NOTHING = msgspec.Raw(b"")
_KEYS = {
    "external": "External id",
    "node": "graph node id",
    "dims": "Input Dims",
    "older_dims": "Input dims",
    "collective": "Collective name",
    "sent": "In msg nelems",
    "received": "Out msg nelems",
    "group": "Process Group Name",
    "group_description": "Process Group Description",
}
#: Longest kept text of shapes; longer ones are lists of all weights, from an optimizer's operator.
_LONGEST_SHAPES = 4096


class Arguments(msgspec.Struct, gc=False, rename=_KEYS):
    """The used arguments of an event; the decoder skips the others."""

    correlation: Any = -1
    external: Any = -1
    node: Any = -1
    device: Any = 0
    stream: Any = None
    bytes: Any = 0.0
    grid: msgspec.Raw = _NOTHING
    dims: msgspec.Raw = _NOTHING
    older_dims: msgspec.Raw = _NOTHING
    collective: Any = None
    sent: Any = None
    received: Any = None
    dtype: Any = ""
    group: Any = None
    group_description: Any = None
    kernel: Any = ""


class Event(msgspec.Struct, gc=False):
    """A complete event (``X``) of a kept category, or the begin or end of one (``B``, ``E``); another event has an
    empty category."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = float("nan")
    dur: float = 0.0
    args: Arguments | None = None


_NO_ARGUMENTS = Arguments()
_WANTED = frozenset({_KEYS.get(name, name) for name in Arguments.__struct_fields__})
_ARGUMENTS = msgspec.json.Decoder(Arguments)
_EVENTS = msgspec.json.Decoder(list[Event])


def parse(text: bytes) -> list[Event]:
    """The kept events of a JSON list; raises ValueError where the text is none, or an event has no time."""
    try:
        events = _EVENTS.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    kept = [event for event in events if (event.ph == "X" and event.cat in KEPT) or event.ph in PAIRED]
    if kept and not timed([event.ts for event in kept], [event.dur for event in kept]):
        raise ValueError("no time")
    return kept


def parse_one(event: dict[str, Any]) -> Event:
    """An event from a dictionary."""
    kind, category = event.get("ph"), event.get("cat", "")
    if kind not in PAIRED and (kind != "X" or category not in KEPT):
        return Event()
    start, length = float(event.get("ts", "nan")), float(event.get("dur", 0.0))
    if not timed([start], [length]):
        raise ValueError("no time")
    arguments = event.get("args") or {}
    text = json.dumps({key: value for key, value in arguments.items() if key in _WANTED}).encode()
    try:
        own = _ARGUMENTS.decode(text)
    except msgspec.DecodeError:
        own = None
    name, pid, tid = (str(event.get(key, "")) for key in ("name", "pid", "tid"))
    return Event(str(kind), str(category), name, pid, tid, start, length, own)


def timed(starts: Sequence[float], lengths: Sequence[float]) -> bool:
    """Whether all values are numbers in the range of times."""
    # A sum with NaN is NaN; a maximum with NaN need not be.
    whole = sum(starts) + sum(lengths)
    return whole == whole and max(map(abs, starts)) < 1e18 and max(map(abs, lengths)) < 1e15


#: Columns of numbers of kernels and copies, times in µs.
_RAN = {
    "start": "d", "length": "d", "bytes": "d", "correlation": "q", "external": "q", "node": "q", "device": "i",
    "process": "i",
}  # fmt: skip
#: Prefix of every process number in a file from SGLang's merger: ``[TP00-DP01] 4711``.
_LABEL = re.compile(r"^\[[^\]]+\](?= )")
#: Offset between the launch and operator numbers of two processes; a process counts to less.
_PROCESS = 1 << 44


class ProfileColumns:
    """The columns of a file, filled while the file is read."""

    def __init__(self) -> None:
        #: Kernels and copies; a consumer removes each column when it has turned it into rows.
        self.ran: dict[str, array[Any]] = {name: array(kind) for name, kind in _RAN.items()}
        self.ran_words = {name: Words() for name in ("name", "stream", "grid", "group")}
        #: Names of collectives, by the number of their kernel.
        self.collectives: dict[int, str] = {}
        self.threads = Words()
        self.op_start, self.op_end, self.op_external = array("d"), array("d"), array("q")
        self.op_thread, self.op_name, self.op_shapes = array("i"), Words(), Words()
        self.run_start, self.run_correlation = array("d"), array("q")
        self.run_thread, self.run_graph = array("i"), array("b")
        self.notes: list[tuple[str, int, float, float]] = []
        self.negative = 0
        #: By process and thread, events that have begun and not ended; and ends of what has not begun.
        self._begun: dict[tuple[str, str], list[Event]] = {}
        self.unpaired = 0
        #: Labels of the processes whose profiles were merged into the file.
        self.processes: list[str] = []
        self._texts: dict[bytes, str] = {}

    def take(self, events: list[Event]) -> None:
        """Append events to the columns."""
        if any(event.ph != "X" for event in events):
            events = self._joined(events)
        by_category: dict[str, list[Event]] = {}
        if events and (process_of(events[0].pid) or process_of(events[-1].pid)):
            self._tell_apart(events)
        for event in events:
            by_category.setdefault(event.cat, []).append(event)
        parts = ((RAN, self._ran), (OPERATORS, self._operators), (RUNTIME, self._launches), (NOTES, self._notes))
        for category, own in by_category.items():
            for categories, part in parts:
                if category in categories:
                    part(own)

    def _joined(self, events: list[Event]) -> list[Event]:
        """Complete events in the place of begins and ends. An end belongs to what began last on its thread; what has no
        category that is kept is taken from the stack all the same."""
        whole = []
        for event in events:
            if event.ph == "X":
                whole.append(event)
                continue
            begun = self._begun.setdefault((str(event.pid), str(event.tid)), [])
            if event.ph == "B":
                begun.append(event)
            elif event.ph == "E":
                if not begun:
                    self.unpaired += 1
                    continue
                first = begun.pop()
                if first.cat in KEPT:
                    first.ph, first.dur, first.args = "X", event.ts - first.ts, first.args or event.args
                    whole.append(first)
        return whole

    @property
    def open(self) -> int:
        """Kept events that begin and do not end."""
        return sum([event.cat in KEPT for begun in self._begun.values() for event in begun])

    def _tell_apart(self, events: list[Event]) -> None:
        """Number the processes of a merged file, and make their launches, operators and threads distinct."""
        for event in events:
            label = process_of(event.pid)
            if not label:
                continue
            if label not in self.processes:
                self.processes.append(label)
            number = self.processes.index(label)
            event.pid, event.tid = number, f"{label} {event.tid}"
            if (args := event.args) is not None:
                correlation, external = _whole(args.correlation), _whole(args.external)
                args.correlation = correlation + number * _PROCESS if correlation >= 0 else -1
                args.external = external + number * _PROCESS if external >= 0 else -1

    def _operators(self, events: list[Event]) -> None:
        arguments = [event.args or _NO_ARGUMENTS for event in events]
        self.op_thread.extend(self._threads(events))
        self.op_start.extend([event.ts for event in events])
        self.op_end.extend([event.ts + event.dur for event in events])
        self.op_external.extend(_whole_numbers([own.external for own in arguments]))
        self.op_name.extend([event.name for event in events])
        self.op_shapes.extend([self._shapes(own.dims) or self._shapes(own.older_dims) for own in arguments])

    def _launches(self, events: list[Event]) -> None:
        correlations = _whole_numbers([(event.args or _NO_ARGUMENTS).correlation for event in events])
        pairs = [(event, number) for event, number in zip(events, correlations, strict=True) if number >= 0]
        own = [event for event, _ in pairs]
        self.run_correlation.extend([number for _, number in pairs])
        self.run_start.extend([event.ts for event in own])
        self.run_thread.extend(self._threads(own))
        self.run_graph.extend(["GraphLaunch" in event.name for event in own])

    def _notes(self, events: list[Event]) -> None:
        for event, thread in zip(events, self._threads(events), strict=True):
            self.notes.append((event.name, thread, event.ts, event.ts + event.dur))

    def _ran(self, events: list[Event]) -> None:
        own = [event for event in events if event.dur >= 0.0]
        self.negative += len(events) - len(own)
        arguments = [event.args or _NO_ARGUMENTS for event in own]
        ran, words, first = self.ran, self.ran_words, len(self.ran["start"])
        ran["start"].extend([event.ts for event in own])
        ran["length"].extend([event.dur for event in own])
        ran["bytes"].extend([_size(args.bytes) for args in arguments])
        ran["correlation"].extend(_whole_numbers([args.correlation for args in arguments]))
        ran["external"].extend(_whole_numbers([args.external for args in arguments]))
        ran["node"].extend(_whole_numbers([args.node for args in arguments]))
        ran["device"].extend([min(max(number, 0), 1 << 30) for number in _whole_numbers([e.device for e in arguments])])
        merged = bool(self.processes)
        ran["process"].extend([event.pid if merged and isinstance(event.pid, int) else 0 for event in own])
        words["name"].extend([event.name for event in own])
        words["stream"].extend(
            [str(event.tid if args.stream is None else args.stream) for event, args in zip(own, arguments, strict=True)]
        )
        words["grid"].extend([self._grid(args.grid) for args in arguments])
        words["group"].extend([str(args.group_description or args.group or "") for args in arguments])
        for place, args in enumerate(arguments, first):
            if args.collective:
                self.collectives[place] = str(args.collective)
                ran["bytes"][place] = _collective_bytes(args)

    def _threads(self, events: list[Event]) -> list[int]:
        code = self.threads.code
        return [code(str(event.tid)) for event in events]

    def _shapes(self, raw: msgspec.Raw) -> str:
        """Shapes as text without blanks; each distinct text is stored once."""
        text = bytes(raw)
        shapes = self._texts.get(text)
        if shapes is None:
            listed = text[:1] == b"[" and len(text) <= _LONGEST_SHAPES
            shapes = self._texts[text] = text.decode("ascii", "replace").replace(" ", "") if listed else ""
        return shapes

    def _grid(self, raw: msgspec.Raw) -> str:
        """Blocks along each axis."""
        text = bytes(raw)
        grid = self._texts.get(b"grid" + text)
        if grid is None:
            sizes = json.loads(text) if text[:1] == b"[" else []
            grid = self._texts[b"grid" + text] = "×".join(map(str, sizes))
        return grid


def process_of(number: int | str) -> str:
    """The label of a process in a merged file, from the number of a process or thread; empty where it has none."""
    label = _LABEL.match(number) if isinstance(number, str) else None
    return label[0] if label is not None else ""


def _whole_numbers(values: list[Any]) -> list[int]:
    """Values as whole numbers; −1 for other values."""
    if set(map(type, values)) == {int} and min(values) > -(1 << 62) and max(values) < 1 << 62:
        return values
    return [_whole(value) for value in values]


def _whole(value: object) -> int:
    if isinstance(value, str) and value.isdigit() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else -1


def _size(value: object) -> float:
    if isinstance(value, str) and value.isdigit():
        value = int(value[:18])
    return float(value) if isinstance(value, int | float) and abs(value) < 1e18 else 0.0


#: Bytes per element, by the type names in NCCL's records.
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


def _collective_bytes(args: Arguments) -> float:
    """Bytes as nccl-tests count them: the larger of input and output."""
    kind = str(args.dtype).lower().removeprefix("c10::")
    width = _WIDTHS.get(kind, 1 if "float8" in kind else 2)
    return float(max(_whole(args.sent), _whole(args.received), 0) * width)


class Launched(NamedTuple):
    """The launches of kernels: place of the operator (−1: none), time (NaN: not stated), thread (−1: not stated), and
    whether the launch was a graph's."""

    operator: NDArray[np.int64]
    launch_us: NDArray[np.float64]
    thread: NDArray[np.int64]
    graph: NDArray[np.bool_]


class Launchers:
    """The launching operators of kernels: by external id, else the innermost operator around the launching call."""

    def __init__(self, reading: ProfileColumns) -> None:
        self._reading = reading
        externals, correlations = reading.ran["external"][:4096], reading.ran["correlation"][:4096]
        # Older versions repeat the correlation there; it numbers no operator.
        self._by_external = not externals or externals != correlations

    def of(self, correlations: NDArray[np.int64], externals: NDArray[np.int64]) -> Launched:
        """The launches of kernels with these correlations and external ids."""
        reading = self._reading
        run = last_with(_array(reading.run_correlation, np.int64), correlations)
        ran = run >= 0
        launch = np.full(len(run), np.nan)
        thread = np.full(len(run), -1, np.int64)
        graph = np.zeros(len(run), bool)
        launch[ran] = _array(reading.run_start, np.float64)[run[ran]]
        thread[ran] = _array(reading.run_thread, np.int32)[run[ran]]
        graph[ran] = _array(reading.run_graph, np.int8)[run[ran]] > 0
        operator = np.full(len(run), -1, np.int64)
        if self._by_external:
            operator = last_with(_array(reading.op_external, np.int64), externals)
            operator[externals < 0] = -1
        for number in np.unique(thread[ran & ~graph & (operator < 0)]).tolist():
            rows = np.flatnonzero((thread == number) & ran & ~graph & (operator < 0))
            borders, inner = self._innermost(number)
            place = np.searchsorted(borders, launch[rows], side="right") - 1
            operator[rows] = np.where(place >= 0, inner[place], -1)
        bare = ~ran & (operator >= 0)
        launch[bare] = _array(reading.op_start, np.float64)[operator[bare]]
        thread[bare] = _array(reading.op_thread, np.int32)[operator[bare]]
        return Launched(operator, launch, thread, graph)

    def _innermost(self, thread: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Borders in a thread's time, and the innermost operator after each border (−1: none)."""
        reading = self._reading
        start, end = _array(reading.op_start, np.float64), _array(reading.op_end, np.float64)
        own = np.flatnonzero(_array(reading.op_thread, np.int32) == thread)
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
        return np.array(borders), np.array(inner or [-1], np.int64)


def last_with(keys: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """The last place of every wanted value in ``keys``; −1 where it has none.

    >>> last_with(np.array([7, 5, 7]), np.array([7, 6, 5])).tolist()
    [2, -1, 1]
    """
    if not len(keys):
        return np.full(len(wanted), -1, np.int64)
    order = np.argsort(keys, kind="stable")
    place = np.searchsorted(keys, wanted, side="right", sorter=order) - 1
    candidates = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (keys[candidates] == wanted), candidates, -1)


def _array(column: array[Any], kind: Any) -> NDArray[Any]:
    """The column as an array, without a copy."""
    return np.frombuffer(column, kind) if len(column) else np.zeros(0, kind)
