"""Output of Slurm's ``sacct --parsable2``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .base import LOG_FORMS, Log, Logged
from .columns import UNKNOWN, LogColumns, cells_of, in_order

#: Fields of sacct by meaning.
FIELDS: dict[str, tuple[str, ...]] = {
    "name": ("jobidraw", "jobid"),
    "user": ("user", "uid"),
    "kind": ("partition", "account"),
    "submit": ("submit",),
    "start": ("start",),
    "end": ("end",),
    "runs": ("elapsedraw",),
    "elapsed": ("elapsed",),
    "nodes": ("nnodes", "allocnodes"),
    "tres": ("alloctres", "reqtres"),
    "limit": ("timelimitraw",),
    "limit told": ("timelimit",),
}
#: [days-]hours:minutes:seconds
_ELAPSED = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)(?:\.[0-9]+)?")


class Sacct:
    """Fields separated by ``|`` under a header, such as ``sacct -a -X --parsable2 --noconvert
    --format=JobIDRaw,User,Partition,Submit,Start,End,ElapsedRaw,TimelimitRaw,NNodes,AllocTRES``. Steps (``123.batch``)
    are parts of their jobs and left out."""

    name = "sacct"
    summary = "Slurm's sacct --parsable2"

    def reads(self, head: Sequence[str]) -> bool:
        cells = {cell.strip().lower() for cell in head[0].split("|")} if head else set()
        return "|" in head[0] and bool(cells & {"jobid", "jobidraw", "submit"})

    def rows(self, lines: Iterator[str], log: Log) -> Iterator[Logged]:
        table = cells_of(lines, log, "|")
        columns = LogColumns.of(next(table)[1], log, FIELDS)
        columns.need(log, "name", names=FIELDS)
        columns.need(log, "submit", names=FIELDS)
        columns.need(log, "runs", "elapsed", "end", names=FIELDS)
        columns.need(log, "tres", "nodes", names=FIELDS)
        for row, cells in table:
            name = columns.cell(cells, "name")
            if "." in name:
                continue
            runs_s = self._runs_s(row, cells, columns, log)
            gpus = re.search(r"gres/gpu(?::[^=,]+)?=([0-9]+)", columns.cell(cells, "tres"))
            nodes = columns.cell(cells, "nodes")
            count = log.whole(row, columns.names["nodes"], nodes) if nodes else 0
            if not runs_s:
                log.leave_out("never ran")
                continue
            if gpus is None and ("tres" in columns.at or not count):
                log.leave_out("no GPUs")
                continue
            in_order(row, cells, columns, log)
            yield Logged(
                row,
                name,
                columns.cell(cells, "user"),
                columns.cell(cells, "kind"),
                log.moment(row, columns.names["submit"], columns.cell(cells, "submit")),
                runs_s,
                int(gpus[1]) if gpus else 0,
                0 if gpus else count,
                self._limit_s(row, cells, columns, log),
            )

    def _limit_s(self, row: int, cells: Sequence[str], columns: LogColumns, log: Log) -> float | None:
        for what in ("limit", "limit told"):
            text = columns.cell(cells, what)
            if text not in (*UNKNOWN, "UNLIMITED", "Partition_Limit"):
                name = columns.names[what]
                return 60.0 * log.number(row, name, text) if what == "limit" else _seconds(row, name, text, log)
        return None

    def _runs_s(self, row: int, cells: Sequence[str], columns: LogColumns, log: Log) -> float:
        if "runs" in columns.at:
            text = columns.cell(cells, "runs")
            return log.number(row, columns.names["runs"], text) if text not in UNKNOWN else 0.0
        if "elapsed" in columns.at:
            return _seconds(row, columns.names["elapsed"], columns.cell(cells, "elapsed"), log)
        columns.need(log, "start", names=FIELDS)
        ends = [(columns.names[what], columns.cell(cells, what)) for what in ("start", "end")]
        if any(text in UNKNOWN for _, text in ends):
            return 0.0
        start, end = ((name, log.moment(row, name, text)) for name, text in ends)
        return log.span(row, start, end)


def _seconds(row: int, column: str, text: str, log: Log) -> float:
    """Seconds of a span as Slurm prints it; raises InputError."""
    match = _ELAPSED.fullmatch(text)
    if match is None:
        raise log.wrong(row, column, text, "[days-]hours:minutes:seconds")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


LOG_FORMS.register(Sacct())
