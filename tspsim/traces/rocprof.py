"""Traces of rocprofv3 (ROCprofiler SDK), JSON: kernel dispatches of all agents of a process.

The layout is ``{"rocprofiler-sdk-tool": [{"agents", "kernel_symbols", "buffer_records": {"kernel_dispatch",
"memory_copy", "rccl_api", "marker_api"}}]}``; times are in nanoseconds. The records come after a table of symbols, so
the file is read as a whole. It has only dispatches and is small beside a profiler's file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..base.errors import InputError
from .pieces import Ending, chunks, opened
from .reader import TRACE_READERS, FilePart, TraceReader
from .table import Mark, Rows, TracedDevice

#: The largest file that is read, in unpacked bytes.
LARGEST = 1 << 30
KEY = "rocprofiler-sdk-tool"


def read_rocprof(path: Path) -> FilePart:
    """Read a file; raises InputError where it is cut off or not from rocprofv3."""
    ending = Ending()
    with opened(path) as file:
        text = bytearray()
        for piece in chunks(file, ending):
            text += piece
            if len(text) > LARGEST:
                raise InputError("is over 1 GiB unpacked; record fewer steps", file=str(path))
    try:
        document = json.loads(bytes(text).decode("utf-8", errors="replace"), strict=False)
        tools = document[KEY]
        tools = json.loads(tools) if isinstance(tools, str) else tools
        processes = [process for process in tools if isinstance(process, dict)]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            "is cut off or no JSON of rocprofv3 (rocprofv3 --kernel-trace --output-format json)", file=str(path)
        ) from None
    rows, marks, machine, refused = Rows(), [], TracedDevice(), 0
    first = min((_time(record) for process in processes for record in _records(process, "kernel_dispatch")), default=0)
    ranks: dict[int, int] = {}
    for process in processes:
        agents = {_handle(agent.get("id")): agent for agent in process.get("agents") or [] if isinstance(agent, dict)}
        symbols = {
            symbol.get("kernel_id"): str(
                symbol.get("demangled_kernel_name") or symbol.get("formatted_kernel_name") or ""
            )
            for symbol in process.get("kernel_symbols") or []
            if isinstance(symbol, dict)
        }
        for record in _records(process, "kernel_dispatch"):
            info = record.get("dispatch_info") or {}
            try:
                agent = agents.get(_handle(info["agent_id"]), {})
                start, end = int(record["start_timestamp"]), int(record["end_timestamp"])
                if end < start:
                    raise ValueError
                # A process may use several agents; each is a rank.
                rank = ranks.setdefault(_handle(info["agent_id"]), len(ranks))
                # AMD's grids are in threads.
                sizes, threads = info.get("grid_size") or {}, info.get("workgroup_size") or {}
                rows.add(
                    rank=rank,
                    device=int(agent.get("logical_node_id", 0)),
                    stream=str(_handle(record.get("stream_id") or info.get("queue_id"))),
                    start_s=(start - first) / 1e9,
                    duration_s=(end - start) / 1e9,
                    name=symbols.get(info.get("kernel_id"), "") or f"kernel {info.get('kernel_id')}",
                    grid="×".join(str(blocks(sizes[axis], threads.get(axis))) for axis in "xyz" if axis in sizes),
                )
            except (KeyError, TypeError, ValueError, AttributeError):
                refused += 1
                continue
            machine = machine if machine.name else _machine(agent)
        for record in _records(process, "marker_api"):
            name = str((record.get("args") or {}).get("message", "")) if isinstance(record.get("args"), dict) else ""
            start, end = _time(record), _time(record, "end_timestamp")
            if name and end >= start:
                marks.append(Mark(0, name, (start - first) / 1e9, (end - first) / 1e9))
    missing = ["shapes (rocprofv3 does not record them)", "the rank; agents are counted from 0"]
    if refused:
        missing.append(f"{refused} dispatches without agent or times; they are left out")
    return FilePart(rows, machine, marks=tuple(marks), missing=tuple(missing), rank_unknown=len(ranks) == 1)


def _records(process: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    records = (
        (process.get("buffer_records") or {}).get(kind) if isinstance(process.get("buffer_records"), dict) else None
    )
    return [record for record in records if isinstance(record, dict)] if isinstance(records, list) else []


def _time(record: dict[str, Any], key: str = "start_timestamp") -> int:
    value = record.get(key)
    return value if isinstance(value, int) else 0


def blocks(size: int, threads: int | None) -> int:
    """Blocks along an axis of an AMD grid, which counts threads; the grid itself where a block's threads are not known.

    >>> blocks(512 * 48, 512), blocks(64, None)
    (48, 64)
    """
    return -(-size // threads) if threads else size


def _handle(value: object) -> int:
    number = value.get("handle", 0) if isinstance(value, dict) else value
    return number if isinstance(number, int) else 0


def _machine(agent: dict[str, Any]) -> TracedDevice:
    units, banks = agent.get("cu_count"), agent.get("mem_banks")
    sizes = (
        [bank.get("size_in_bytes", 0) for bank in banks if isinstance(bank, dict)] if isinstance(banks, list) else []
    )
    memory = max((size for size in sizes if isinstance(size, int)), default=0)
    return TracedDevice(
        str(agent.get("product_name") or agent.get("name") or ""), units if isinstance(units, int) else 0, memory
    )


TRACE_READERS.register(
    TraceReader(
        "rocprofv3", "ROCprofiler SDK's JSON", lambda path, start: f'"{KEY}"'.encode() in start[:4096], read_rocprof
    )
)
