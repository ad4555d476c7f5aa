"""Microsoft's Philly trace: JSON, one object per job with its attempts on nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...base.errors import InputError, shorten
from .base import LOG_FORMS, Log, Logged
from .columns import UNKNOWN


class Philly:
    """``cluster_job_log``: a list of jobs with ``jobid``, ``user``, ``vc``, ``submitted_time`` and ``attempts``, each
    of which has ``start_time``, ``end_time`` and in ``detail`` the GPUs of every node.

    A job has the GPUs of its first attempt, as in the trace's own analysis, and runs for as long as its attempts
    together; a row is an entry of the list. Jobs without an attempt that has both times are counted and left out.

    References
    ----------
    Jeon et al. 2019 (USENIX ATC); msr-fiddle/philly-traces, README.
    """

    name = "philly"
    summary = "Philly's cluster_job_log (JSON)"

    def reads(self, head: Sequence[str]) -> bool:
        text = " ".join(head)
        return text.lstrip().startswith("[") and '"attempts"' in text

    def rows(self, lines: Iterator[str], log: Log) -> Iterator[Logged]:
        try:
            jobs = json.loads("\n".join(lines))
        except json.JSONDecodeError as error:
            problem = f"row {error.lineno}, column {error.colno}: is no JSON: {error.msg}"
            raise InputError(problem, file=shorten(log.path, 200)) from None
        for row, job in enumerate(jobs, 1):
            if not isinstance(job, dict):
                raise log.wrong(row, "job", job, "an object with jobid, submitted_time and attempts")
            attempts = self._need(job, "attempts", list, row, log)
            runs_s = sum(self._ran_s(attempt, row, log) for attempt in attempts)
            if not runs_s:
                log.leave_out("never ran, or for how long is not known")
                continue
            gpus = sum(
                len(self._need(node, "gpus", list, row, log))
                for node in self._need(attempts[0], "detail", list, row, log)
            )
            if not gpus:
                log.leave_out("no GPUs")
                continue
            submitted = log.moment(row, "submitted_time", self._need(job, "submitted_time", str, row, log))
            name, user, kind = (str(job.get(key) or "") for key in ("jobid", "user", "vc"))
            yield Logged(row, name or f"row {row}", user, kind, submitted, runs_s, gpus, 0)

    def _ran_s(self, attempt: Any, row: int, log: Log) -> float:
        """Seconds of an attempt; 0 where a time is missing."""
        times = [(key, self._said(attempt, key, row, log)) for key in ("start_time", "end_time")]
        if any(text in UNKNOWN for _, text in times):
            return 0.0
        start, end = ((key, log.moment(row, key, text)) for key, text in times)
        return log.span(row, start, end)

    def _said(self, attempt: Any, key: str, row: int, log: Log) -> str:
        if not isinstance(attempt, Mapping):
            raise log.wrong(row, "attempts", attempt, "a list of objects with start_time, end_time and detail")
        return str(attempt.get(key) or "")

    def _need(self, entry: Any, key: str, of: type, row: int, log: Log) -> Any:
        """A value of an entry. Raises InputError where it is missing, or has another type."""
        value = entry.get(key) if isinstance(entry, Mapping) else None
        if not isinstance(value, of):
            raise log.wrong(row, key, value, "a list" if of is list else "a time, such as 2017-10-07 01:12:09")
        return value


LOG_FORMS.register(Philly())
