"""Conservative backfill: no job is delayed by one that was submitted later."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from math import inf

from ..dispatcher import JobDispatcher
from .base import JobScheduler, start_in_order


class Conservative(JobScheduler):
    """Every waiting job has a reservation; a job overtakes others where that delays no reservation.

    Reservations are recomputed in order whenever something changes, so that an early end moves all of them up. A job on
    part of a node counts as one node.

    References
    ----------
    Mu'alem and Feitelson 2001, IEEE TPDS 12(6), section 2.2.
    """

    name = "conservative"
    starvation_free = True

    def open(self) -> Callable[[JobDispatcher], None]:
        return dispatch

    def in_words(self) -> str:
        return "first come, first served with conservative backfill"


def dispatch(dispatcher: JobDispatcher) -> None:
    start_in_order(dispatcher)
    if len(dispatcher.queue) < 2 or not (dispatcher.free or dispatcher.nodes.parts):
        return
    profile = Profile(dispatcher)
    for job in list(dispatcher.queue):
        begin_s = profile.reserve(job.nodes, job.limit_s)
        if begin_s <= dispatcher.now_s and dispatcher.fits(job):
            dispatcher.start(job)
        if not profile.free[0] and not dispatcher.nodes.parts:
            return


class Profile:
    """Nodes that are expected to be free over time: ``free[i]`` nodes from ``at_s[i]`` on."""

    def __init__(self, dispatcher: JobDispatcher) -> None:
        self.at_s, self.free = [dispatcher.now_s], [dispatcher.free]
        for end_s, nodes in dispatcher.releases():
            if end_s > self.at_s[-1]:
                self.at_s.append(end_s)
                self.free.append(self.free[-1])
            self.free[-1] += nodes

    def reserve(self, nodes: int, for_s: float) -> float:
        """Reserves the earliest time from which ``nodes`` nodes are free for ``for_s``."""
        at_s, free = self.at_s, self.free
        first, position = 0, 0
        while position < len(at_s):
            if at_s[position] >= at_s[first] + for_s and position > first:
                break
            if free[position] < nodes:
                first = position + 1
            position += 1
        if first == len(at_s):
            return inf
        begin_s, end_s = at_s[first], at_s[first] + for_s
        last = self._split(end_s)
        for between in range(first, last):
            free[between] -= nodes
        return begin_s

    def _split(self, at_s: float) -> int:
        """The position that begins at a time; created where there is none."""
        position = bisect_left(self.at_s, at_s)
        if position == len(self.at_s) or self.at_s[position] != at_s:
            self.at_s.insert(position, at_s)
            self.free.insert(position, self.free[position - 1])
        return position


JobScheduler.registry.register(Conservative)
