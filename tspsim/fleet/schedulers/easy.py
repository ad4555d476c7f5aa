"""EASY backfill: others may go before the head of the queue if that does not delay it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..desk import JobDispatcher
from ..jobs import FleetJob
from .base import JobScheduler, start_in_order


class Easy(JobScheduler):
    """First come, first served; behind a head that does not fit jobs start that end before it is expected to, or that
    take nodes which it will not need.

    References
    ----------
    Mu'alem and Feitelson 2001, IEEE TPDS 12(6), section 2.2; Lifka 1995.
    """

    name = "easy"
    starvation_free = True

    def open(self) -> Callable[[JobDispatcher], None]:
        def dispatch(desk: JobDispatcher) -> None:
            start_in_order(desk)
            if len(desk.queue) > 1:
                backfill_behind(desk, desk.queue[0])

        return dispatch

    def in_words(self) -> str:
        return "first come, first served with EASY backfill"


def backfill_behind(desk: JobDispatcher, head: FleetJob) -> list[FleetJob]:
    """Start what fits and does not delay ``head``, which waits and does not fit; returns what was started."""
    queue, position, started = desk.queue, 0, []
    if not desk.free and not desk.nodes.parts:
        return []
    shadow_s, extra = desk.reservation(head)
    while position < len(queue):
        room = desk.nodes.gpus if desk.free else max(desk.nodes.parts.values(), default=0)
        if not room:
            break
        nodes, limit_s, gpus = queue.nodes[position:], queue.limit_s[position:], queue.gpus[position:]
        small = gpus > 0
        fits = np.where(small, gpus <= room, nodes <= desk.free)
        # Small jobs are looked at one by one: a node that is shared longer anyway is nobody's loss.
        may = fits & (small | (desk.now_s + limit_s <= shadow_s) | (nodes <= extra))
        first = int(np.argmax(may))
        if not may[first]:
            break
        position += first
        job = queue[position]
        taken = _taken(desk, job, head, shadow_s)
        if job is head or taken > extra or not desk.fits(job):
            position += 1
            continue
        extra -= taken
        desk.start(job)
        started.append(job)
    return started


def _taken(desk: JobDispatcher, job: FleetJob, head: FleetJob, shadow_s: float) -> int:
    """Nodes that a job would still have when the head of the queue is expected to start."""
    if desk.now_s + job.limit_s <= shadow_s:
        return 0
    if not job.gpus:
        return job.nodes
    # The head may wait for that very node if it is small too.
    shared = None if head.gpus else desk.nodes.tightest(job.gpus)
    return 0 if shared is not None and desk.holds_until(shared) > shadow_s else 1


JobScheduler.registry.register(Easy)
