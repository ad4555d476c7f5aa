"""EASY backfill: jobs may overtake the head of the queue if that does not delay it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..dispatcher import JobDispatcher
from ..jobs import FleetJob
from .base import JobScheduler, start_in_order


class Easy(JobScheduler):
    """First come, first served. Behind a head that does not fit, jobs start that end before its expected start, or that
    use nodes it will not need.

    References
    ----------
    Mu'alem and Feitelson 2001, IEEE TPDS 12(6), section 2.2; Lifka 1995.
    """

    name = "easy"
    starvation_free = True

    def open(self) -> Callable[[JobDispatcher], None]:
        def dispatch(dispatcher: JobDispatcher) -> None:
            start_in_order(dispatcher)
            if len(dispatcher.queue) > 1:
                backfill_behind(dispatcher, dispatcher.queue[0])

        return dispatch

    def in_words(self) -> str:
        return "first come, first served with EASY backfill"


def backfill_behind(dispatcher: JobDispatcher, head: FleetJob) -> list[FleetJob]:
    """Starts jobs that fit and do not delay ``head``, which waits and does not fit; returns the started jobs."""
    queue, position, started = dispatcher.queue, 0, []
    if not dispatcher.free and not dispatcher.nodes.parts:
        return []
    shadow_s, extra = dispatcher.reservation(head)
    while position < len(queue):
        room = dispatcher.nodes.gpus if dispatcher.free else max(dispatcher.nodes.parts.values(), default=0)
        if not room:
            break
        nodes, limit_s, gpus = queue.nodes[position:], queue.limit_s[position:], queue.gpus[position:]
        small = gpus > 0
        fits = np.where(small, gpus <= room, nodes <= dispatcher.free)
        # Small jobs are checked one by one: a node that stays shared anyway costs the head nothing.
        may = fits & (small | (dispatcher.now_s + limit_s <= shadow_s) | (nodes <= extra))
        first = int(np.argmax(may))
        if not may[first]:
            break
        position += first
        job = queue[position]
        taken = _taken(dispatcher, job, head, shadow_s)
        if job is head or taken > extra or not dispatcher.fits(job):
            position += 1
            continue
        extra -= taken
        dispatcher.start(job)
        started.append(job)
    return started


def _taken(dispatcher: JobDispatcher, job: FleetJob, head: FleetJob, shadow_s: float) -> int:
    """Nodes that a job would still hold at the expected start of the head."""
    if dispatcher.now_s + job.limit_s <= shadow_s:
        return 0
    if not job.gpus:
        return job.nodes
    # A small head may wait for that very node.
    shared = None if head.gpus else dispatcher.nodes.tightest(job.gpus)
    return 0 if shared is not None and dispatcher.holds_until(shared) > shadow_s else 1


JobScheduler.registry.register(Easy)
