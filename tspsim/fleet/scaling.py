"""Services whose replicas follow their load: a process each beside the jobs of a fleet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np
import simpy

from ..result import PlanResult
from .clock import Fleet, Run
from .jobs import Job
from .question import JobKeys
from .replica_keys import Replicas

#: Rates a replica at which the service is simulated, at most; between them latencies are on a line.
POINTS = 5
#: Requests/s below which nobody is served, and how far below the highest rate a lower one is looked at.
LEAST_RATE, WIDEST = 1e-6, 1000.0
#: What one replica does at so many requests/s.
AtRate = Callable[[float], PlanResult]
#: What is told of a service's users.
LATENCIES = ("ttft_s", "tpot_s")


class Scaling:
    """The replicas of one service.

    Attributes
    ----------
    rows
        Of every look at the load: seconds until the next, requests/s, and replicas: that serve in the mean until then,
        that are there or wait, and that the rule wants.
    """

    def __init__(self, fleet: Fleet, keys: JobKeys, replica: Job, hours_s: float, peak: float) -> None:
        assert keys.replicas is not None
        self.fleet, self.keys, self.replica, self.peak = fleet, keys, replica, peak
        self.replicas: Replicas = keys.replicas
        self.hours_s = hours_s
        self.rows: list[tuple[float, float, float, int, int]] = []
        self._jobs: list[Job] = []
        self._count = 0
        #: When the rule wanted how many, for as long as that holds replicas.
        self._wanted: deque[tuple[float, int]] = deque()
        fleet.hold()
        fleet.env.process(self._follow())

    def _follow(self) -> Generator[simpy.Event, Any, None]:
        env, keys = self.fleet.env, self.replicas
        if self.replica.submit_s:
            yield env.timeout(self.replica.submit_s)
        end_s = env.now + self.hours_s
        while env.now < end_s:
            rate = self.peak * keys.share_at(env.now)
            wanted = min(keys.max, max(keys.min, keys.autoscaler.wanted(rate, len(self._jobs))))
            self._scale(wanted)
            for_s = min(keys.every, end_s - env.now)
            yield env.timeout(for_s)
            self.rows.append((for_s, rate, self._served_s(for_s) / for_s, len(self._jobs), wanted))
        for job in self._jobs:
            self.fleet.retire(job)
        self.fleet.release()

    def _scale(self, wanted: int) -> None:
        """More at once; fewer only where no look of late wanted more."""
        now, late = self.fleet.env.now, self._wanted
        late.append((now, wanted))
        while late[0][0] < now - self.replicas.down_after:
            late.popleft()
        target = max(count for _, count in late) if wanted < len(self._jobs) else wanted
        while len(self._jobs) < target:
            self._count += 1
            job = replace(self.replica, name=f"{self.keys.name}-{self._count}", submit_s=now)
            self._jobs.append(self.fleet.add(job))
        while len(self._jobs) > target:
            # Who does not serve yet goes first, then who came last.
            self.fleet.retire(self._jobs.pop(self._last_needed()))

    def _last_needed(self) -> int:
        running = self.fleet.desk.running
        waiting = [place for place, job in enumerate(self._jobs) if job.number not in running]
        return waiting[-1] if waiting else len(self._jobs) - 1

    def _served_s(self, for_s: float) -> float:
        """Seconds of the last ``for_s`` that replicas served, of all together."""
        running, now = self.fleet.desk.running, self.fleet.env.now
        runs = (running.get(job.number) for job in self._jobs)
        return sum(min(for_s, max(0.0, now - run.ready_s)) for run in runs if isinstance(run, Run) and not run.hung)

    def to_json(self, at_rate: AtRate) -> dict[str, Any]:
        """The service's entry of ``services``; ``at_rate`` simulates one replica."""
        rows = np.array(self.rows).reshape(-1, 5)
        for_s, rate, serving, there, wanted = rows.T
        requests, whole_s = rate * for_s, float(for_s.sum())
        served = serving > 0
        return {
            "name": self.keys.name,
            "min": self.replicas.min,
            "max": self.replicas.max,
            "mean_replicas": float((there * for_s).sum() / whole_s) if whole_s else 0.0,
            "most_replicas": int(there.max(initial=0)),
            "mean_serving": float((serving * for_s).sum() / whole_s) if whole_s else 0.0,
            "requests": float(requests.sum()),
            "unserved_share": float(requests[~served].sum() / requests.sum()) if requests.sum() else 0.0,
            "short_share": float(for_s[serving < wanted].sum() / whole_s) if whole_s else 0.0,
            **latencies(rate[served] / serving[served], requests[served], at_rate),
        }


def latencies(rates: Any, requests: Any, at_rate: AtRate) -> dict[str, Any]:
    """Of requests at some rates a replica: medians and 99 % of one replica simulated at a few rates, means over the
    requests and the worst. A replica with more to do is never quicker: where chance says so the slower holds."""
    some = rates > LEAST_RATE
    rates, requests = rates[some], requests[some]
    if not len(rates):
        return {}
    high = float(rates.max())
    low = max(float(rates.min()), high / WIDEST)
    points = np.array([high]) if high <= low * (1.0 + 1e-9) else np.geomspace(low, high, POINTS)
    plans = [at_rate(float(point)) for point in points]
    told: dict[str, Any] = {"rates": points.tolist()}
    for key in LATENCIES:
        told[key] = {}
        for part in ("p50", "p99"):
            values = np.maximum.accumulate([plan.serving[key][part] for plan in plans])
            there = np.interp(rates, points, values)
            told[key] |= {part: float((there * requests).sum() / requests.sum()), f"{part}_worst": float(there.max())}
    return told
