"""Traces of the PyTorch profiler (Kineto's Chrome trace events), plain or gzip, read in pieces.

Format: "Trace Event Format" (Google, 2016) with the categories of Kineto's ``output_json.cpp``. ``kernel``,
``gpu_memcpy`` and ``gpu_memset`` ran on a device; ``cuda_runtime`` launched them (same ``correlation``); ``cpu_op`` are
operators (same ``External id``); ``user_annotation`` are ``record_function`` blocks. Times are in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pieces import Ending, events
from .profile import Launched, Launchers, ProfileColumns, parse, parse_one, process_of
from .reader import TRACE_READERS, FilePart, TraceReader
from .steps import phase_of
from .table import Mark, Rows, TracedDevice, TracedGroup, Words

#: Annotations of collectives and compiled calls; none of them marks a step.
_NO_MARKS = ("nccl:", "gloo:", "c10d::", "record_param_comms", "## Call CompiledFxGraph", "## metrics")
#: Prefix of the operators that autograd's engine runs.
_BACKWARD = "autograd::engine::evaluate_function"


def read_events(path: Path, reading: ProfileColumns) -> Ending:
    """Put a file's events into the columns, piece by piece; returns the file's ending."""
    ending = Ending()
    for piece in events(path, parse, parse_one, ending):
        reading.take(piece)
    return ending


def read_kineto(path: Path) -> FilePart:
    """Read a file; raises InputError where it has no events."""
    reading = ProfileColumns()
    ending = read_events(path, reading)
    missing = []
    if not ending.whole:
        missing.append("the file's end: it is cut off, and whole events before the cut are kept")
    if ending.refused:
        missing.append(f"{ending.refused} events that are no valid JSON or have no time; they are left out")
    if reading.negative:
        missing.append(f"{reading.negative} kernels whose length is negative; they are left out")
    if reading.open or reading.unpaired:
        unpaired = f"{reading.open} begins without an end, {reading.unpaired} ends without a begin"
        missing.append(f"{unpaired}; they are left out")
    about = ending.beside
    distributed = about.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    stated, world = _number_of(distributed.get("rank")), _number_of(distributed.get("world_size"))
    if stated is None:
        missing.append("the rank (distributedInfo)")
    rank = stated or 0
    several = _several(reading)
    rows, origin, threads = _rows(reading, rank if several is None else several)
    ranks = [rank] if several is None else sorted(set(several.tolist()))
    if several is not None:
        what = "processes in the order of the file" if reading.processes else "devices"
        missing = [text for text in missing if not text.startswith("the rank ")]
        missing.append(f"one file per rank: this file has {len(ranks)} ranks, {what}")
    return FilePart(
        rows,
        machine_of(about.get("deviceProperties"), rows.numbers["device"][0] if len(rows) else 0),
        max(world or 0, len(ranks) if several is not None else 0),
        tuple(_groups(distributed)),
        tuple(_marks(reading, ranks, threads, origin)),
        tuple(missing),
        {"origin_us": dict.fromkeys(ranks, origin)},
        rank_unknown=stated is None and several is None,
    )


#: A device is a rank if it ran at least this share of the busiest device's kernels; a few copies do not make one.
_OWN_RANK = 0.1


def _several(reading: ProfileColumns) -> NDArray[np.int64] | None:
    """The rank of every kernel in a file with several ranks: the process in merged profiles, else the device. None: the
    file has one rank."""
    if not len(reading.ran["start"]):
        return None
    for column in ("process", "device"):
        number = np.frombuffer(reading.ran[column], np.int32).astype(np.int64)
        owners, place, counts = np.unique(number, return_inverse=True, return_counts=True)
        busy = np.flatnonzero(counts >= _OWN_RANK * counts.max())
        if len(busy) > 1:
            rank = np.full(len(owners), 0)
            rank[busy] = np.arange(len(busy))
            kernel_ranks: NDArray[np.int64] = rank[place]
            return kernel_ranks
    return None


def machine_of(properties: object, device: int) -> TracedDevice:
    """The device with a number, from Kineto's ``deviceProperties``; some versions write those as Python text."""
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


def _number_of(value: object) -> int | None:
    """A number of ranks, or of one; None for what is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def _groups(distributed: dict[str, Any]) -> list[TracedGroup]:
    groups = []
    stated = distributed.get("pg_config")
    for entry in stated if isinstance(stated, list) else []:
        if isinstance(entry, dict):
            listed = entry.get("ranks")
            listed = listed if isinstance(listed, list) else []
            ranks = tuple(rank for value in listed if (rank := _number_of(value)) is not None)
            name = f"{entry.get('pg_name', '')} {entry.get('pg_desc', '')}".strip()
            size = _number_of(entry.get("pg_size"))
            groups.append(TracedGroup(name, len(ranks) if size is None else size, ranks))
    return groups


def _marks(
    reading: ProfileColumns, ranks: Sequence[int], threads: Mapping[int, Sequence[int]], origin: float
) -> list[Mark]:
    """Annotations as marks. A mark belongs to the ranks whose kernels its thread launched, or to all where it launched
    none."""
    processes = {label: [number] for number, label in enumerate(reading.processes)}
    return [
        Mark(rank, name, (start - origin) / 1e6, (end - origin) / 1e6, reading.threads.words[thread])
        for name, thread, start, end in sorted(reading.notes, key=lambda note: (note[2], -note[3]))
        if not name.startswith(_NO_MARKS)
        for rank in processes.get(process_of(reading.threads.words[thread]), threads.get(thread, ranks))
    ]


def _rows(reading: ProfileColumns, ranks: int | NDArray[np.int64]) -> tuple[Rows, float, Mapping[int, Sequence[int]]]:
    """Kernels as rows with their launchers; the time zero; and the ranks of every thread's kernels."""
    if not len(reading.ran["start"]):
        return Rows(), 0.0, {}
    start = np.frombuffer(reading.ran["start"])
    order = np.argsort(start, kind="stable")
    first = float(start[order[0]])
    origin = min(first, min((note[2] for note in reading.notes), default=first))
    launchers = Launchers(reading)

    def taken(name: str) -> NDArray[Any]:
        column = reading.ran.pop(name)
        return np.frombuffer(column, column.typecode)[order]

    correlation = taken("correlation")
    launched = launchers.of(correlation, taken("external"))
    stated = taken("node")
    node = np.where(launched.graph, np.where(stated > 0, stated, _in_graph(correlation, launched.graph)), -1)
    del correlation, stated, start
    own = np.full(len(order), ranks) if isinstance(ranks, int) else ranks[order]
    threads: dict[int, list[int]] = {}
    for rank, thread in np.unique(np.stack([own, launched.thread]), axis=1).T.tolist():
        threads.setdefault(thread, []).append(rank)
    collective_codes, collectives = np.zeros(len(order), np.int32), Words()
    collectives.code("")
    for place, name in reading.collectives.items():
        collective_codes[place] = collectives.code(name)

    def numbers() -> Iterator[tuple[str, NDArray[Any]]]:
        yield "graph_node", node
        yield "launch_s", (launched.launch_us - origin) / 1e6
        yield "rank", own
        yield "device", taken("device")
        yield "start_s", (taken("start") - origin) / 1e6
        yield "duration_s", taken("length") / 1e6
        yield "bytes", taken("bytes")

    def words() -> Iterator[tuple[str, NDArray[np.int32], list[str]]]:
        yield "phase", *_phases(reading, launched)
        yield "operator", _codes(reading.op_name, launched.operator), reading.op_name.words
        yield "shapes", _codes(reading.op_shapes, launched.operator), reading.op_shapes.words
        yield "collective", collective_codes[order], collectives.words
        for name in tuple(reading.ran_words):
            own = reading.ran_words.pop(name)
            yield name, _codes(own)[order], own.words

    return Rows.of(len(order), numbers(), words()), origin, threads


def _codes(words: Words, places: NDArray[np.int64] | None = None) -> NDArray[np.int32]:
    """Codes of the words at some places; −1 where a place is −1."""
    codes = np.frombuffer(words.codes, np.int32) if len(words.codes) else np.full(1, -1, np.int32)
    return codes if places is None else np.where(places >= 0, codes[places], -1).astype(np.int32)


def _in_graph(correlation: NDArray[np.int64], graph: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The number of every kernel among those that the same call of a graph launched."""
    rows = np.flatnonzero(graph)
    by_call = rows[np.argsort(correlation[rows], kind="stable")]
    begins = np.flatnonzero(np.diff(correlation[by_call], prepend=correlation[by_call[:1]] - 1))
    count = np.arange(len(by_call)) - np.repeat(begins, np.diff(np.append(begins, len(by_call))))
    places = np.zeros(len(correlation), np.int64)
    places[by_call] = count
    return places


#: Phase annotations before a launch that the search for the innermost one looks at.
_AROUND = 16


def _phases(reading: ProfileColumns, launched: Launched) -> tuple[NDArray[np.int32], list[str]]:
    """The phase of every kernel as a code, and the words of the codes. The innermost phase annotation decides, else
    whether autograd's engine launched the kernel."""
    words = Words()
    nothing, forward, backward = words.code(""), words.code("forward"), words.code("backward")
    notes = sorted(
        (start, end, thread, words.code(phase))
        for name, thread, start, end in reading.notes
        if (phase := phase_of(name))
    )
    times, phase_codes = launched.launch_us, np.full(len(launched.launch_us), -1, np.int32)
    stated = np.isfinite(times)
    if notes:
        begins, ends, owners, codes = map(np.array, zip(*notes, strict=True))
        place = np.searchsorted(begins, times, side="right") - 1
        for back in range(_AROUND):
            at = np.maximum(place - back, 0)
            fits = (phase_codes < 0) & stated & (place >= back) & (ends[at] >= times) & (owners[at] == launched.thread)
            phase_codes[fits] = codes[at[fits]]
    open_rows = np.flatnonzero((phase_codes < 0) & stated)
    engine = _autograd(reading)
    phase_codes[open_rows] = nothing if engine is None else forward
    for thread, (begins, ends) in (engine or {}).items():
        rows = open_rows[launched.thread[open_rows] == thread]
        at = np.searchsorted(begins, times[rows], side="right") - 1
        phase_codes[rows[(at >= 0) & (ends[at] >= times[rows])]] = backward
    phase_codes[phase_codes < 0] = nothing
    return phase_codes, words.words


def _autograd(reading: ProfileColumns) -> dict[int, tuple[NDArray[Any], NDArray[Any]]] | None:
    """The work of autograd's engine by thread, as begins and ends; None where it did not run."""
    back = [number for number, word in enumerate(reading.op_name.words) if word.startswith(_BACKWARD)]
    if not back:
        return None
    rows = np.flatnonzero(np.isin(_codes(reading.op_name), back))
    starts, ends = np.frombuffer(reading.op_start)[rows], np.frombuffer(reading.op_end)[rows]
    threads = np.frombuffer(reading.op_thread, np.int32)[rows]
    order = np.argsort(starts, kind="stable")
    spans = {}
    for thread in np.unique(threads).tolist():
        own = order[threads[order] == thread]
        # A backward pass within another (reentrant checkpoints) ends before the outer one does.
        spans[thread] = (starts[own], np.maximum.accumulate(ends[own]))
    return spans


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


KINETO = TRACE_READERS.register(TraceReader("kineto", "PyTorch's profiler, JSON", _takes, read_kineto))
