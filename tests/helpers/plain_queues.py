"""Queues of rigid jobs on equal nodes, written a second time and plainly, from the published algorithms.

Mu'alem and Feitelson 2001, IEEE TPDS 12(6): EASY (section 2.2, figure 1) and conservative backfill (figure 2). Nothing
of tspsim is imported; every list is gone through from its begin at every event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Row(NamedTuple):
    """A job of a log: when, on how many nodes, how long in truth, and how long as its user says."""

    submit: int
    nodes: int
    runs: int
    says: int


Policy = Callable[[int, int, list[int], list[Row], dict[int, int]], list[int]]


def starts(rows: list[Row], nodes: int, policy: Policy) -> list[int]:
    """When every job starts."""
    began: dict[int, int] = {}
    times = sorted({row.submit for row in rows})
    while times:
        now = times.pop(0)
        running = {n: began[n] for n in began if began[n] + rows[n].runs > now}
        waiting = [n for n, row in enumerate(rows) if row.submit <= now and n not in began]
        free = nodes - sum(rows[n].nodes for n in running)
        for n in policy(now, free, waiting, rows, running):
            began[n] = now
            end = now + rows[n].runs
            if end not in times:
                times.append(end)
                times.sort()
    return [began[n] for n in range(len(rows))]


def first_come(now: int, free: int, waiting: list[int], rows: list[Row], running: dict[int, int]) -> list[int]:
    chosen = []
    for n in waiting:
        if rows[n].nodes > free:
            break
        chosen.append(n)
        free -= rows[n].nodes
    return chosen


def easy(now: int, free: int, waiting: list[int], rows: list[Row], running: dict[int, int]) -> list[int]:
    chosen = first_come(now, free, waiting, rows, running)
    free -= sum(rows[n].nodes for n in chosen)
    waiting = waiting[len(chosen) :]
    if not waiting:
        return chosen
    head = waiting[0]
    ends = [(max(now, began + rows[n].says), rows[n].nodes) for n, began in running.items()]
    ends += [(now + rows[n].says, rows[n].nodes) for n in chosen]
    shadow = min(at for at, _ in ends if free + sum(k for end, k in ends if end <= at) >= rows[head].nodes)
    extra = free + sum(k for end, k in ends if end <= shadow) - rows[head].nodes
    for n in waiting[1:]:
        if rows[n].nodes > free:
            continue
        if now + rows[n].says <= shadow:
            chosen.append(n)
            free -= rows[n].nodes
        elif rows[n].nodes <= extra:
            chosen.append(n)
            free -= rows[n].nodes
            extra -= rows[n].nodes
    return chosen


def conservative(now: int, free: int, waiting: list[int], rows: list[Row], running: dict[int, int]) -> list[int]:
    """Reservations are made anew, in order of submission, at every event."""
    total = free + sum(rows[n].nodes for n in running)
    taken = [(now, max(now, began + rows[n].says), rows[n].nodes) for n, began in running.items()]
    chosen = []
    for n in waiting:
        row = rows[n]
        for begin in sorted({now, *(end for _, end, _ in taken)}):
            moments = [begin, *(since for since, _, _ in taken if begin < since < begin + row.says)]
            used = max(sum(k for since, end, k in taken if since <= at < end) for at in moments)
            if used + row.nodes <= total:
                break
        taken.append((begin, begin + row.says, row.nodes))
        if begin == now and row.nodes <= free:
            chosen.append(n)
            free -= row.nodes
    return chosen
