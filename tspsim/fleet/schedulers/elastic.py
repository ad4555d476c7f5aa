"""Jobs that can run on several numbers of nodes start on as many as there are."""

from __future__ import annotations

from collections.abc import Callable

from ..desk import JobDispatcher
from ..jobs import FleetJob
from .base import JobScheduler


class Elastic(JobScheduler):
    """First come, first served; a job of several sizes starts at the largest that is free, and while others wait behind
    it at the smallest on which it does most work a GPU. A job keeps its size until it ends or fails."""

    name = "elastic"
    starvation_free = True

    def open(self) -> Callable[[JobDispatcher], None]:
        def dispatch(desk: JobDispatcher) -> None:
            while desk.queue:
                job = desk.queue[0]
                fitting = [size for size in range(len(job.sizes)) if desk.fits(job, size)]
                if not fitting:
                    return
                desk.start(job, best(job, fitting, crowded=len(desk.queue) > 1))

        return dispatch

    def in_words(self) -> str:
        return "first come, first served, at the size that is free"


def best(job: FleetJob, fitting: list[int], *, crowded: bool) -> int:
    """The size that ends first, or while others wait the one that takes fewest node-seconds."""

    def cost(size: int) -> tuple[float, float]:
        node_s = job.work_s[size] * job.sizes[size]
        return (node_s, job.work_s[size]) if crowded else (job.work_s[size], node_s)

    return min(fitting, key=cost)


JobScheduler.registry.register(Elastic)
