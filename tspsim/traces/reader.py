"""Readers of traces, and the choice of the reader for a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from ..base.registry import Registry
from .clocks import aligned
from .kinds import ATTENTION, MEASURE, PRODUCTS, STEP, UNKNOWN
from .machines import device_of
from .names import guessed, kind_of
from .pieces import first_bytes
from .steps import BACKWARD, numbered, step_marks
from .table import NO_MACHINE, Mark, Rows, Trace, TracedDevice, TracedGroup, joined
from .unreadable import described


@dataclass(frozen=True)
class FilePart:
    """The content of one file: rows without kinds, and the facts beside them.

    ``missing``: facts that the file does not state, in sentences.
    """

    rows: Rows
    machine: TracedDevice = NO_MACHINE
    world_size: int = 0
    groups: tuple[TracedGroup, ...] = ()
    marks: tuple[Mark, ...] = ()
    missing: tuple[str, ...] = ()
    facts: Mapping[str, Any] | None = None
    #: Whether the file does not state its rank.
    rank_unknown: bool = False


@dataclass(frozen=True)
class TraceReader:
    """A format of traces.

    Parameters
    ----------
    name, summary
        The format's name, and the program that writes it.
    takes
        Whether a file has the format, from its name and its first bytes (unpacked).
    read
        Reads the file; raises InputError where it is damaged beyond use.
    """

    name: str
    summary: str
    takes: Callable[[Path, bytes], bool]
    read: Callable[[Path], FilePart]


#: Total bytes from which several files are read in parallel processes.
_SIDE_BY_SIDE = 8 << 20
TRACE_READERS: Registry[TraceReader] = Registry("reader of traces", "tspsim.trace_readers", TraceReader)


def read_files(files: Sequence[Path | str]) -> Trace:
    """Read one or more files of one run, one for each rank.

    Raises
    ------
    InputError
        A file is missing, has no known format or no kernels, or two files are the same rank.
    """
    paths = [Path(file) for file in files]
    if not paths:
        raise InputError("needs at least one file", key="FILE")
    formats = [reader_of(path).name for path in paths]
    parts = _parts(paths)
    for path, part in zip(paths, parts, strict=True):
        if not len(part.rows):
            raise InputError(_nothing(path, part), file=str(path))
    if len(set(formats)) > 1:
        other = next(path for path, name in zip(paths, formats, strict=True) if name != formats[0])
        raise InputError(
            f"is {formats[paths.index(other)]}, the first file is {formats[0]}; read them apart", file=str(other)
        )
    parts = _numbered(paths, parts)
    columns, words = joined(part.rows.columns() for part in parts)
    columns, words = _with_kinds(columns, words)
    columns = _in_order(columns)
    machine = next((part.machine for part in parts if part.machine != TracedDevice()), TracedDevice())
    facts: dict[str, Any] = {}
    for part in parts:
        for name, fact in (part.facts or {}).items():
            # Facts by rank are merged.
            facts[name] = {**facts.get(name, {}), **fact} if isinstance(fact, Mapping) else fact
    trace = Trace(
        columns=columns,
        words=words,
        format=formats[0],
        files=tuple(paths),
        machine=machine,
        device=device_of(machine),
        world_size=max(part.world_size for part in parts),
        groups=tuple(dict.fromkeys(group for part in parts for group in part.groups)),
        marks=tuple(mark for part in parts for mark in part.marks),
        facts=facts,
    )
    trace = aligned(_with_steps(trace))
    return replace(trace, missing=(*dict.fromkeys(word for part in parts for word in part.missing), *_missing(trace)))


def _parts(paths: Sequence[Path]) -> list[FilePart]:
    """The parts of all files, read in parallel where the files are large."""
    processes = min(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, len(paths)
    )
    if processes < 2 or sum(path.stat().st_size for path in paths) < _SIDE_BY_SIDE:
        return [_part(path) for path in paths]
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(_part, paths))


def _part(path: Path) -> FilePart:
    return reader_of(path).read(path)


def reader_of(path: Path) -> TraceReader:
    """The reader of a file; raises InputError that describes the file where there is none."""
    try:
        if path.is_dir():
            raise InputError("is a folder; name its files", file=str(path))
        size, start = path.stat().st_size, first_bytes(path)
    except OSError as error:
        raise InputError(error.strerror or type(error).__name__, file=str(path)) from None
    if not size or not start.strip(b" \t\r\n\x00"):
        packed = size and _plain_start(path).strip(b" \t\r\n\x00")
        raise InputError("holds nothing that can be unpacked" if packed else "is empty", file=str(path))
    if start.startswith(b"version https://git-lfs"):
        raise InputError("is a Git LFS pointer and not the trace; fetch it with `git lfs pull`", file=str(path))
    if re.match(rb"\s*<(!doctype|html)", start[:200], re.IGNORECASE):
        raise InputError("is a web page and not a trace; download the raw file", file=str(path))
    if start[257:262] == b"ustar":
        raise InputError("is an archive; unpack it and name its files", file=str(path))
    for reader in reversed(TRACE_READERS.values()):
        if reader.takes(path, start):
            return reader
    what = described(path, start)
    raise InputError(what or f"is of no format that is known ({', '.join(TRACE_READERS)})", file=str(path))


def _plain_start(path: Path) -> bytes:
    """The first bytes of a file as they lie, packed or not."""
    with path.open("rb") as file:
        return file.read(4096)


def _nothing(path: Path, part: FilePart) -> str:
    what = described(path, first_bytes(path))
    if what:
        return what
    if part.facts and "written_by" in part.facts:
        return (
            "holds no step line with a time: a step's number and its time with a unit, or what Megatron, torchtitan, "
            "NeMo, DeepSpeed, MaxText, verl, a Trainer's bar, vLLM (--enable-logging-iteration-details) or SGLang write"
        )
    missing = f" (missing: {part.missing[0]})" if part.missing else ""
    return f"has no kernels: nothing ran on a device{missing}; profile with activities that include the device"


def _numbered(paths: Sequence[Path], parts: list[FilePart]) -> list[FilePart]:
    """Parts with ranks. A file that does not state its rank has it from its name, else from the order of files."""
    stated = [int(part.rows.numbers["rank"][0]) if not part.rank_unknown else None for part in parts]
    if len(parts) > 1:
        for index, (path, part) in enumerate(zip(paths, parts, strict=True)):
            if part.rank_unknown:
                match = re.search(r"rank[_\-.]?(\d+)", path.name)
                rank = int(match.group(1)) if match else index
                stated[index] = rank
                column = part.rows.numbers["rank"]
                for row in range(len(column)):
                    column[row] = rank
                parts[index] = replace(part, marks=tuple(replace(mark, rank=rank) for mark in part.marks))
    seen: dict[int, Path] = {}
    for number, path, part in zip(stated, paths, parts, strict=True):
        if number is None or len(set(part.rows.numbers["rank"])) > 1:
            continue
        if number in seen:
            raise InputError(f"is rank {number}, as {seen[number].name} is; name each rank once", file=str(path))
        seen[number] = path
    return parts


def _in_order(columns: dict[str, Any]) -> dict[str, Any]:
    """Rows by rank and start; rows in that order already are not copied."""
    order = np.lexsort((columns["start_s"], columns["rank"]))
    if (order[1:] > order[:-1]).all():
        return columns
    return {name: column[order] for name, column in columns.items()}


def _with_kinds(columns: dict[str, Any], words: dict[str, list[str]]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Rows with kinds; a rule runs once for each pair of name and operator. A collective that the profiler records is
    in the place of an operator that only records one."""
    given = np.array([bool(word) for word in words["kind"]] or [False])[columns["kind"]]
    pairs = columns["name"].astype(np.int64) * (len(words["operator"]) + 1) + columns["operator"]
    distinct, place = np.unique(pairs, return_inverse=True)
    kinds = list(words["kind"])
    number = {word: index for index, word in enumerate(kinds)}
    codes = []
    for pair in distinct.tolist():
        name, operator = divmod(pair, len(words["operator"]) + 1)
        kind = kind_of(words["name"][name], words["operator"][operator])
        codes.append(number.setdefault(kind, len(number)))
    own = np.array(codes, np.int32)[place] if codes else np.zeros(0, np.int32)
    recorded = np.array([bool(word) for word in words["collective"]] or [False])[columns["collective"]]
    several = [number.get(kind, -1) for kind in ("exchange", "send_recv")]
    for row in np.flatnonzero(recorded & np.isin(own, several)).tolist():
        kind = kind_of(words["name"][columns["name"][row]], words["collective"][columns["collective"][row]])
        own[row] = number.setdefault(kind, len(number))
    columns["kind"] = np.where(given, columns["kind"], own).astype(np.int32)
    return columns, words | {"kind": list(number)}


def _with_steps(trace: Trace) -> Trace:
    """The trace with numbered steps and layers."""
    columns, how = dict(trace.columns), set()
    step, layer = columns["step"].copy(), columns["layer"].copy()
    heavy = np.array([word in PRODUCTS for word in trace.words["kind"]])[columns["kind"]]
    mixes = np.array([word in ATTENTION for word in trace.words["kind"]])[columns["kind"]]
    if mixes.any():  # products of a stream without attention run beside others, each time elsewhere
        heavy &= np.isin(columns["stream"], np.unique(columns["stream"][mixes]))
    embeds = np.array([word == "embedding" for word in trace.words["kind"]])[columns["kind"]]
    backward = np.array([word in BACKWARD for word in trace.words["phase"]] or [False])[columns["phase"]]
    for rank in trace.ranks:
        rows: Any = np.flatnonzero((columns["rank"] == rank) & (step < 0))
        if not len(rows):
            continue
        # The rows of a single rank are used without a copy.
        rows = slice(None) if len(rows) == len(step) else rows
        marks = step_marks(trace.marks, rank)
        step[rows], layer[rows], source = numbered(
            columns["start_s"][rows],
            columns["launch_s"][rows],
            columns["name"][rows],
            columns["kind"][rows],
            heavy[rows],
            mixes[rows],
            embeds[rows],
            backward[rows],
            marks,
        )
        how.add(source)
    phase = _before_optimizers(columns["phase"], trace.words["phase"], columns["launch_s"], columns["rank"], step)
    return replace(
        trace,
        columns=columns | {"step": step, "layer": layer, "phase": phase},
        facts={**trace.facts, "steps_by": ", ".join(sorted(how - {""}))},
    )


def _before_optimizers(
    phase: NDArray[np.int32],
    words: Sequence[str],
    launch_s: NDArray[np.float64],
    rank: NDArray[np.int32],
    step: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Phases with an extended optimizer: launches between a step's last gradient and its optimizer (norms of gradients,
    clipping) belong to the optimizer and not to a forward pass."""
    if not {"forward", "optimizer"} <= set(words) or not set(BACKWARD) & set(words):
        return phase
    new_phase = phase.copy()
    forward, optimizer = words.index("forward"), words.index("optimizer")
    back = np.isin(phase, [words.index(word) for word in BACKWARD if word in words])
    for pair in np.unique(np.stack([rank, step]), axis=1).T.tolist():
        rows = np.flatnonzero((rank == pair[0]) & (step == pair[1]))
        gradients, updates = launch_s[rows[back[rows]]], launch_s[rows[phase[rows] == optimizer]]
        if np.isfinite(gradients).any() and np.isfinite(updates).any():
            between = (launch_s[rows] > np.nanmax(gradients)) & (launch_s[rows] < np.nanmax(updates))
            new_phase[rows[between & (phase[rows] == forward)]] = optimizer
    return new_phase


def _missing(trace: Trace) -> list[str]:
    """Facts that a comparison needs and the trace does not have, in sentences."""
    sentences: list[str] = []
    kinds = set(np.array(trace.words["kind"], dtype=object)[np.unique(trace.columns["kind"])].tolist())
    if kinds <= {STEP, MEASURE}:
        return sentences
    absent = [rank for rank in range(trace.world_size) if rank not in set(trace.ranks)]
    if absent and len(trace.ranks) > 1:
        shown = ", ".join(map(str, absent[:8])) + (", …" if len(absent) > 8 else "")
        sentences.append(
            f"of {trace.world_size} ranks {len(absent)} {'is' if len(absent) == 1 else 'are'} missing: {shown}"
        )
    if not trace.machine.name:
        sentences.append(
            "the name of the device"
            + (f"; it is taken for {trace.device} by its compute units and memory" if trace.device else "")
        )
    empty = {"operator": "what launched the kernels", "shapes": "shapes (record_shapes=True)"}
    sentences += [
        text
        for name, text in empty.items()
        if not any(trace.words[name][code] for code in np.unique(trace.columns[name]))
    ]
    if not trace.marks:
        sentences.append("annotations of steps")
    share = unknown_share(trace)
    if share > 0.0:
        sentences.append(
            f"names of kernels with {share:.1%} of the kernel time; a rule under tspsim.kernel_names adds them"
        )
    share = guessed_share(trace)
    if share >= 0.001:
        sentences.append(
            f"rules for names of kernels with {share:.1%} of the kernel time; words in the names give their kinds"
        )
    return sentences


def unknown_share(trace: Trace) -> float:
    """Share of time in kernels with unknown names."""
    by = trace.time_by("kind")
    total = sum(by.values())
    return by.get(UNKNOWN, 0.0) / total if total else 0.0


def guessed_share(trace: Trace) -> float:
    """Share of time in kernels whose kind is only guessed from a word in the name."""
    names, operators = trace.columns["name"].astype(np.int64), trace.columns["operator"]
    pairs, place = np.unique(names * (len(trace.words["operator"]) + 1) + operators, return_inverse=True)
    seconds = np.bincount(place, trace.columns["duration_s"], len(pairs))
    total = float(seconds.sum())
    guessed_s = 0.0
    for pair, time_s in zip(pairs.tolist(), seconds.tolist(), strict=True):
        name, operator = divmod(pair, len(trace.words["operator"]) + 1)
        if guessed(trace.words["name"][name], trace.words["operator"][operator]):
            guessed_s += time_s
    return guessed_s / total if total else 0.0
