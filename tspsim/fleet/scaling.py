"""Services whose replicas follow their load: one process per service beside the jobs of a fleet."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from .backlog import Backlog, Floats, backlog
from .clock import Fleet
from .jobs import FleetJob
from .question import JobKeys
from .replica import ServiceReplica
from .replica_keys import Replicas
from .running_job import RunningJob

#: Most rates per replica at which the service is simulated; latencies between them are interpolated.
POINTS = 5
#: Rates below LEAST_RATE serve nobody; simulated rates go down to the highest over WIDEST.
LEAST_RATE, WIDEST = 1e-6, 1000.0


class Scaling:
    """The replicas of one service.

    Attributes
    ----------
    rows
        Per look at the load: seconds until the next, requests/s, and numbers of replicas: mean serving until then,
        present or waiting, and wanted by the rule.
    """

    def __init__(self, fleet: Fleet, keys: JobKeys, replica: FleetJob, hours_s: float, peak: float) -> None:
        assert keys.replicas is not None
        self.fleet, self.keys, self.replica, self.peak = fleet, keys, replica, peak
        self.replicas: Replicas = keys.replicas
        self.hours_s = hours_s
        self.rows: list[tuple[float, float, float, int, int]] = []
        self._jobs: list[FleetJob] = []
        self._count = 0
        #: (time, replicas) that the rule wanted, as long as they count.
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
        """Adds replicas at once; removes some only where no recent look wanted more."""
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
            # Replicas that do not serve yet go first, then the last added.
            self.fleet.retire(self._jobs.pop(self._last_needed()))

    def _last_needed(self) -> int:
        running = self.fleet.dispatcher.running
        waiting = [place for place, job in enumerate(self._jobs) if job.number not in running]
        return waiting[-1] if waiting else len(self._jobs) - 1

    def _served_s(self, for_s: float) -> float:
        """Replica-seconds of service in the last ``for_s``."""
        running, now = self.fleet.dispatcher.running, self.fleet.env.now
        runs = (running.get(job.number) for job in self._jobs)
        return sum(
            min(for_s, max(0.0, now - run.ready_s)) for run in runs if isinstance(run, RunningJob) and not run.hung
        )

    def to_json(self, replica: ServiceReplica) -> dict[str, Any]:
        """The service's entry of ``services``."""
        rows = np.array(self.rows).reshape(-1, 5)
        for_s, rate, serving, there, wanted = rows.T
        requests, whole_s = rate * for_s, float(for_s.sum())
        served = serving > 0
        entry: dict[str, Any] = {
            "name": self.keys.name,
            "min": self.replicas.min,
            "max": self.replicas.max,
            "mean_replicas": float((there * for_s).sum() / whole_s) if whole_s else 0.0,
            "most_replicas": int(there.max(initial=0)),
            "mean_serving": float((serving * for_s).sum() / whole_s) if whole_s else 0.0,
            "requests": float(requests.sum()),
            "unserved_share": float(requests[~served].sum() / requests.sum()) if requests.sum() else 0.0,
            "short_share": float(for_s[serving < wanted].sum() / whole_s) if whole_s else 0.0,
        }
        if not served.any() or not requests.sum():
            return entry
        capacity = _capacity(rate, serving, replica)
        queued = backlog(for_s, rate, serving, capacity)
        return entry | {"backlog": queued.to_json()} | latencies(queued, replica, capacity < inf)


def _capacity(rate: Floats, serving: Floats, replica: ServiceReplica) -> float:
    """Highest requests/s of a replica; infinite where nothing ever queues."""
    served = serving > 0
    high = float((rate[served] / serving[served]).max())
    most = replica.most(max(high, LEAST_RATE))
    return replica.most_behind_a_queue if most == inf and rate[~served].any() else most


def latencies(queued: Backlog, replica: ServiceReplica, queues: bool) -> dict[str, Any]:
    """Latencies of requests at their rates: medians and 99th percentiles of one replica simulated at a few rates, plus
    the wait for service; means over the requests and the worst. Where requests wait, a token takes its time behind a
    queue. A higher rate is never faster: where a draw says so, the slower value holds.

    With bounds, the share of requests within them: a request misses all if it waits for service longer than a bound on
    the first or the last token, if it waits at all while tokens behind a queue miss their bound, or if it is left over.
    """
    some = queued.pace > LEAST_RATE
    if not some.any():
        return {}
    rates, requests = queued.pace[some], queued.requests[some]
    mean_s, longest_s = queued.wait_s[some], queued.longest_s[some]
    waits = longest_s > 0.0
    high = float(rates.max())
    low = max(float(rates.min()), high / WIDEST)
    points = np.array([high]) if high <= low * (1.0 + 1e-9) else np.geomspace(low, high, POINTS)
    plans = [replica.at(float(point)) for point in points]
    entry: dict[str, Any] = {"rates": points.tolist(), "ttft_s": {}, "tpot_s": {}}
    for part in ("p50", "p99"):
        first, token = (
            np.interp(rates, points, np.maximum.accumulate([plan.serving[key][part] for plan in plans]))
            for key in ("ttft_s", "tpot_s")
        )
        if queues:
            token = np.where(waits, np.maximum(token, replica.behind_a_queue.serving["tpot_s"][part]), token)
        for key, mean, worst in (("ttft_s", first + mean_s, first + longest_s), ("tpot_s", token, token)):
            entry[key] |= {part: float((mean * requests).sum() / requests.sum()), f"{part}_worst": float(worst.max())}
    bounds = [plan.serving["bounds"] for plan in plans if plan.serving.get("bounds")]
    if len(bounds) < len(plans):
        return entry
    shares = np.interp(rates, points, np.minimum.accumulate([bound["share"] for bound in bounds]))
    kept = np.where(_late(longest_s, replica, queues), 0.0, shares)
    share, wanted = float((kept * requests).sum()) / (float(requests.sum()) + queued.left), float(bounds[0]["wanted"])
    return entry | {"bounds": {"share": share, "wanted": wanted, "kept": share >= wanted}}


def _late(longest_s: Floats, replica: ServiceReplica, queues: bool) -> NDArray[np.bool_]:
    """Requests that miss their bounds because they wait."""
    slo = replica.slo
    late = np.zeros(len(longest_s), dtype=np.bool_)
    if slo is None or not queues:
        return late
    for bound_s in (slo.ttft, slo.e2e):
        if bound_s is not None:
            late |= longest_s > bound_s
    if slo.tpot is not None and replica.behind_a_queue.serving["tpot_s"]["p50"] > slo.tpot:
        late |= longest_s > 0.0
    return late
