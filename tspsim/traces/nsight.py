"""Traces of NVIDIA Nsight Systems, exported as SQLite (``nsys export --type sqlite``).

The tables are ``CUPTI_ACTIVITY_KIND_KERNEL``, ``_MEMCPY``, ``_MEMSET``, ``_RUNTIME`` (same ``correlationId``),
``StringIds``, ``NVTX_EVENTS`` (PyTorch's ``emit_nvtx`` names operators, NCCL its collectives) and ``TARGET_INFO_GPU``.
Times are in nanoseconds. Every device of the file is a rank.
"""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ..base.errors import InputError
from .reader import TRACE_READERS, FilePart, TraceReader
from .table import Mark, Rows, TracedDevice

_MAGIC = b"SQLite format 3\x00"
#: Types of NVTX ranges: push/pop and start/end.
_RANGES = (59, 60)
_OPERATOR = re.compile(r"^(?P<name>[\w:]+(?:::[\w]+)*)(?:, (?:op_id|seq) = \d+.*)?$")
_SHAPES = re.compile(r"sizes = (\[.*?\])(?:, input_op_ids|$)")


def read_nsight(path: Path) -> FilePart:
    """Read a file; raises InputError where it is damaged or no export of Nsight Systems."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise InputError("is a packed export of Nsight Systems, which is read in place: unpack it", file=str(path))
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?immutable=1", uri=True)) as base:
            return _read(base)
    except (sqlite3.Error, UnicodeDecodeError, OverflowError, ValueError, TypeError) as error:
        raise InputError(f"cannot be read as an export of Nsight Systems: {error}", file=str(path)) from None


def _read(base: sqlite3.Connection) -> FilePart:
    tables = {name for (name,) in base.execute("select name from sqlite_master where type = 'table'")}
    rows, missing = Rows(), []
    if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
        return FilePart(rows, missing=("it has no table CUPTI_ACTIVITY_KIND_KERNEL; trace with --trace=cuda,nvtx",))
    strings = dict(base.execute("select id, value from StringIds")) if "StringIds" in tables else {}
    (first,) = base.execute("select min(start) from CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    first = first or 0
    ranges = _ranges(base, strings) if "NVTX_EVENTS" in tables else {}
    launches = _launches(base) if "CUPTI_ACTIVITY_KIND_RUNTIME" in tables else {}
    columns = {name for _, name, *_ in base.execute("pragma table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
    node, process, named = (
        next((word for word in words if word in columns), "null")
        for words in (("graphNodeId",), ("globalPid",), ("demangledName", "shortName"))
    )
    ranks = _ranks(base, process)
    query = f"""select start, end, deviceId, streamId, correlationId, {named}, gridX, gridY, gridZ, {node}, {process}
        from CUPTI_ACTIVITY_KIND_KERNEL order by start"""
    negative = 0
    for start, end, device, stream, correlation, name, x, y, z, graph, owner in base.execute(query):
        if end < start:
            negative += 1
            continue
        # Correlations are unique within one process.
        operator, shapes = _around(ranges, launches.get((owner, correlation)) or launches.get((None, correlation)))
        rows.add(
            rank=ranks[owner, device],
            device=device,
            stream=str(stream),
            start_s=(start - first) / 1e9,
            duration_s=(end - start) / 1e9,
            name=str(strings.get(name, name)),
            operator=operator,
            shapes=shapes,
            grid=f"{x}×{y}×{z}",
            graph_node=graph if isinstance(graph, int) else -1,
        )
    for table, what in (("CUPTI_ACTIVITY_KIND_MEMCPY", "Memcpy"), ("CUPTI_ACTIVITY_KIND_MEMSET", "Memset")):
        if table in tables and len(rows):
            owned = {name for _, name, *_ in base.execute(f"pragma table_info({table})")} & {"globalPid"}
            own = process if owned else "null"
            for start, end, device, stream, size, owner in base.execute(
                f"select start, end, deviceId, streamId, bytes, {own} from {table} order by start"
            ):
                if end >= start:
                    rank = ranks.get((owner, device), device)
                    rows.add(
                        rank=rank, device=device, stream=str(stream), start_s=(start - first) / 1e9,
                        duration_s=(end - start) / 1e9, name=what, size_bytes=float(size),
                    )  # fmt: skip
    if negative:
        missing.append(f"{negative} kernels whose length is negative; they are left out")
    machine = TracedDevice()
    if "TARGET_INFO_GPU" in tables:
        machine = _machine(base)
    devices = sorted(set(rows.numbers["rank"]))
    marks = tuple(_marks(ranges, first, ranks, devices))
    if not ranges:
        missing.append("NVTX ranges (--trace=cuda,nvtx)")
    if "CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in tables:
        count, length = base.execute(
            "select count(*), sum(end - start) from CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
        ).fetchone()
        if count:
            launches_of_graphs = f"{count:,} launches of {(length or 0) / 1e6:,.1f} ms are recorded whole"
            missing.append(f"kernels inside graphs: {launches_of_graphs}; trace with --cuda-graph-trace=node")
    alone = len(ranks) == len({device for _, device in ranks})
    missing.append(
        f"the rank; {'devices' if alone else 'processes, in the order of their numbers,'} are taken for ranks"
    )
    return FilePart(rows, machine, len(devices), marks=marks, missing=tuple(missing), rank_unknown=len(devices) == 1)


def _ranks(base: sqlite3.Connection, process: str) -> dict[tuple[int | None, int], int]:
    """Ranks by process and device: the device's number, or a count where every process has its own device 0."""
    query = f"select distinct {process}, deviceId from CUPTI_ACTIVITY_KIND_KERNEL order by 1, 2"
    pairs = [(owner, device) for owner, device in base.execute(query)]
    if len({device for _, device in pairs}) == len(pairs):
        return {pair: pair[1] for pair in pairs}
    return {pair: number for number, pair in enumerate(pairs)}


#: Mask of the process in a thread's number.
_PROCESS = ~0xFFFFFF
#: Host thread → starts, and (start, end, text) of its ranges.
_Ranges = dict[int, tuple[list[int], list[tuple[int, int, str]]]]


def _ranges(base: sqlite3.Connection, strings: dict[int, str]) -> _Ranges:
    by_thread: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    query = "select start, end, text, textId, globalTid from NVTX_EVENTS where end is not null order by start, end desc"
    for start, end, text, number, thread in base.execute(query):
        label = text if text is not None else strings.get(number, "")
        if label and isinstance(thread, int):
            by_thread[thread].append((start, end, str(label)))
    return {thread: ([entry[0] for entry in entries], entries) for thread, entries in by_thread.items()}


def _launches(base: sqlite3.Connection) -> dict[tuple[int | None, int], tuple[int, int]]:
    """Time and thread of launches by process and correlation; by None for kernels without a process."""
    launches: dict[tuple[int | None, int], tuple[int, int]] = {}
    for start, correlation, thread in base.execute(
        "select start, correlationId, globalTid from CUPTI_ACTIVITY_KIND_RUNTIME where correlationId is not null"
    ):
        launches[None, correlation] = launches[thread & _PROCESS, correlation] = (start, thread)
    return launches


def _around(ranges: _Ranges, launch: tuple[int, int] | None) -> tuple[str, str]:
    """The innermost NVTX operator around a launch, and its shapes."""
    if launch is None or launch[1] not in ranges:
        return "", ""
    starts, entries = ranges[launch[1]]
    place = bisect_right(starts, launch[0]) - 1
    for index in range(place, max(place - 64, -1), -1):
        _, end, text = entries[index]
        if end >= launch[0] and "::" in text:
            match = _OPERATOR.match(text.split(", sizes")[0])
            shapes = _SHAPES.search(text)
            return (match.group("name") if match else text.split(",")[0]), (
                shapes.group(1).replace(" ", "") if shapes else ""
            )
    return "", ""


def _marks(ranges: _Ranges, first: int, ranks: dict[tuple[int | None, int], int], every: list[int]) -> Iterator[Mark]:
    """Ranges that are no operators: steps and parts of them. A range belongs to the first device of its process."""
    for thread, (_, entries) in ranges.items():
        own = [rank for (owner, _), rank in ranks.items() if owner == thread & _PROCESS] or every
        for start, end, text in entries:
            if "op_id" not in text and not re.match(r"^(aten|nccl|cuda|c10d|autograd)", text, re.IGNORECASE):
                for rank in own[:1]:
                    yield Mark(rank, text, (start - first) / 1e9, (end - first) / 1e9, str(thread))


def _machine(base: sqlite3.Connection) -> TracedDevice:
    columns = [name for _, name, *_ in base.execute("pragma table_info(TARGET_INFO_GPU)")]
    row = base.execute("select * from TARGET_INFO_GPU limit 1").fetchone()
    entry: dict[str, Any] = dict(zip(columns, row, strict=True)) if row else {}
    units, memory = entry.get("smCount"), entry.get("totalMemory")
    return TracedDevice(
        str(entry.get("name") or ""), units if isinstance(units, int) else 0, memory if isinstance(memory, int) else 0
    )


TRACE_READERS.register(
    TraceReader(
        "nsight", "Nsight Systems, exported as SQLite", lambda path, start: start.startswith(_MAGIC), read_nsight
    )
)
