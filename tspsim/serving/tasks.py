"""What agents' tasks were like: from the first prompt's sending to the last answer's end, and where that time went.

task = Σ answers (TTFT and tokens) + Σ calls of tools + Σ waits for workers,          Σ over a task's turns
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..traffic import Needs
from ..traffic.kind import Floats, Ints
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
    counted = asked.counted
    from_, to = asked.conversations_before(counted.start), asked.conversation_of(counted.stop)
    if from_ >= to:
        return {}
    begins = np.array([asked.first_of(task) for task in range(from_, to + 1)])
    rows, sizes = slice(begins[0], begins[-1]), np.diff(begins)
    all_ended = np.logical_and.reduceat(np.isfinite(book.end_s[rows]), begins[:-1] - begins[0])
    if not all_ended.any():
        return {}
    kept, turns = np.repeat(all_ended, sizes), sizes[all_ended]
    first = np.cumsum(turns) - turns

    def by_request(column: Any) -> Any:
        return np.asarray(column)[rows][kept]

    def over_task(column: Floats) -> Floats:
        return np.array([part.sum() for part in np.split(column, first[1:])])

    sent, end, first_token = (by_request(column) for column in (book.arrival_s, book.end_s, book.first_token_s))
    calls, waits = by_request(asked.think_s).copy(), by_request(book.tool_wait_s).copy()
    if asked.follows is None:  # a chain has no tool before its first turn
        calls[first] = waits[first] = 0.0
    begun = np.minimum.reduceat(sent, first)
    whole = np.maximum.reduceat(end, first) - begun
    wall_s = float(end.max() - sent.min())
    told: dict[str, Any] = {
        "tasks": len(whole),
        "turns": mean_or_all(turns),
        "task_s": spread(whole),
        "model_s": float(over_task(end - sent).mean()),
        "tool_s": float(over_task(calls).mean()),
        "tool_wait_s": float(over_task(waits).mean()),
        "tasks_per_s": len(whole) / wall_s if wall_s else 0.0,
        "worker_share": float(calls.sum()) / (workers * wall_s) if workers and wall_s else None,
    }
    if asked.follows is not None:
        depth, path_s, told_s = [], [], []
        for task, begin, size, at in zip(np.flatnonzero(all_ended) + from_, first, turns, begun, strict=True):
            needs, its = asked.follows[int(task)], slice(begin, begin + size)
            depth.append(deepest(needs))
            path_s.append(on_path(needs, sent[its], end[its]))
            told_s.append(float(first_token[its][end[its].argmax()] - at))
        told["depth"] = mean_or_all(np.array(depth))
        told["path_model_s"] = float(np.mean(path_s))
        told["first_token_s"] = spread(first_token - sent)
        told["last_call_ttft_s"] = spread(np.array(told_s))
    hours = gpus * wall_s / 3600.0 / len(whole)
    return told | {"usd_per_task": {basis: usd * hours for basis, usd in usd_per_gpu_hour.items()}}


def mean_or_all(counts: Ints) -> int | float:
    """What all have, or the mean."""
    return int(counts[0]) if (counts == counts[0]).all() else float(counts.mean())


def deepest(needs: Needs) -> int:
    """Calls of a task, one after the other, at most."""
    depth: list[int] = []
    for needed in needs:
        depth.append(1 + max((depth[each] for each in needed), default=0))
    return max(depth)


def on_path(needs: Needs, sent: Floats, end: Floats) -> float:
    """Seconds of answers on a task's longest way: back from what ended last, through what each waited for last.

    Parameters
    ----------
    sent, end
        Of its calls. They overlap: of the last one's way back to the first.
    """
    found = 0.0
    call: int | None = int(end.argmax())
    while call is not None:
        found += float(end[call] - sent[call])
        call = max(needs[call], key=lambda each: float(end[each])) if needs[call] else None
    return found
