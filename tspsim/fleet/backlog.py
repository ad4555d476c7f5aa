"""Requests that a service's replicas cannot serve at once, and that wait for hours with less load.

Requests are a flow: they come at a rate, replicas serve at most theirs, and the rest queues, first come, first served.
With A(t) requests that came by t and D(t) whose service began, the n-th waits D⁻¹(n) − A⁻¹(n). Both curves are straight
between the times at which a rate changes or the queue becomes empty, so the only approximation is the flow itself
(Newell 1982, Applications of Queueing Theory, chapter 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Backlog:
    """Waits of a service's requests, in runs of requests that came and were served at constant rates.

    Attributes
    ----------
    requests
        Requests of every served run.
    wait_s, longest_s
        Mean and largest wait of every run until its service begins.
    pace
        Requests/s per replica while it served the run.
    left, left_wait_s
        Requests not served at the end, and the wait of the first of them.
    most
        Most requests that waited at once.
    """

    requests: Floats
    wait_s: Floats
    longest_s: Floats
    pace: Floats
    left: float
    left_wait_s: float
    most: float

    def to_json(self) -> dict[str, Any]:
        """The entry ``backlog`` of a service."""
        served = float(self.requests.sum())
        return {
            "most_requests": self.most,
            "requests_left": self.left,
            "mean_wait_s": float((self.wait_s * self.requests).sum() / served) if served else 0.0,
            "longest_wait_s": max(float(self.longest_s.max(initial=0.0)), self.left_wait_s),
            "waiting_share": float(self.requests[self.longest_s > 0].sum() / served) if served else 0.0,
        }


def backlog(for_s: Floats, rate: Floats, serving: Floats, capacity: float) -> Backlog:
    """The requests of a service over time.

    Parameters
    ----------
    for_s, rate, serving
        Consecutive spans of time: seconds, arriving requests/s, serving replicas. Shape (spans,) each.
    capacity
        Most requests/s of a replica; infinite where it always suffices.

    Examples
    --------
    >>> import numpy as np
    >>> result = backlog(np.array([10.0, 10.0]), np.array([3.0, 0.0]), np.array([1.0, 1.0]), 2.0)
    >>> result.to_json()["most_requests"], result.to_json()["mean_wait_s"], result.left
    (10.0, 2.5, 0.0)
    """
    spans, queues = _spans(for_s, rate, serving, capacity)
    lasting, come, there = spans
    at_s = np.concatenate([[0.0], np.cumsum(lasting)])
    came = np.concatenate([[0.0], np.cumsum(come * lasting)])
    served = came - queues
    left = float(came[-1] - served[-1])
    borders = np.unique(np.concatenate([came, served]))
    # Borders that differ only in the last digits are equal.
    borders = borders[np.concatenate([[True], np.diff(borders) > 1e-9 * max(1.0, float(came[-1]))])]
    low, high = borders[:-1], borders[1:]
    kept = high <= served[-1] + 1e-9 * max(1.0, float(came[-1]))
    low, high = low[kept], high[kept]
    inner = [_waits(low + share * (high - low), at_s, came, served) for share in (0.25, 0.75)]
    span = np.clip(np.searchsorted(served, low + 0.5 * (high - low), side="right") - 1, 0, len(lasting) - 1)
    mean_s = np.maximum(0.0, (inner[0] + inner[1]) / 2.0)
    longest_s = np.maximum(0.0, mean_s + np.abs(inner[1] - inner[0]))
    moved = np.diff(served) / np.maximum(lasting, 1e-30)
    pace = (moved / np.maximum(there, 1e-30))[span]
    waits_since = float(np.interp(served[-1], came, at_s)) if left > 1e-9 else float(at_s[-1])
    return Backlog(high - low, mean_s, longest_s, pace, left, float(at_s[-1]) - waits_since, float(queues.max()))


def _waits(numbers: Floats, at_s: Floats, came: Floats, served: Floats) -> Floats:
    """Waits of requests by the number of requests before them; no number lies where a curve is flat."""
    return np.asarray(np.interp(numbers, served, at_s) - np.interp(numbers, came, at_s))


def _spans(
    for_s: Floats, rate: Floats, serving: Floats, capacity: float
) -> tuple[tuple[Floats, Floats, Floats], Floats]:
    """The spans, cut where the queue becomes empty, and the queue at their borders."""
    cut: list[tuple[float, float, float]] = []
    queues = [0.0]
    for lasting, come, there in zip(for_s.tolist(), rate.tolist(), serving.tolist(), strict=True):
        queue, most = queues[-1], there * capacity if there > 0 else 0.0
        drains_s = queue / (most - come) if queue > 0 and most > come else 0.0
        if 0.0 < drains_s < lasting:
            cut += [(drains_s, come, there), (lasting - drains_s, come, there)]
            queues += [0.0, 0.0]
        else:
            cut.append((lasting, come, there))
            queues.append(max(0.0, queue + (come - most) * lasting) if queue > 0 or come > most else 0.0)
    lasting_s, comes, theres = (np.array(column, dtype=np.float64) for column in zip(*cut, strict=True))
    return (lasting_s, comes, theres), np.array(queues)
