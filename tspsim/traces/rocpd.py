"""Databases of rocprofv3: ``rocpd``, SQLite, what it writes by default since ROCm 7.

Every table has the run's number behind its name, and a view without it: ``rocpd_kernel_dispatch``,
``rocpd_info_kernel_symbol``, ``rocpd_info_agent``, ``rocpd_region`` with ``rocpd_string`` (markers and calls). Times
are in nanoseconds. Every agent with kernels is a rank.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from ..base.errors import InputError
from .reader import TRACE_READERS, FilePart, TraceReader
from .rocprof import blocks
from .table import Mark, Rows, TracedDevice

_MAGIC = b"SQLite format 3\x00"
_DISPATCHES = "rocpd_kernel_dispatch"


def read_rocpd(path: Path) -> FilePart:
    """Read a file; raises InputError where it is damaged."""
    try:
        with closing(_opened(path)) as base:
            return _read(base)
    except (sqlite3.Error, UnicodeDecodeError, OverflowError, ValueError, TypeError) as error:
        raise InputError(f"cannot be read as a rocpd database: {error}", file=str(path)) from None


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?immutable=1", uri=True)


def _named(base: sqlite3.Connection, table: str) -> str:
    """The view or table of a name, in quotes; the table of the first run where there is no view."""
    names = [name for (name,) in base.execute("select name from sqlite_master where type in ('table', 'view')")]
    own = [name for name in names if name == table] + sorted(name for name in names if name.startswith(f"{table}_"))
    return f"`{own[0]}`" if own else ""


def _read(base: sqlite3.Connection) -> FilePart:
    dispatches, symbols = _named(base, _DISPATCHES), _named(base, "rocpd_info_kernel_symbol")
    rows, missing = Rows(), ["shapes (rocprofv3 does not record them)", "the rank; agents are counted from 0"]
    if not dispatches or not symbols:
        return FilePart(rows, missing=("it has no table of kernels and their symbols; trace with --kernel-trace",))
    columns = {name for _, name, *_ in base.execute(f"pragma table_info({symbols})")}
    name = next((f"s.{column}" for column in ("display_name", "kernel_name") if column in columns), "''")
    own = {column for _, column, *_ in base.execute(f"pragma table_info({dispatches})")}
    sizes = [f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
    agent, stream, *axes = (f"k.{column}" if column in own else "null" for column in ("agent_id", "stream_id", *sizes))
    query = f"""select k.start, k.end, {agent}, {stream}, {name}, {", ".join(axes)}
        from {dispatches} k left join {symbols} s on s.id = k.kernel_id order by k.start"""
    ranks: dict[int | None, int] = {}
    first, refused = None, 0
    for start, end, owner, queue, kernel, *grid in base.execute(query):
        if not isinstance(start, int) or not isinstance(end, int) or end < start:
            refused += 1
            continue
        first = start if first is None else first
        rank = ranks.setdefault(owner, len(ranks))
        rows.add(
            rank=rank,
            device=rank,
            stream="" if queue is None else str(queue),
            start_s=(start - first) / 1e9,
            duration_s=(end - start) / 1e9,
            name=str(kernel or "kernel"),
            grid="×".join(
                str(blocks(size, threads)) for size, threads in zip(grid[:3], grid[3:], strict=True) if size is not None
            ),
        )
    if refused:
        missing.append(f"{refused} dispatches without times; they are left out")
    marks = tuple(_marks(base, first or 0)) if ranks else ()
    return FilePart(rows, _machine(base, ranks), marks=marks, missing=tuple(missing), rank_unknown=len(ranks) == 1)


def _marks(base: sqlite3.Connection, first: int) -> list[Mark]:
    """Regions of markers (ROCTX); calls of the runtime have names of functions."""
    regions, strings = _named(base, "rocpd_region"), _named(base, "rocpd_string")
    if not regions or not strings:
        return []
    query = (
        f"select r.start, r.end, s.string, r.tid from {regions} r join {strings} s on s.id = r.name_id order by r.start"
    )
    return [
        Mark(0, text, (start - first) / 1e9, (end - first) / 1e9, str(thread))
        for start, end, text, thread in base.execute(query)
        if isinstance(text, str) and not text.startswith(("hip", "hsa", "roctx", "rccl", "nccl")) and end >= start
    ]


def _machine(base: sqlite3.Connection, ranks: dict[int | None, int]) -> TracedDevice:
    agents = _named(base, "rocpd_info_agent")
    if not agents:
        return TracedDevice()
    columns = [name for _, name, *_ in base.execute(f"pragma table_info({agents})")]
    for row in base.execute(f"select * from {agents}"):
        entry = dict(zip(columns, row, strict=True))
        if entry.get("id") in ranks:
            beside = json.loads(entry.get("extdata") or "{}")
            units = beside.get("cu_count", 0) if isinstance(beside, dict) else 0
            name = entry.get("product_name") or entry.get("model_name") or entry.get("name") or ""
            return TracedDevice(str(name), units if isinstance(units, int) else 0)
    return TracedDevice()


def _takes(path: Path, start: bytes) -> bool:
    if not start.startswith(_MAGIC):
        return False
    try:
        with closing(_opened(path)) as base:
            return bool(_named(base, _DISPATCHES))
    except sqlite3.Error:
        return False


TRACE_READERS.register(TraceReader("rocpd", "rocprofv3's database", _takes, read_rocpd))
