"""The Standard Workload Format of the Parallel Workloads Archive."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ...base.errors import InputError, shorten
from .base import LOG_FORMS, Log, Logged

FIELDS = 18


class StandardWorkloadFormat:
    """Eighteen numbers per line, −1 for unknown ones; comments begin with ``;``. Where the header has ``MaxNodes``
    and ``MaxProcs``, processors are counted as nodes; otherwise a processor is a GPU.

    References
    ----------
    Chapin et al. 1999, Benchmarks and standards for the evaluation of parallel job schedulers (version 2.2).
    """

    name = "swf"
    summary = "Standard Workload Format"

    def reads(self, head: Sequence[str]) -> bool:
        rows = [line.split() for line in head if line.strip() and not line.startswith(";")]
        numbers = re.compile(r"-?[0-9.]+")
        return bool(rows) and len(rows[0]) >= 5 and all(numbers.fullmatch(cell) for cell in rows[0])

    def rows(self, lines: Iterator[str], log: Log) -> Iterator[Logged]:
        header: dict[str, int] = {}
        for row, line in enumerate(lines, 1):
            if line.startswith(";"):
                match = re.match(r";\s*(MaxNodes|MaxProcs):\s*([0-9]+)", line)
                if match:
                    header[match[1]] = int(match[2])
                continue
            cells = line.split()
            if not cells:
                continue
            if len(cells) < FIELDS:
                problem = f"row {row}: {len(cells)} columns; the Standard Workload Format has {FIELDS}"
                raise InputError(problem, file=shorten(log.path, 200))
            submit_s = log.number(row, "2 (submit)", cells[1])
            runs_s = log.number(row, "4 (run time)", cells[3], -1.0)
            processors = [
                log.number(row, name, cells[at], -1.0) for name, at in (("5 (processors)", 4), ("8 (asked)", 7))
            ]
            wide = int(processors[0] if processors[0] > 0 else processors[1])
            if runs_s <= 0.0 or wide <= 0:
                log.leave_out("never ran")
                continue
            asked_s = log.number(row, "9 (time asked)", cells[8], -1.0)
            per_node = (
                header["MaxProcs"] // header["MaxNodes"] if header.get("MaxNodes") and "MaxProcs" in header else 0
            )
            nodes = -(-wide // per_node) if per_node else 0
            limit_s = asked_s if asked_s > 0.0 else None
            yield Logged(row, cells[0], f"user {cells[11]}", "", submit_s, runs_s, 0 if nodes else wide, nodes, limit_s)


LOG_FORMS.register(StandardWorkloadFormat())
