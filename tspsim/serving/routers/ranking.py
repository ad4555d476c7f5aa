"""Replicas in order of their loads, kept up as those change: a router of many looks at few of them for each request.

Between two things that happen to a replica its requests stay, and the tokens that they have ahead only fall, as the
steps under way go on. So what they will have fallen to some time from now is a floor until then. Replicas lie in a heap
by their floors, and are looked at in its order until no other can be less: what is found is what a look at every one
of them finds. The nearer that time, the fewer have to be looked at, and the more floors are over: it is kept where both
are about as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from math import inf

from .router import Backend

#: Whatever goes before the load, then requests, tokens ahead, the replica's number, and when the entry was made.
Entry = tuple[int, int, int, int, int]
#: Entries of a heap above those that count, until it is made anew.
SPARE = 64
#: Seconds that floors hold at first, the factor by which that changes, and how many choices lie between two changes.
AHEAD_S, FACTOR, CALLS = 1.0, 1.5, 32


def load(replica: Backend) -> tuple[int, int]:
    """Requests that a replica has, then the tokens they still have to compute: what load is compared by."""
    return replica.waiting + replica.running, replica.tokens_ahead


class Ranking:
    """Some replicas, of which the one with least load is known.

    Parameters
    ----------
    replicas
        Told of by their places.
    first
        Of a replica's place, what is compared before its load; :meth:`changed` is called when that has changed.
    """

    def __init__(self, replicas: Sequence[Backend], first: Callable[[int], int] = lambda number: 0) -> None:
        self._replicas, self._first = replicas, first
        self._changed = dict.fromkeys(range(len(replicas)))
        self._editions = [0] * len(replicas)
        self._heap: list[Entry] = []
        #: Until when floors hold, of which replica and entry.
        self._over: list[tuple[float, int, int]] = []
        self._ahead_s = AHEAD_S
        #: Since that was changed: choices, replicas that were looked at, and floors that were over.
        self._calls = self._seen = self._anew = 0
        self._requests = [0] * len(replicas)
        #: Requests → replicas that have so many, and the most and fewest of them.
        self._counts = Counter({0: len(replicas)})
        self._most = self._fewest = 0
        for number, replica in enumerate(replicas):
            replica.watch(partial(self.changed, number))

    def changed(self, number: int) -> None:
        """Something has happened to a replica."""
        self._changed[number] = None

    @property
    def most(self) -> int:
        """Requests of the replica that has most."""
        self._look()
        return self._most

    @property
    def fewest(self) -> int:
        """Requests of the replica that has fewest."""
        self._look()
        return self._fewest

    def least(self) -> int:
        """The replica with least: of what goes first, of requests, of tokens ahead; of equals the first."""
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
        """Floors that are over."""
        over, now_s = self._over, self._replicas[0].now_s
        while over and over[0][0] < now_s:
            _, number, edition = heappop(over)
            if edition == self._editions[number]:
                self._enter(number)
                self._anew += 1

    def _balance(self, seen: int) -> None:
        """How long floors hold, from now on."""
        self._calls += 1
        self._seen += seen
        if self._calls == CALLS:
            self._ahead_s *= FACTOR if self._anew > self._seen else 1.0 / FACTOR
            self._calls = self._seen = self._anew = 0

    def _look(self) -> None:
        """At what has changed."""
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
        """A replica with its floor from now on."""
        replica = self._replicas[number]
        self._editions[number] += 1
        until_s = replica.now_s + self._ahead_s
        floor = replica.ahead_at(until_s)
        heappush(self._heap, (self._first(number), self._requests[number], floor, number, self._editions[number]))
        if floor > replica.ahead_at(inf):
            heappush(self._over, (until_s, number, self._editions[number]))
