"""Logs of nccl-tests and rccl-tests, read as they are printed.

A log has comment lines (``#``), one of which names the columns::

    #       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
    #        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
         8388608       2097152     float     sum      -1    91.10   92.08  161.14      0    94.94   88.36  154.63      0

and rows with the same number of cells. The first ``time`` is out of place, the second in place. Launchers prefix each
line with the rank (``[1,0]<stdout>:``, ``0:``), and other processes print between them; lines that are neither
comment nor row are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.errors import InputError, UnknownNameError, shorten
from ..program import COLLECTIVE_KINDS

if TYPE_CHECKING:
    import pandas as pd

#: A log is a few thousand lines; a larger file is something else.
LARGEST_LOG_BYTES = 2**26
_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]<std\w+>:|\d+:\s)")
_COLUMNS = re.compile(r"^#\s+(size\s+count\s+type\s.*\btime\b.*)$")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device\b")
_HEADER = re.compile(r"^#\s+nThreads?:?\s+(\d+)\s+nGpus:?\s+(\d+)\b")
_TESTED = re.compile(r"^#\s+Collective test (?:starting|concluded):\s+(?:\S*/)?(\w+?)_perf(?:_mpi)?\b")


@dataclass(frozen=True)
class NcclLog:
    """One log, and the facts that it does not state."""

    #: The log.
    file: Path
    #: The collective that was timed, one of :data:`~tspsim.program.COLLECTIVE_KINDS`.
    op: str
    #: Ranks of the group, and their machines; None: as the lines ``Rank … on … device`` say.
    gpus: int | None = None
    nodes: int | None = None
    #: Version of the library, as curves of a node's file name it (``NCCL 2.29.2``), or with the fabric (``NCCL 2.27,
    #: EFA``); empty: the node's own.
    library: str = ""
    #: Catalog name of the node; empty: the GPU's usual one.
    node: str = ""

    def rows(self, gpu: str) -> pd.DataFrame:
        """Its rows as a table of collectives: gpu, node, nodes, gpus, op, bytes, time_us (out of place) and library.

        Raises
        ------
        InputError
            The file cannot be read or is no such log; collective or number of GPUs differ from those stated; or the
            log does not list its GPUs.
        """
        import pandas as pd

        file = shorten(self.file, 200)
        if self.op not in COLLECTIVE_KINDS:
            raise UnknownNameError("collective", self.op, COLLECTIVE_KINDS, key="--op")
        lines = [_PREFIX.sub("", line) for line in _text(self.file).splitlines()]
        try:
            gpus, nodes = self._group(lines)
            self._check_test(lines)
            timed = list(_timed(lines))
        except InputError as error:
            raise error.at(file=file) from None
        if not timed:
            raise InputError("has no row with a size and a time; give a log of nccl-tests as it was printed", file=file)
        constants = {
            "gpu": gpu, "node": self.node, "nodes": nodes, "gpus": gpus, "op": self.op, "library": self.library,
        }  # fmt: skip
        return pd.DataFrame([constants | {"bytes": size, "time_us": time} for size, time in timed], dtype=str)

    def _group(self, lines: Sequence[str]) -> tuple[int, int]:
        """GPUs and nodes as stated, or as the log lists them where no rank number is missing; one node where the header
        has all GPUs in one process."""
        ranks = {int(match[1]): match[2] for line in lines if (match := _RANK.match(line))}
        if (missing := set(range(max(ranks, default=0))) - set(ranks)) and (self.gpus is None or self.nodes is None):
            gap = f"lists rank {max(ranks)} and not rank {min(missing)}"
            raise InputError(f"{gap}; say --gpus and --nodes, of all machines together")
        if missing:
            ranks = {}
        listed = ("--gpus", self.gpus, len(ranks)), ("--nodes", self.nodes, len(set(ranks.values())))
        for option, stated, count in listed:
            if stated is not None and count and stated != count:
                raise InputError(f"{option} {stated}, but the log lists {count}; leave the option out")
        if ranks:
            return len(ranks), len(set(ranks.values()))
        header = next((match for line in lines if (match := _HEADER.match(line))), None)
        process = int(header[1]) * int(header[2]) if header else 0
        if self.gpus is not None and self.nodes is not None:
            return self.gpus, self.nodes
        if self.gpus is not None and self.gpus <= process:
            return self.gpus, 1
        detail = f"; a process has {process} of them" if process > 1 else ""
        raise InputError(f"does not list its ranks; say --gpus and --nodes, of all machines together{detail}")

    def _check_test(self, lines: Sequence[str]) -> None:
        tests = {match[1].replace("alltoall", "all_to_all") for line in lines if (match := _TESTED.match(line))}
        if len(tests) > 1:
            raise InputError(f"holds several tests ({', '.join(sorted(tests))}); give each in a file of its own")
        if tests and tests != {self.op}:
            raise InputError(f"is of {tests.pop()}, not of --op {self.op}")


def is_log(file: Path) -> bool:
    """Whether a file looks like a log of nccl-tests, rather than a table."""
    try:
        with file.open("rb") as stream:
            start = stream.read(2**20).decode("utf-8", errors="replace")
    except (OSError, ValueError):
        return False
    return any(_COLUMNS.match(_PREFIX.sub("", line)) for line in start.splitlines())


def _timed(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Bytes and out-of-place microseconds of every row, as text."""
    columns: list[str] = []
    for number, line in enumerate(lines, 1):
        if named := _COLUMNS.match(line):
            columns = named[1].split()
        cells = line.split()
        if not columns or len(cells) < 2 or not (cells[0].isdecimal() and cells[1].isdecimal()):
            continue
        if len(cells) != len(columns):
            raise InputError(f"line {number} has {len(cells)} cells for {len(columns)} columns; was the log cut off?")
        if cells[0] != "0":  # an empty message
            yield cells[0], cells[columns.index("time")]


def _text(file: Path) -> str:
    place = shorten(file, 200)
    try:
        if not file.is_file():
            what = "is a folder; name a log in it" if file.is_dir() else "no such file"
            raise InputError(what, file=place)
        if file.stat().st_size > LARGEST_LOG_BYTES:
            raise InputError("is larger than 64 MiB, which no log of nccl-tests is", file=place)
        return file.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=place) from None
