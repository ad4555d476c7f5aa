"""Operators and shapes of the kernels in a graph, from a profile of the graph's capture.

The host replays a graph with one call, so the replayed kernels have no operators. SGLang and vLLM can profile the
capture itself (``capture_traces/``): each launch stands in its operator there, but nothing runs. Launches and replayed
kernels are matched in order by their names; where the profiler writes no names at launches (CUPTI), by their count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

import numpy as np

from ..base.errors import InputError
from .kinds import UNKNOWN
from .kineto import KINETO, read_events
from .names import kind_of
from .profile import Arguments, Event, Launchers, ProfileColumns
from .reader import read_files, reader_of
from .table import Trace

_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel|Memcpy\w*Async|Memset\w*Async")
_BEGIN, _END = "StreamBeginCapture", "StreamEndCapture"


@dataclass(frozen=True)
class Capture:
    """The launches in one file's graphs, in order: names of kernels (empty where not stated), operators, and shapes."""

    file: Path
    names: tuple[str, ...]
    operators: tuple[str, ...]
    shapes: tuple[str, ...]


class _Launches(ProfileColumns):
    """The columns of a profile, and the launches that its captures record."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[tuple[float, str, str, int, int]] = []
        self.begins: list[float] = []
        self.ends: list[float] = []

    def take(self, events: list[Event]) -> None:
        super().take(events)
        for event in events:
            name, arguments = event.name, event.args
            if _BEGIN in name:
                self.begins.append(event.ts)
            elif _END in name:
                self.ends.append(event.ts)
            elif _LAUNCH.search(name):
                arguments = arguments or Arguments()
                numbers = arguments.correlation, arguments.external
                correlation, external = (number if isinstance(number, int) else -1 for number in numbers)
                self.launches.append((event.ts, name, str(arguments.kernel), correlation, external))


def read(files: Sequence[Path | str], captures: Sequence[Path | str] = ()) -> Trace:
    """Read one or more files of one run, one for each rank.

    Parameters
    ----------
    captures
        Profiles of the captures of the run's graphs, with operators and shapes of replayed kernels.

    Raises
    ------
    InputError
        A file is missing, has no known format or no kernels, or two files are the same rank; a capture captures
        nothing, or other graphs.
    """
    return with_captures(read_files(files), [read_capture(Path(file)) for file in captures])


def read_capture(path: Path) -> Capture:
    """Read a profile of a capture.

    Raises
    ------
    InputError
        The file is no profile of PyTorch's profiler, or captures nothing.
    """
    if reader_of(path) is not KINETO:
        raise InputError("is no profile of a capture; PyTorch's profiler writes one", file=str(path))
    reading = _Launches()
    read_events(path, reading)
    begins, ends = sorted(reading.begins), sorted(reading.ends)
    if not begins:
        raise InputError("captures no graph: it has no call that begins a capture", file=str(path))
    kept = []
    for launch in sorted(reading.launches):
        place = int(np.searchsorted(begins, launch[0], side="right")) - 1
        if place >= 0 and not (place < len(ends) and launch[0] > ends[place]):
            kept.append(launch)
    correlations, externals = (np.array([launch[column] for launch in kept], np.int64) for column in (3, 4))
    operator = Launchers(reading).of(correlations, externals).operator.tolist()
    names = [launch[2] for launch in kept]
    operators = [reading.op_name.of(place) if place >= 0 else "" for place in operator]
    shapes = [reading.op_shapes.of(place) if place >= 0 else "" for place in operator]
    if not names:
        raise InputError("captures no graph: nothing is launched while it captures", file=str(path))
    return Capture(path, tuple(names), tuple(operators), tuple(shapes))


def with_captures(trace: Trace, captures: Sequence[Capture]) -> Trace:
    """The trace with operators and shapes of its replayed kernels. Each step takes them from the capture that it
    matches best.

    Raises
    ------
    InputError
        The trace has no replayed kernels, or no capture has its graphs.
    """
    replayed = trace.columns["graph_node"] >= 0
    if not captures:
        return trace
    if not replayed.any():
        raise InputError("replays no graph, so it needs no capture", file=str(trace.files[0]))
    names, kinds = trace.word("name").tolist(), trace.word("kind").tolist()
    operator, shapes = trace.word("operator").tolist(), trace.word("shapes").tolist()
    steps = trace.columns["rank"].astype(np.int64) << 32 | (trace.columns["step"].astype(np.int64) + 1)
    matched_kernels = 0
    for number in np.unique(steps[replayed]).tolist():
        rows = np.flatnonzero(replayed & (steps == number)).tolist()
        pairs = [(_alike([names[row] for row in rows], capture), capture) for capture in captures]
        launches, own = max(pairs, key=lambda pair: len(pair[0]))
        matched_kernels += len(launches)
        for place, launch in launches:
            row = rows[place]
            operator[row], shapes[row] = own.operators[launch], own.shapes[launch]
            if kinds[row] == UNKNOWN:
                kinds[row] = kind_of(names[row], operator[row])
    if not matched_kernels:
        files = ", ".join(str(capture.file.name) for capture in captures)
        raise InputError(
            f"is of other graphs than {files} captures: no kernel has the same name", file=str(trace.files[0])
        )
    columns, words = dict(trace.columns), dict(trace.words)
    for column, values in (("operator", operator), ("shapes", shapes), ("kind", kinds)):
        distinct = list(dict.fromkeys(values))
        number_of = {word: index for index, word in enumerate(distinct)}
        words[column] = distinct
        columns[column] = np.array([number_of[word] for word in values], trace.columns[column].dtype)
    facts = {**trace.facts, "captured": (matched_kernels, int(replayed.sum()))}
    return replace(trace, columns=columns, words=words, facts=facts)


def _alike(kernels: Sequence[str], capture: Capture) -> list[tuple[int, int]]:
    """Pairs of a replayed kernel and a captured launch, in the order of both."""
    if not any(capture.names):
        # Without names, only equal counts show that kernels and launches are the same.
        return [(place, place) for place in range(len(kernels))] if len(kernels) == len(capture.names) else []
    blocks = SequenceMatcher(None, _short(kernels), _short(capture.names), autojunk=False).get_matching_blocks()
    return [(a + place, b + place) for a, b, size in blocks for place in range(size)]


def _short(names: Sequence[str]) -> list[str]:
    """Names without return types and parameters, which only some profilers write."""
    return [_without_parameters(name.removeprefix("void ")) for name in names]


def _without_parameters(name: str) -> str:
    """
    >>> _without_parameters("(anonymous namespace)::sum<int, {lambda()#1}>(int, float (*)[2])")
    '(anonymous namespace)::sum<int, {lambda()#1}>'
    """
    if not name.endswith(")"):
        return name
    depth = 0
    for place in range(len(name) - 1, -1, -1):
        depth += (name[place] == ")") - (name[place] == "(")
        if not depth:
            return name[:place].rstrip() or name
    return name
