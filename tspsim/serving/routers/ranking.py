"""Replicas in order of load, updated incrementally: a router of many replicas checks few of them per request.

Between two events of a replica its requests stay constant, and its tokens ahead only fall as the current steps
continue. So their value some time from now is a lower bound (floor) until then. Replicas lie in a heap by floor, and
are checked in its order until no other can be less: the result equals a check of every replica. A nearer time means
fewer checks but more expired floors; it is adapted so that both are about equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf

from .router import Backend

#: First key, requests, tokens ahead, number of the replica, and edition of the entry.
Entry = tuple[int, int, int, int, int]
#: Obsolete entries of a heap before it is rebuilt.
SPARE = 64
#: Initial seconds for which floors hold, the factor of a change, and choices between two changes.
AHEAD_S, FACTOR, CALLS = 1.0, 1.5, 32


def load(replica: Backend) -> tuple[int, int]:
    """The load of a replica: its requests, then its tokens still to compute."""
    return replica.waiting + replica.running, replica.tokens_ahead


class Ranking:
    """Replicas with access to the least loaded one.

    Parameters
    ----------
    replicas
        The replicas, identified by position.
    first
        A key by position that is compared before the load; :meth:`changed` must be called when it changes.
    """

    def __init__(self, replicas: Sequence[Backend], first: Callable[[int], int] = lambda number: 0) -> None:
        self._replicas, self._first = replicas, first
        self._changed = dict.fromkeys(range(len(replicas)))
        self._editions = [0] * len(replicas)
        self._heap: list[Entry] = []
        #: (expiry, replica, edition) of floors.
        self._over: list[tuple[float, int, int]] = []
        self._ahead_s = AHEAD_S
        #: Counts since that was changed: choices, checked replicas, and expired floors.
        self._calls = self._seen = self._anew = 0
        self._requests = [0] * len(replicas)
        #: Number of requests → number of replicas with it; and the most and fewest.
        self._counts = Counter({0: len(replicas)})
        self._most = self._fewest = 0
        for number, replica in enumerate(replicas):
            replica.watch(partial(self.changed, number))

    def changed(self, number: int) -> None:
        """A replica has changed."""
        self._changed[number] = None

    @property
    def most(self) -> int:
        """Requests of the most loaded replica."""
        self._look()
        return self._most

    @property
    def fewest(self) -> int:
        """Requests of the least loaded replica."""
        self._look()
        return self._fewest

    def least(self) -> int:
        """The least replica by first key, requests, tokens ahead; of equals the first."""
        self._look()
        self._renew()
        heap, seen = self._heap, []
        best: tuple[int, int, int, int] | None = None
        while heap and (best is None or heap[0] < best):
            entry = heappop(heap)
            number = entry[3]
            if entry[4] != self._editions[number]:
                continue
            seen.append(number)
            exact = (entry[0], entry[1], self._replicas[number].tokens_ahead, number)
            if best is None or exact < best:
                best = exact
        for number in seen:
            self._enter(number)
        self._balance(len(seen))
        assert best is not None
        return best[3]

    def _renew(self) -> None:
        """Renews expired floors."""
        over, now_s = self._over, self._replicas[0].now_s
        while over and over[0][0] < now_s:
            _, number, edition = heappop(over)
            if edition == self._editions[number]:
                self._enter(number)
                self._anew += 1

    def _balance(self, seen: int) -> None:
        """Adapts how long floors hold."""
        self._calls += 1
        self._seen += seen
        if self._calls == CALLS:
            self._ahead_s *= FACTOR if self._anew > self._seen else 1.0 / FACTOR
            self._calls = self._seen = self._anew = 0

    def _look(self) -> None:
        """Updates replicas that have changed."""
        if not self._changed:
            return
        counts = self._counts
        for number in self._changed:
            replica = self._replicas[number]
            requests, before = replica.waiting + replica.running, self._requests[number]
            if requests != before:
                counts[before] -= 1
                counts[requests] += 1
                self._requests[number] = requests
                self._most, self._fewest = max(self._most, requests), min(self._fewest, requests)
            self._enter(number)
        while not counts[self._most]:
            del counts[self._most]
            self._most -= 1
        while not counts[self._fewest]:
            del counts[self._fewest]
            self._fewest += 1
        self._changed.clear()
        if len(self._heap) > 2 * len(self._replicas) + SPARE:
            self._heap = [entry for entry in self._heap if entry[4] == self._editions[entry[3]]]
            heapify(self._heap)
        if len(self._over) > 2 * len(self._replicas) + SPARE:
            self._over = [entry for entry in self._over if entry[2] == self._editions[entry[1]]]
            heapify(self._over)

    def _enter(self, number: int) -> None:
        """Enters a replica with its floor from now on."""
        replica = self._replicas[number]
        self._editions[number] += 1
        until_s = replica.now_s + self._ahead_s
        floor = replica.ahead_at(until_s)
        heappush(self._heap, (self._first(number), self._requests[number], floor, number, self._editions[number]))
        if floor > replica.ahead_at(inf):
            heappush(self._over, (until_s, number, self._editions[number]))
