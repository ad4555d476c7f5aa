"""EASY backfill: others may go before the head of the queue if that does not delay it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..desk import Desk
from .base import JobScheduler, start_in_order


class Easy(JobScheduler):
    """First come, first served; behind a head that does not fit jobs start that end before it is expected to, or that
    take nodes which it will not need.

    References
    ----------
    Mu'alem and Feitelson 2001, IEEE TPDS 12(6), section 2.2; Lifka 1995.
    """

    name = "easy"

    def open(self) -> Callable[[Desk], None]:
        def dispatch(desk: Desk) -> None:
            start_in_order(desk)
            if len(desk.queue) > 1:
                backfill(desk, *desk.reservation(desk.queue[0]))

        return dispatch

    def in_words(self) -> str:
        return "first come, first served with EASY backfill"


def backfill(desk: Desk, shadow_s: float, extra: int) -> None:
    """Start what fits and does not delay the head of the queue: expected to start at ``shadow_s``, with ``extra`` nodes
    left over then."""
    queue, position = desk.queue, 1
    while position < len(queue):
        parts = desk.nodes.parts
        room = max(parts.values(), default=0) if desk.free == 0 else desk.nodes.gpus
        if desk.free == 0 and room == 0:
            return
        nodes, limit_s, gpus = queue.nodes[position:], queue.limit_s[position:], queue.gpus[position:]
        small = gpus > 0
        fits = np.where(small, gpus <= room, nodes <= desk.free)
        # Small jobs are looked at one by one: a node that is shared longer anyway is nobody's loss.
        may = fits & (small | (desk.now_s + limit_s <= shadow_s) | (nodes <= extra))
        first = int(np.argmax(may))
        if not may[first]:
            return
        position += first
        job = queue[position]
        in_time = desk.now_s + job.limit_s <= shadow_s
        taken = 0 if in_time else job.nodes
        if job.gpus:
            # The head may wait for that very node if it is small too.
            shared = None if queue[0].gpus else desk.nodes.tightest(job.gpus)
            taken = 0 if in_time or (shared is not None and desk.holds_until(shared) > shadow_s) else 1
        if taken > extra:
            position += 1
            continue
        extra -= taken
        desk.start(job)


JobScheduler.registry.register(Easy)
