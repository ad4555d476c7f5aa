"""Agents' tasks: from the first send to the last answer's end, split by cause.

task = Σ answers (TTFT and tokens) + Σ calls of tools + Σ waits for workers,    Σ over a task's turns
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..traffic import Needs
from ..traffic.kind import Floats, Ints
from .metrics import spread
from .traffic import RequestTable


def tasks(table: RequestTable, workers: int | None, gpus: int, usd_per_gpu_hour: Mapping[str, float]) -> dict[str, Any]:
    """The entry ``tasks`` of ``serving``, over ended tasks that count as a whole; empty without any.

    Parameters
    ----------
    workers
        Tool calls that run at once; None: no limit.
    """
    requests = table.drawn
    counted = requests.counted
    from_, to = requests.conversations_before(counted.start), requests.conversation_of(counted.stop)
    if from_ >= to:
        return {}
    begins = np.array([requests.first_of(task) for task in range(from_, to + 1)])
    rows, sizes = slice(begins[0], begins[-1]), np.diff(begins)
    all_ended = np.logical_and.reduceat(np.isfinite(table.end_s[rows]), begins[:-1] - begins[0])
    if not all_ended.any():
        return {}
    kept, turns = np.repeat(all_ended, sizes), sizes[all_ended]
    first = np.cumsum(turns) - turns

    def by_request(column: Any) -> Any:
        return np.asarray(column)[rows][kept]

    def over_task(column: Floats) -> Floats:
        return np.array([part.sum() for part in np.split(column, first[1:])])

    sent, end, first_token = (by_request(column) for column in (table.arrival_s, table.end_s, table.first_token_s))
    calls, waits = by_request(requests.think_s).copy(), by_request(table.tool_wait_s).copy()
    if requests.follows is None:  # a chain has no tool before its first turn
        calls[first] = waits[first] = 0.0
    begun = np.minimum.reduceat(sent, first)
    whole = np.maximum.reduceat(end, first) - begun
    wall_s = float(end.max() - sent.min())
    entry: dict[str, Any] = {
        "tasks": len(whole),
        "turns": mean_or_all(turns),
        "task_s": spread(whole),
        "model_s": float(over_task(end - sent).mean()),
        "tool_s": float(over_task(calls).mean()),
        "tool_wait_s": float(over_task(waits).mean()),
        "tasks_per_s": len(whole) / wall_s if wall_s else 0.0,
        "worker_share": float(calls.sum()) / (workers * wall_s) if workers and wall_s else None,
    }
    if requests.follows is not None:
        depth, path_s, told_s = [], [], []
        for task, begin, size, at in zip(np.flatnonzero(all_ended) + from_, first, turns, begun, strict=True):
            needs, its = requests.follows[int(task)], slice(begin, begin + size)
            depth.append(deepest(needs))
            path_s.append(on_path(needs, sent[its], end[its]))
            told_s.append(float(first_token[its][end[its].argmax()] - at))
        entry["depth"] = mean_or_all(np.array(depth))
        entry["path_model_s"] = float(np.mean(path_s))
        entry["first_token_s"] = spread(first_token - sent)
        entry["last_call_ttft_s"] = spread(np.array(told_s))
    hours = gpus * wall_s / 3600.0 / len(whole)
    return entry | {"usd_per_task": {basis: usd * hours for basis, usd in usd_per_gpu_hour.items()}}


def mean_or_all(counts: Ints) -> int | float:
    """The common value, or the mean."""
    return int(counts[0]) if (counts == counts[0]).all() else float(counts.mean())


def deepest(needs: Needs) -> int:
    """Longest chain of calls of a task."""
    depth: list[int] = []
    for needed in needs:
        depth.append(1 + max((depth[call] for call in needed), default=0))
    return max(depth)


def on_path(needs: Needs, sent: Floats, end: Floats) -> float:
    """Seconds of answers on a task's critical path: back from the last end, through the last call that each waited for.

    Parameters
    ----------
    sent, end
        Times of its calls.
    """
    total = 0.0
    call: int | None = int(end.argmax())
    while call is not None:
        total += float(end[call] - sent[call])
        call = max(needs[call], key=lambda other: float(end[other])) if needs[call] else None
    return total
