"""Where the time went: a timeline boiled down to the parts of a step.

A rank's step is its compute, plus what of its communication no compute covers (*exposed*), plus waiting. In a gap of
the compute stream the transfer that ends last is what the rank waited for and claims the time it moved; what is left
of the gap after the others have claimed theirs is ``idle``: nobody moved data for this rank, it waited for others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .engine.core import Submission
from .engine.timeline import Label

Floats = NDArray[np.float64]

#: Parts of a layer's forward, as schemes name them.
FORWARD_PARTS = ("attention", "mlp")


@dataclass(frozen=True)
class Breakdown:
    """Mean over ranks; ``compute_s`` by operator family, ``exposed_s`` by kind of communication."""

    compute_s: Mapping[str, float]
    exposed_s: Mapping[str, float]
    idle_s: float

    @property
    def total_compute_s(self) -> float:
        return sum(self.compute_s.values())


def breakdown(submission: Submission) -> Breakdown:
    """Break the makespan down, weighting every simulated rank by the ranks it stands for.

    Ranks whose columns are the same to the bit (replicas in step) are looked at once.
    """
    timeline = submission.timeline
    columns = timeline.columns()
    makespan_s = submission.makespan_s
    origin_s = float(columns["start_s"].min(initial=0.0)) if len(timeline) else 0.0
    order = np.argsort(columns["rank"], kind="stable")
    ranks = columns["rank"][order]
    borders = np.flatnonzero(np.diff(ranks)) + 1
    pieces = (
        dict(zip(ranks[np.concatenate([[0], borders])].tolist(), np.split(order, borders), strict=True))
        if len(ranks)
        else {}
    )
    seen: dict[bytes, tuple[dict[str, float], dict[str, float], float]] = {}
    compute: dict[str, float] = {}
    exposed: dict[str, float] = {}
    idle_s, total = 0.0, sum(simulated.size for simulated in submission.ranks)
    for simulated in submission.ranks:
        rows = pieces[simulated.rank.number]
        label, start_s, end_s = (
            columns["label"][rows],
            columns["start_s"][rows] - origin_s,
            columns["end_s"][rows] - origin_s,
        )
        key = label.tobytes() + start_s.tobytes() + end_s.tobytes()
        if key not in seen:
            seen[key] = of_rank(timeline.labels, label, start_s, end_s, makespan_s)
        share = simulated.size / total
        for table, part in ((compute, seen[key][0]), (exposed, seen[key][1])):
            for kind, seconds in part.items():
                table[kind] = table.get(kind, 0.0) + share * seconds
        idle_s += share * seen[key][2]
    return Breakdown(compute, exposed, idle_s)


def of_rank(
    labels: Sequence[Label], label: NDArray[np.int32], start_s: Floats, end_s: Floats, makespan_s: float
) -> tuple[dict[str, float], dict[str, float], float]:
    """Compute by family, exposed communication by kind, and idle time of one rank."""
    compute: dict[str, float] = {}
    spans: list[tuple[float, float]] = []
    transfers: list[tuple[float, float, str]] = []
    for number, start, end in zip(label.tolist(), start_s.tolist(), end_s.tolist(), strict=True):
        entry = labels[number]
        if entry.is_compute:
            spans.append((start, end))
            stretch = (end - start) / entry.alone_s if entry.alone_s > 0.0 else 0.0
            for family, seconds in entry.parts_s:
                compute[family] = compute.get(family, 0.0) + seconds * stretch
        elif end > start:
            transfers.append((start, end, entry.kind))
    exposed: dict[str, float] = {}
    idle_s = 0.0
    transfers.sort()
    nearby = 0
    for left, right in gaps(sorted(spans), makespan_s):
        while nearby < len(transfers) and transfers[nearby][1] <= left:
            nearby += 1
        inside = []
        following = nearby
        while following < len(transfers) and transfers[following][0] < right:
            start, end, kind = transfers[following]
            if end > left:
                inside.append((min(end, right), max(start, left), kind))
            following += 1
        free = [(left, right)]
        for end, start, kind in sorted(inside, reverse=True):
            claimed, free = claim(free, start, end)
            exposed[kind] = exposed.get(kind, 0.0) + claimed
        idle_s += sum(b - a for a, b in free)
    return compute, exposed, idle_s


def gaps(spans: Iterable[tuple[float, float]], until: float) -> Iterable[tuple[float, float]]:
    """The parts of [0, until] that sorted ``spans`` leave open.

    >>> list(gaps([(1.0, 2.0), (3.0, 4.0)], 4.0))
    [(0.0, 1.0), (2.0, 3.0)]
    """
    position = 0.0
    for start, end in spans:
        if start > position:
            yield position, start
        position = max(position, end)
    if until > position:
        yield position, until


def claim(free: Sequence[tuple[float, float]], start: float, end: float) -> tuple[float, list[tuple[float, float]]]:
    """Take [start, end] out of ``free``; how much was taken, and what is left."""
    taken, left = 0.0, []
    for a, b in free:
        low, high = max(a, start), min(b, end)
        if low >= high:
            left.append((a, b))
            continue
        taken += high - low
        left.extend(piece for piece in ((a, low), (high, b)) if piece[0] < piece[1])
    return taken, left


def layer_period_s(submission: Submission) -> float:
    """Steady seconds a layer of the forward: from the end of the first layer's compute to that of the last."""
    timeline = submission.timeline
    columns = timeline.columns()
    forward = [entry.layer if entry.is_compute and entry.part in FORWARD_PARTS else -1 for entry in timeline.labels]
    compute_layer = np.array(forward, dtype=np.int64)
    layer = compute_layer[columns["label"]]
    last = int(layer.max(initial=-1))
    if last < 0:
        return 0.0
    ends = [float(columns["end_s"][layer == index].max()) for index in (0, last)]
    if last == 0:
        return ends[0] - float(columns["start_s"].min())
    return (ends[1] - ends[0]) / last


def received_bytes_per_layer(submission: Submission, layers: int) -> dict[str, float]:
    """Payload a rank received and did not hold, a layer's forward, by part: mean over ranks, from the transfers run."""
    timeline = submission.timeline
    columns = timeline.columns()
    size = np.zeros(int(columns["rank"].max(initial=0)) + 1)
    for simulated in submission.ranks:
        size[simulated.rank.number] = simulated.size
    moved = np.array([0.0 if entry.is_compute or entry.layer < 0 else entry.size_bytes for entry in timeline.labels])
    received = moved[columns["label"]] * size[columns["rank"]]
    result = {}
    for part in FORWARD_PARTS:
        inside = np.array([entry.part == part for entry in timeline.labels], dtype=bool)[columns["label"]]
        result[part] = as_whole(float(received[inside].sum()) / float(size.sum()) / layers)
    return result | {"total": as_whole(sum(result.values()))}


def as_whole(value: float) -> float:
    """An int where the value is one, so that exact volumes print exactly."""
    return int(value) if value == int(value) else value
