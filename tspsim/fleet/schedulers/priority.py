"""Priority with preemption: what is more important stops what may be stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field, StrictBool

from ..desk import JobDispatcher, Running
from ..jobs import FleetJob
from .base import JobScheduler


class Priority(JobScheduler):
    """Jobs start by priority, equals in order of submission. One that does not fit stops preemptible jobs of lower
    priority, the lowest and latest first, if that makes room; otherwise it holds up all of its priority, and of those
    below it only preemptible ones start, which it can stop again."""

    name = "priority"
    preempt: StrictBool = Field(True, description="whether jobs are stopped at all")

    def rank(self, job: FleetJob) -> tuple[Any, ...]:
        return (-job.priority, job.submit_s)

    def open(self) -> Callable[[JobDispatcher], None]:
        return self._dispatch

    def _dispatch(self, desk: JobDispatcher) -> None:
        held: int | None = None
        position = 0
        while position < len(desk.queue):
            job = desk.queue[position]
            if held is not None and (job.priority >= held or not job.preemptible or not self.preempt):
                position += 1
                continue
            if desk.fits(job) or (self.preempt and self._makes_room(desk, job)):
                # Those that were stopped stand behind it.
                desk.start(job)
                continue
            held = job.priority if held is None else held
            if not self.preempt or (desk.free == 0 and not self._below(desk, held)):
                return
            position += 1

    def _below(self, desk: JobDispatcher, priority: int) -> bool:
        """Whether anything runs that a job of lower priority than this could stop."""
        return any(each.job.preemptible and each.job.priority < priority for each in desk.running.values())

    def _makes_room(self, desk: JobDispatcher, job: FleetJob) -> bool:
        """Stop as little as makes room for a job, or nothing."""
        lower = [each for each in desk.running.values() if each.job.preemptible and each.job.priority < job.priority]
        lower.sort(key=lambda each: (each.job.priority, -each.began_s, -each.job.number))
        chosen = chosen_part(desk, job, lower) if job.gpus else chosen_whole(desk, job, lower)
        for each in chosen:
            desk.stop(each)
        return bool(chosen) and desk.fits(job)

    def in_words(self) -> str:
        stops = ", which stop preemptible ones of lower priority" if self.preempt else ""
        return f"by priority{stops}"


def chosen_whole(desk: JobDispatcher, job: FleetJob, lower: list[Running]) -> list[Running]:
    """Running jobs, in their order, after which as many nodes are empty as a job needs; none where they do not
    suffice."""
    free, chosen = desk.free, []
    left = {node: desk.nodes.gpus - gpus for node, gpus in desk.nodes.parts.items()}
    for each in lower:
        if each.job.gpus:
            node = each.nodes[0]
            left[node] -= each.job.gpus
            free += left[node] == 0
        else:
            free += len(each.nodes)
        chosen.append(each)
        if free >= job.nodes:
            # Whoever is not needed after all goes on, the most important first.
            for earlier in chosen[::-1]:
                if not earlier.job.gpus and free - len(earlier.nodes) >= job.nodes:
                    chosen.remove(earlier)
                    free -= len(earlier.nodes)
            return chosen
    return []


def chosen_part(desk: JobDispatcher, job: FleetJob, lower: list[Running]) -> list[Running]:
    """Running jobs after which one node has as many free GPUs as a job needs."""
    free = dict(desk.nodes.parts)
    beside: dict[int, list[Running]] = {}
    for each in lower:
        if not each.job.gpus:
            return [each]
        node = each.nodes[0]
        free[node] = free.get(node, 0) + each.job.gpus
        beside.setdefault(node, []).append(each)
        if free[node] >= job.gpus:
            return beside[node]
    return []


JobScheduler.registry.register(Priority)
