"""Priority with preemption: important jobs stop preemptible ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field, StrictBool

from ..dispatcher import JobDispatcher
from ..jobs import FleetJob
from ..running_job import RunningJob
from .base import JobScheduler


class Priority(JobScheduler):
    """Jobs start by priority, equals in order of submission. A job that does not fit stops preemptible jobs of lower
    priority, the lowest and latest first, if that makes room. Otherwise it holds up all jobs of its priority; of those
    below only preemptible ones start, which it can stop again."""

    name = "priority"
    preempt: StrictBool = Field(True, description="whether jobs are stopped at all")

    def rank(self, job: FleetJob) -> tuple[Any, ...]:
        return (-job.priority, job.submit_s)

    def open(self) -> Callable[[JobDispatcher], None]:
        return self._dispatch

    def _dispatch(self, dispatcher: JobDispatcher) -> None:
        held: int | None = None
        position = 0
        while position < len(dispatcher.queue):
            job = dispatcher.queue[position]
            if held is not None and (job.priority >= held or not job.preemptible or not self.preempt):
                position += 1
                continue
            if dispatcher.fits(job) or (self.preempt and self._makes_room(dispatcher, job)):
                # Stopped jobs wait behind it.
                dispatcher.start(job)
                continue
            held = job.priority if held is None else held
            if not self.preempt or (dispatcher.free == 0 and not self._below(dispatcher, held)):
                return
            position += 1

    def _below(self, dispatcher: JobDispatcher, priority: int) -> bool:
        """Whether a job of this priority could stop any running job."""
        return any(
            running.job.preemptible and running.job.priority < priority for running in dispatcher.running.values()
        )

    def _makes_room(self, dispatcher: JobDispatcher, job: FleetJob) -> bool:
        """Stops as few jobs as make room for a job, or none."""
        lower = [
            running
            for running in dispatcher.running.values()
            if running.job.preemptible and running.job.priority < job.priority
        ]
        lower.sort(key=lambda running: (running.job.priority, -running.began_s, -running.job.number))
        chosen = chosen_part(dispatcher, job, lower) if job.gpus else chosen_whole(dispatcher, job, lower)
        for running in chosen:
            dispatcher.stop(running)
        return bool(chosen) and dispatcher.fits(job)

    def in_words(self) -> str:
        stops = ", which stop preemptible ones of lower priority" if self.preempt else ""
        return f"by priority{stops}"


def chosen_whole(dispatcher: JobDispatcher, job: FleetJob, lower: list[RunningJob]) -> list[RunningJob]:
    """Running jobs to stop, in order, so that a job's nodes are empty; none where they do not suffice."""
    free, chosen = dispatcher.free, []
    left = {node: dispatcher.nodes.gpus - gpus for node, gpus in dispatcher.nodes.parts.items()}
    for running in lower:
        if running.job.gpus:
            node = running.nodes[0]
            left[node] -= running.job.gpus
            free += left[node] == 0
        else:
            free += len(running.nodes)
        chosen.append(running)
        if free >= job.nodes:
            # Jobs that need not stop after all go on, the most important first.
            for earlier in chosen[::-1]:
                if not earlier.job.gpus and free - len(earlier.nodes) >= job.nodes:
                    chosen.remove(earlier)
                    free -= len(earlier.nodes)
            return chosen
    return []


def chosen_part(dispatcher: JobDispatcher, job: FleetJob, lower: list[RunningJob]) -> list[RunningJob]:
    """Running jobs to stop so that one node has a small job's GPUs."""
    free = dict(dispatcher.nodes.parts)
    beside: dict[int, list[RunningJob]] = {}
    for running in lower:
        if not running.job.gpus:
            return [running]
        node = running.nodes[0]
        free[node] = free.get(node, 0) + running.job.gpus
        beside.setdefault(node, []).append(running)
        if free[node] >= job.gpus:
            return beside[node]
    return []


JobScheduler.registry.register(Priority)
