"""CSV with named columns, such as the traces of Acme and Helios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .base import LOG_FORMS, Log, Logged
from .columns import NAMES, LogColumns, cells_of, in_order

#: Known columns from which a file is recognized that lacks the time of submission.
SAID = 3


class NamedColumns:
    """Columns by their usual names (:data:`~tspsim.fleet.logs.columns.NAMES`): time of submission; duration,
    or start and end; GPUs or nodes. Rows without GPUs, or that never ran, are counted and left out.

    References
    ----------
    Hu et al. 2024 (NSDI), AcmeTrace, in which Philly's jobs lie as CSV too; Hu et al. 2021 (SC), Helios.
    """

    name = "csv"
    summary = "CSV with named columns, as Acme's and Helios' traces"

    def reads(self, head: Sequence[str]) -> bool:
        lower = {cell.strip().lower() for cell in head[0].split(",")} if head else set()
        said = [what for what, words in NAMES.items() if not lower.isdisjoint(words)]
        # With enough other columns the missing one is the error to report.
        return "," in head[0] and ("submit" in said or len(said) >= SAID)

    def rows(self, lines: Iterator[str], log: Log) -> Iterator[Logged]:
        table = cells_of(lines, log, ",")
        columns = LogColumns.of(next(table)[1], log, NAMES)
        columns.need(log, "submit", names=NAMES)
        columns.need(log, "runs", "end", names=NAMES)
        if "runs" not in columns.at:
            columns.need(log, "start", names=NAMES)
        columns.need(log, "gpus", "nodes", names=NAMES)
        for row, cells in table:
            submit_s = log.moment(row, columns.names["submit"], columns.cell(cells, "submit"))
            gpus, nodes = (
                log.whole(row, columns.names[what], text) if (text := columns.cell(cells, what)) else 0
                for what in ("gpus", "nodes")
            )
            if not gpus and ("gpus" in columns.at or not nodes):
                log.leave_out("no GPUs")
                continue
            runs_s = self._runs_s(row, cells, columns, log)
            if not runs_s:
                log.leave_out("never ran")
                continue
            in_order(row, cells, columns, log)
            limit = columns.cell(cells, "limit")
            yield Logged(
                row,
                columns.cell(cells, "name") or f"row {row}",
                columns.cell(cells, "user"),
                columns.cell(cells, "kind"),
                submit_s,
                runs_s,
                gpus,
                0 if gpus else nodes,
                log.number(row, columns.names["limit"], limit) if limit else None,
            )

    def _runs_s(self, row: int, cells: Sequence[str], columns: LogColumns, log: Log) -> float:
        """Seconds that a row ran; 0 where it never did."""
        if "runs" in columns.at:
            text = columns.cell(cells, "runs")
            return log.number(row, columns.names["runs"], text) if text else 0.0
        ends = [(columns.names[what], columns.cell(cells, what)) for what in ("start", "end")]
        if not all(text for _, text in ends):
            return 0.0
        start, end = ((name, log.moment(row, name, text)) for name, text in ends)
        return log.span(row, start, end)


LOG_FORMS.register(NamedColumns())
