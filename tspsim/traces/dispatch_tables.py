"""Tables of kernels, a row each, as CSV: rocprofv3's ``kernel_trace.csv`` and Nsight Systems' ``cuda_gpu_trace``.

``rocprofv3 --kernel-trace --output-format csv`` and ``rocpd2csv`` write *Kind, Agent_Id, …, Kernel_Name, …,
Start_Timestamp, End_Timestamp* in nanoseconds, older ROCm profilers *KernelName, …, BeginNs, EndNs*; ``nsys stats
--report cuda_gpu_trace --format csv`` *Start (ns), Duration (ns), …, Strm, Name*. Versions differ in their columns,
which are found by name.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..base.errors import InputError
from .logs import lines_of
from .reader import TRACE_READERS, FilePart, TraceReader
from .rocprof import blocks
from .table import Rows, TracedDevice

_SECONDS = {"ns": 1e-9, "us": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
#: Lines of a program's own words that may stand before the header.
_BEFORE = 30
_HEADERS = re.compile(
    r'^"?(Guid|Kind|Index|Start \(|Name,Start|Dispatch_Id)"?.*?(?P<name>Kernel_?Name|\bName\b)', re.IGNORECASE
)


@dataclass(frozen=True)
class DispatchColumns:
    """The names of a table's columns, each with those of older versions."""

    name: tuple[str, ...] = ("kernel_name", "kernelname", "name")
    start: tuple[str, ...] = ("start_timestamp", "start", "beginns")
    end: tuple[str, ...] = ("end_timestamp", "endns")
    length: tuple[str, ...] = ("duration",)
    stream: tuple[str, ...] = ("stream_id", "strm", "queue_id", "queue-id")
    device: tuple[str, ...] = ("agent_id", "device", "gpu-id")
    grid: tuple[str, ...] = ("grid_size_{}", "grd{}")
    #: Threads of a block, where a grid is stated in threads.
    threads: tuple[str, ...] = ("workgroup_size_{}",)
    size_bytes: tuple[str, ...] = ("bytes",)


_COLUMNS = DispatchColumns()
_BYTES = {"byte": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9}


class _Header:
    """The places of a table's columns, and the units in their brackets."""

    def __init__(self, cells: list[str]) -> None:
        self.places: dict[str, int] = {}
        self.units: dict[str, str] = {}
        for place, cell in enumerate(cells):
            match = re.match(r"\s*(?P<name>[^()]*?)\s*(?:\((?P<unit>[^)]*)\))?\s*$", cell)
            name = match["name"].lower() if match else cell.lower()
            self.places.setdefault(name, place)
            self.units.setdefault(name, (match["unit"] or "").lower() if match else "")

    def place(self, names: tuple[str, ...], axis: str = "") -> int | None:
        return next((self.places[word] for name in names if (word := name.format(axis)) in self.places), None)

    def unit(self, names: tuple[str, ...], units: Mapping[str, float], otherwise: float) -> float:
        unit = next((self.units[name] for name in names if name in self.units), "")
        return units.get(unit, otherwise)


def _blocks(cells: list[str], place: int, threads: int | None) -> str:
    size, of_a_block = cells[place], cells[threads] if threads is not None and threads < len(cells) else ""
    return str(blocks(int(size), int(of_a_block))) if size.isdigit() and of_a_block.isdigit() else size


def read_dispatch_table(path: Path) -> FilePart:
    """Read a table; raises InputError where it has no columns of times and names."""
    lines = lines_of(path)
    top = next((number for number, line in enumerate(lines[:_BEFORE]) if _HEADERS.match(line)), 0)
    table = csv.reader(lines[top:])
    header = _Header(next(table, []))
    name, start = header.place(_COLUMNS.name), header.place(_COLUMNS.start)
    end, length = header.place(_COLUMNS.end), header.place(_COLUMNS.length)
    if name is None or start is None or (end is None and length is None):
        raise InputError("is a table without the start, the end and the name of each kernel", file=str(path))
    scale = header.unit(_COLUMNS.start, _SECONDS, 1e-9)
    sizes = header.unit(_COLUMNS.size_bytes, _BYTES, 1e6)
    stream, device, data = (header.place(names) for names in (_COLUMNS.stream, _COLUMNS.device, _COLUMNS.size_bytes))
    axes = [(header.place(_COLUMNS.grid, axis), header.place(_COLUMNS.threads, axis)) for axis in "xyz"]
    entries, refused = [], 0
    for cells in table:
        try:
            begin = float(cells[start])
            seconds = (float(cells[end]) - begin if end is not None else float(cells[length or 0])) * scale
            if not (0.0 <= seconds < 1e9 and abs(begin) < 1e20):
                raise ValueError
            entries.append((begin, seconds, cells))
        except (ValueError, IndexError):
            refused += bool(cells)
    entries.sort(key=lambda entry: entry[0])
    rows, ranks = Rows(), dict[str, int]()
    for begin, seconds, cells in entries:
        owner = cells[device] if device is not None and device < len(cells) else ""
        rank = ranks.setdefault(owner, len(ranks))
        grid = [_blocks(cells, place, threads) for place, threads in axes if place is not None and cells[place]]
        text = cells[data] if data is not None and data < len(cells) else ""
        rows.add(
            rank=rank,
            device=rank,
            stream=cells[stream] if stream is not None else "",
            start_s=(begin - entries[0][0]) * scale,
            duration_s=seconds,
            name=cells[name],
            grid="×".join(grid),
            size_bytes=float(text) * sizes if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0,
        )
    missing = ["shapes and annotations (the table has kernels alone)", "the rank; devices are counted from 0"]
    if refused:
        missing.append(f"{refused} rows without times; they are left out")
    machine = TracedDevice(re.sub(r"\s*\(\d+\)$", "", next(iter(ranks), "")))
    # rocprofv3 numbers its agents; Nsight names them.
    machine = TracedDevice() if re.fullmatch(r"(Agent |GPU ?)?\d*", machine.name) else machine
    return FilePart(rows, machine, missing=tuple(missing), rank_unknown=len(ranks) == 1)


def _has(*columns: bytes) -> Callable[[Path, bytes], bool]:
    """Whether a header with these columns is among the first lines."""

    def takes(path: Path, start: bytes) -> bool:
        return any(all(column in line for column in columns) for line in start.splitlines()[:_BEFORE])

    return takes


TRACE_READERS.register(
    TraceReader(
        "rocprofv3-csv",
        "rocprofv3's kernel_trace.csv and rocpd2csv",
        _has(b"Kernel_Name", b"Start_Timestamp", b"End_Timestamp"),
        read_dispatch_table,
    )
)
TRACE_READERS.register(
    TraceReader(
        "rocprof-csv", "tables of the first rocprof", _has(b"KernelName", b"BeginNs", b"EndNs"), read_dispatch_table
    )
)
TRACE_READERS.register(
    TraceReader(
        "nsight-csv",
        "`nsys stats --report cuda_gpu_trace --format csv`",
        _has(b"Start (", b"Duration (", b"Name"),
        read_dispatch_table,
    )
)
