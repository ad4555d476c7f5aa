"""Jobs with several sizes start on as many nodes as are free."""

from __future__ import annotations

from collections.abc import Callable

from ..dispatcher import JobDispatcher
from ..jobs import FleetJob
from .base import JobScheduler


class Elastic(JobScheduler):
    """First come, first served. A job with several sizes starts at the largest that is free; while others wait behind
    it, at the smallest with the most work per GPU. It keeps its size until it ends or fails."""

    name = "elastic"
    starvation_free = True

    def open(self) -> Callable[[JobDispatcher], None]:
        def dispatch(dispatcher: JobDispatcher) -> None:
            while dispatcher.queue:
                job = dispatcher.queue[0]
                fitting = [size for size in range(len(job.sizes)) if dispatcher.fits(job, size)]
                if not fitting:
                    return
                dispatcher.start(job, best(job, fitting, crowded=len(dispatcher.queue) > 1))

        return dispatch

    def in_words(self) -> str:
        return "first come, first served, at the size that is free"


def best(job: FleetJob, fitting: list[int], *, crowded: bool) -> int:
    """The size that ends first; while others wait, the one with fewest node-seconds."""

    def cost(size: int) -> tuple[float, float]:
        node_s = job.work_s[size] * job.sizes[size]
        return (node_s, job.work_s[size]) if crowded else (job.work_s[size], node_s)

    return min(fitting, key=cost)


JobScheduler.registry.register(Elastic)
