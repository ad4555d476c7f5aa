"""Max-min fair sharing: who gets how much of links that several activities want at once.

Everything grows together until a resource is full or an activity has all it can use; those stop, the rest
grows on (progressive filling; Bertsekas and Gallager, Data Networks, 2nd ed., §6.5.2). The result is the only
allocation in which nobody can get more without taking from someone who has no more.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from ..errors import InputError

#: The activities that use one resource, and the share each takes at full speed.
Row = list[tuple[int, float]]
#: A resource counts as full from this share on: far above rounding, far below anything measurable.
FULL = 1.0 + 1e-12


def shares(usages: Sequence[Mapping[Hashable, float]], weights: Sequence[float]) -> list[float]:
    """Speed of each activity, as a share of its speed alone.

    Parameters
    ----------
    usages
        For each activity the share of every resource that it takes at full speed, over 0 up to 1.
    weights
        Claim of each activity, over 0. Speeds are ``min(1, weight·λ)``, with λ as large as the resources that
        the activity needs allow. With ``weight = 1 / (bytes/s alone)`` plain flows on a full link get equal
        bytes/s; with equal weights all slow down alike.

    Returns
    -------
    list of float
        In (0, 1]; ``Σ usage·speed ≤ 1`` on every resource.

    Raises
    ------
    InputError
        A weight is not positive, or a usage is not finite or negative.

    Examples
    --------
    >>> shares([{"link": 1.0}, {"link": 1.0}], [1.0, 1.0])
    [0.5, 0.5]

    The second needs little; the first gets the rest:

    >>> shares([{"link": 1.0}, {"link": 0.25}], [1.0, 2.0])
    [0.75, 1.0]
    """
    demand: dict[Hashable, float] = {}
    for usage in usages:
        for resource, share in usage.items():
            if not 0.0 <= share < math.inf:
                raise InputError(f"usage {share} of a resource must be finite and not negative")
            demand[resource] = demand.get(resource, 0.0) + share
    speeds = [1.0] * len(usages)
    scarce = [resource for resource, share in demand.items() if share > FULL]
    if not scarce:
        return speeds
    for weight in weights:
        if not 0.0 < weight < math.inf:
            raise InputError(f"weight {weight} of an activity must be over 0 and finite")
    # Many links carry the same activities in the same proportions (all those of a mesh): one constraint each.
    constraints = dict.fromkeys(tuple([usage.get(each, 0.0) for usage in usages]) for each in scarce)
    rows = [(1.0, [(i, share) for i, share in enumerate(row) if share]) for row in constraints]
    growing = sorted({i for _, row in rows for i, _ in row})
    while growing:
        level, full = math.inf, rows[0][1]
        for room, row in rows:
            growth = sum([share * weights[i] for i, share in row])
            if room < level * growth:
                level, full = room / growth, row
        largest = max([weights[i] for i in growing])
        if largest * level >= 1.0:  # these reach full speed before anything is full
            stopped = {i: 1.0 for i in growing if weights[i] == largest}
        else:
            stopped = {i: weights[i] * level for i, _ in full}
        for i, speed in stopped.items():
            speeds[i] = speed
        growing = [i for i in growing if i not in stopped]
        rows = [kept for room, row in rows if (kept := _without(stopped, room, row))[1]]
    return speeds


def _without(stopped: Mapping[int, float], room: float, row: Row) -> tuple[float, Row]:
    """A constraint once some of its activities have their speed: less room, fewer that grow."""
    taken = [share * stopped[i] for i, share in row if i in stopped]
    if not taken:
        return room, row
    return max(0.0, room - sum(taken)), [entry for entry in row if entry[0] not in stopped]


def rates(routes: Sequence[Sequence[int]], bandwidth: Sequence[float] | Mapping[int, float]) -> list[float]:
    """Bytes/s of plain flows that may use all of the links they cross.

    Parameters
    ----------
    routes
        Link ids that each flow crosses, at least one and none twice.
    bandwidth
        Bytes/s by link id.

    Returns
    -------
    list of float
        The max-min fair rates; each flow has a full link on which nobody is faster.

    Examples
    --------
    >>> rates([(0,), (0, 1), (1,)], [10.0, 100.0])
    [5.0, 5.0, 95.0]
    """
    flows_on: dict[int, list[int]] = {}
    for flow, route in enumerate(routes):
        for link in route:
            flows_on.setdefault(link, []).append(flow)
    room = {link: bandwidth[link] for link in flows_on}
    count = {link: len(flows) for link, flows in flows_on.items()}
    # Fair rates of a link only rise while others fill up, so an old entry of the heap is a lower bound.
    heap = [(room[link] / count[link], link) for link in flows_on]
    heapify(heap)
    result = [0.0] * len(routes)
    while heap:
        level, link = heap[0]
        sharing = count[link]
        if not sharing:
            heappop(heap)
            continue
        fair = room[link] / sharing
        if fair > level:
            heapreplace(heap, (fair, link))
            continue
        heappop(heap)
        for flow in flows_on[link]:
            if result[flow] == 0.0:
                result[flow] = level
                for crossed in routes[flow]:
                    room[crossed] -= level
                    count[crossed] -= 1
    return result
