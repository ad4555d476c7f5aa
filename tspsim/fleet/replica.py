"""One replica of a service: its latencies at a rate, its highest rate, and its rate behind a queue."""

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
from .jobs import FleetJob, JobPace
from .paces import Paces, best_of, own_scenario
from .question import FleetQuestion, JobKeys

#: TIMES: multiples of its stated requests with which a service's highest rate is measured. QUEUES: a queue whose
#: requests wait for at most this share of the arrival time does not grow. LESS: factor to the next lower rate.
TIMES, QUEUES, LESS = (1, 4, 16, 64), 0.05, 0.97
#: Behind a queue: clients relative to requests that fit its caches, most clients, and requests of each.
CLIENTS, MOST_CLIENTS, OF_A_CLIENT = 1.25, 1280, 4


class ServiceReplica:
    """A replica of a service, alone on its nodes or GPUs.

    Attributes
    ----------
    slo
        Bounds of its traffic; None without bounds.
    """

    def __init__(self, paces: Paces, job: JobKeys, nodes: int) -> None:
        self.paces, self.job, self.nodes = paces, job, nodes
        self._own = own_scenario(paces.question, job, nodes)
        assert self._own.traffic is not None
        self._traffic: TrafficSpec = self._own.traffic
        self.slo: Slo | None = self._traffic.slo

    @property
    def peak(self) -> float:
        """Requests/s of the service as stated. Raises InputError where it has none."""
        rate = self._traffic.arrivals.mean_rate
        if rate is None:
            problem = "replicas follow requests/s, and its arrivals state no rate; use kind: poisson with a rate"
            raise InputError(problem, key=f"jobs.{self.job.name}.traffic.arrivals")
        return rate

    def at(self, rate: float) -> PlanResult:
        """The answer at a rate, or at its highest rate where that is lower."""
        plan = self._served(rate)
        while plan.served_at_most is not None:
            rate = min(LESS * rate, plan.served_at_most)
            plan = self._served(rate)
        return plan

    def most(self, rate: float) -> float:
        """Its highest rate in requests/s; infinite where that is at least ``rate``."""
        for times in TIMES:
            plan = self._served(rate, times)
            if plan.served_at_most is not None:
                break
            # In a growing queue the last requests wait in proportion to the run's length.
            if plan.serving["ttft_s"]["p99"] <= QUEUES * plan.serving["requests"] / rate:
                return inf
        return self.most_behind_a_queue if self.most_behind_a_queue < rate else inf

    @property
    def most_behind_a_queue(self) -> float:
        """Requests/s while requests always wait."""
        return float(self.behind_a_queue.serving["steady"]["requests_per_s"])

    @once
    def behind_a_queue(self) -> PlanResult:
        """The answer while requests always wait: a closed loop of more clients than its caches hold, or than an engine
        admits."""
        some = self.at(self._traffic.arrivals.mean_rate or 1.0)
        clients = int(min(MOST_CLIENTS, max(2.0, CLIENTS * some.serving["kv"]["sessions"])))
        closed: Any = ARRIVALS.get("closed")
        update = {"arrivals": closed(concurrency=(clients,)), "requests": OF_A_CLIENT * clients}
        return self._plan(self._traffic.model_copy(update=update))

    def _served(self, rate: float, times: int = 1) -> PlanResult:
        """The answer at a rate, with ``times`` the stated requests; refused where they come too fast."""
        traffic = self._traffic.at_rate(rate)
        if times > 1 and traffic.requests is not None:
            traffic = traffic.model_copy(update={"requests": times * traffic.requests})
        return self._plan(traffic)

    def _plan(self, traffic: TrafficSpec) -> PlanResult:
        scenario: Scenario = self._own.model_copy(update={"traffic": traffic})
        answer = self.paces.answer(scenario, self.job)
        if answer.plans and answer.plans[0].served_at_most is not None:
            return answer.plans[0]
        self.paces.answers.setdefault((self.job.name, self.nodes), answer)
        return best_of(answer, self.job, self.nodes)


def replicas_of(question: FleetQuestion, paces: Paces) -> Iterator[tuple[JobKeys, FleetJob, float, float]]:
    """For every service with an autoscaler: its keys, a replica as a job, the seconds that it runs, and requests/s at
    full load. Raises InputError where its arrivals state no rate."""
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
