"""What agents' tasks were like: from the first prompt's sending to the last answer's end, and where that time went.

task = Σ answers (TTFT and tokens) + Σ calls of tools + Σ waits for workers,          Σ over a task's turns
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..traffic.kind import Floats
from .metrics import spread
from .traffic import Book


def tasks(book: Book, workers: int | None, gpus: int, usd_per_gpu_hour: Mapping[str, float]) -> dict[str, Any]:
    """The entry ``tasks`` of ``serving``, over tasks that count whole and ended; empty where there are none.

    Parameters
    ----------
    workers
        Calls of tools that run at once; None: no limit.
    """
    asked = book.asked
    turns, counted = asked.turns, asked.counted
    first = -(-counted.start // turns)
    rows = slice(first * turns, (counted.stop // turns) * turns)
    ended = book.end_s[rows].reshape(-1, turns)
    ended_whole = np.isfinite(ended).all(axis=1)
    if not ended_whole.any():
        return {}

    def by_task(column: Any) -> Any:
        return np.asarray(column)[rows].reshape(-1, turns)[ended_whole]

    sent, end = by_task(book.arrival_s), by_task(book.end_s)
    since = 0 if asked.follows is not None else 1  # a chain has no tool before its first turn
    calls, waits = by_task(asked.think_s)[:, since:], by_task(book.tool_wait_s)[:, since:]
    whole = end.max(axis=1) - sent.min(axis=1)
    wall_s = float(end.max() - sent.min())
    told: dict[str, Any] = {
        "tasks": len(whole),
        "turns": turns,
        "task_s": spread(whole),
        "model_s": float((end - sent).sum(axis=1).mean()),
        "tool_s": float(calls.sum(axis=1).mean()),
        "tool_wait_s": float(waits.sum(axis=1).mean()),
        "tasks_per_s": len(whole) / wall_s if wall_s else 0.0,
        "worker_share": float(calls.sum()) / (workers * wall_s) if workers and wall_s else None,
    }
    if asked.follows is not None:
        # Answers overlap: of the last one's way back to the first, through whichever of those it needed ended last.
        depth = [1] * turns
        for number, needed in enumerate(asked.follows):
            depth[number] += max((depth[each] for each in needed), default=0)
        told["depth"] = max(depth)
        told["path_model_s"] = float(on_path(asked.follows, sent, end).mean())
        told["first_token_s"] = spread((by_task(book.first_token_s) - sent).ravel())
    hours = gpus * wall_s / 3600.0 / len(whole)
    return told | {"usd_per_task": {basis: usd * hours for basis, usd in usd_per_gpu_hour.items()}}


def on_path(follows: Sequence[Sequence[int]], sent: Floats, end: Floats) -> Floats:
    """Seconds of answers on each task's longest way: back from what ended last, through what each waited for last.

    Parameters
    ----------
    sent, end
        Shape (tasks, calls).
    """
    found = np.zeros(len(end))
    for task in range(len(end)):
        call: int | None = int(end[task].argmax())
        while call is not None:
            found[task] += end[task, call] - sent[task, call]
            call = max(follows[call], key=lambda each: float(end[task, each])) if follows[call] else None
    return found
