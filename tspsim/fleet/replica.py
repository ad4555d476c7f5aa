"""One replica of a service: what it does at a rate, what it serves at most, and what it does behind a queue."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..base.memo import once
from ..scenario import Scenario
from ..scenario.traffic import Slo, TrafficSpec
from ..step.result import PlanResult
from ..traffic import ARRIVALS
from .asked import Paces, best_of, own_scenario
from .jobs import FleetJob, JobPace
from .question import FleetQuestion, JobKeys

#: Times its stated requests with which a service is asked what it serves at most; a queue that makes requests wait for
#: no more than this share of the time in which they come does not grow; and how much lower a rate is tried next.
TIMES, QUEUES, LESS = (1, 4, 16, 64), 0.05, 0.97
#: Behind a queue: clients over requests that fit its caches, the most of them, and requests of each.
CLIENTS, MOST_CLIENTS, OF_A_CLIENT = 1.25, 1280, 4


class ServiceReplica:
    """A replica of a service alone on its nodes or GPUs.

    Attributes
    ----------
    slo
        Bounds of its traffic; None without.
    """

    def __init__(self, paces: Paces, job: JobKeys, nodes: int) -> None:
        self.paces, self.job, self.nodes = paces, job, nodes
        self._own = own_scenario(paces.question, job, nodes)
        assert self._own.traffic is not None
        self._traffic: TrafficSpec = self._own.traffic
        self.slo: Slo | None = self._traffic.slo

    @property
    def peak(self) -> float:
        """Requests/s of the service as stated; raises InputError where it has none."""
        rate = self._traffic.arrivals.mean_rate
        if rate is None:
            told = "replicas follow requests/s, and its arrivals state no rate; use kind: poisson with a rate"
            raise InputError(told, key=f"jobs.{self.job.name}.traffic.arrivals")
        return rate

    def at(self, rate: float) -> PlanResult:
        """At so many requests/s, or at the most that it serves where that is less."""
        plan = self._served(rate)
        while plan.served_at_most is not None:
            rate = min(LESS * rate, plan.served_at_most)
            plan = self._served(rate)
        return plan

    def most(self, rate: float) -> float:
        """Requests/s that it serves at most; infinite where that is no less than ``rate``."""
        for times in TIMES:
            plan = self._served(rate, times)
            if plan.served_at_most is not None:
                break
            # Where a queue grows the last request waits for as long as the others are late.
            if plan.serving["ttft_s"]["p99"] <= QUEUES * plan.serving["requests"] / rate:
                return inf
        return self.most_behind_a_queue if self.most_behind_a_queue < rate else inf

    @property
    def most_behind_a_queue(self) -> float:
        """Requests/s that it serves where requests always wait."""
        return float(self.behind_a_queue.serving["steady"]["requests_per_s"])

    @once
    def behind_a_queue(self) -> PlanResult:
        """Where requests always wait: in a closed loop of more clients than its caches have room for, or than an engine
        lets in."""
        some = self.at(self._traffic.arrivals.mean_rate or 1.0)
        clients = int(min(MOST_CLIENTS, max(2.0, CLIENTS * some.serving["kv"]["sessions"])))
        closed: Any = ARRIVALS.get("closed")
        update = {"arrivals": closed(concurrency=(clients,)), "requests": OF_A_CLIENT * clients}
        return self._plan(self._traffic.model_copy(update=update))

    def _served(self, rate: float, times: int = 1) -> PlanResult:
        """At a rate, with so many times its stated requests; refused where they come too fast."""
        traffic = self._traffic.at_rate(rate)
        if times > 1 and traffic.requests is not None:
            traffic = traffic.model_copy(update={"requests": times * traffic.requests})
        return self._plan(traffic)

    def _plan(self, traffic: TrafficSpec) -> PlanResult:
        asked: Scenario = self._own.model_copy(update={"traffic": traffic})
        answer = self.paces.answer(asked, self.job)
        if answer.plans and answer.plans[0].served_at_most is not None:
            return answer.plans[0]
        self.paces.answers.setdefault((self.job.name, self.nodes), answer)
        return best_of(answer, self.job, self.nodes)


def replicas_of(question: FleetQuestion, paces: Paces) -> Iterator[tuple[JobKeys, FleetJob, float, float]]:
    """Of every service with an autoscaler: its keys, a replica as a job, seconds that it runs, and requests/s at full
    load; raises InputError where its arrivals state no rate."""
    seeds = np.random.SeedSequence(question.seed).spawn(len(question.jobs))
    for entry, keys in enumerate(question.jobs):
        if keys.replicas is None:
            continue
        assert keys.hours is not None
        size = (keys.nodes or (1,))[0]
        replica = ServiceReplica(paces, keys, size)
        hours_s = float(keys.hours.draw(np.random.default_rng(seeds[entry]), 1)[0])
        start_s, rate = keys.replicas.start, replica.peak / keys.replicas.max
        pace = JobPace(plan=replica.at(rate), every_s=1.0, start_s=start_s, read_s=start_s)
        yield keys, FleetJob(
            0, keys.name, keys.counted_as, keys.user or keys.counted_as, entry, keys.submit, (size,), (2.0 * hours_s,),
            keys.limit or hours_s, keys.gpus or 0, keys.priority, keys.preemptible, keys.deadline, paces=(pace,),
        ), hours_s, replica.peak  # fmt: skip
