"""When messages arrive that share a cluster's links.

The public way to ask the network a question of one's own: any list of flows, their finish times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ..errors import InputError, shorten
from .cluster import Cluster
from .sharing import rates


@dataclass(frozen=True, slots=True)
class Flow:
    """``size_bytes`` from one GPU to another, ready at ``start_s``."""

    start_s: float
    source: int
    destination: int
    size_bytes: float


def finish_times(cluster: Cluster, flows: Iterable[Flow]) -> list[float]:
    """When each flow's last byte has arrived.

    Parameters
    ----------
    cluster
        Gives routes (:meth:`Cluster.route`, label 0), bandwidths and latencies.
    flows
        In any order.

    Returns
    -------
    list of float
        Seconds on the clock of ``start_s``, in the order of ``flows``.

    Raises
    ------
    InputError
        A start or size is not a finite number, a size is negative, or a GPU is not in the cluster.

    Notes
    -----
    A flow occupies every link of its route from its start until its last byte has left. Rates are max-min
    fair over the links' stored bandwidth, with no efficiency taken off, and change whenever a flow starts or
    ends. The latency of the route is added once, at the end. A flow to its own GPU takes no time; an empty
    one takes the latency.

    Examples
    --------
    Two GPUs of an MI300X node share one link of 64 GB/s, however many links the node has:

    >>> from tspsim.network import Flow, finish_times, load_cluster
    >>> cluster = load_cluster("mi300x-8")
    >>> alone, = finish_times(cluster, [Flow(start_s=0.0, source=0, destination=1, size_bytes=64e9)])
    >>> round(alone, 6)
    1.000001
    >>> both = finish_times(cluster, [Flow(0.0, 0, 1, 64e9), Flow(0.5, 0, 1, 16e9)])
    >>> [round(time_s, 6) for time_s in both]
    [1.250001, 1.000001]
    """
    return _Fluid(cluster, list(flows)).run()


class _Fluid:
    """One run: flows wait for their start, move at a rate, and are done.

    After each start or end only those rates are solved again that it can touch. Think of all rates rising together
    until links are full: what happens below the *floor*, the level at which the first link of a flow that came or
    went can be full, stays as it was, so slower flows keep their rates. Of the others, those that share links with
    the changed one, directly or through others, are solved anew. An end that is expected at an old rate is out of
    date (``version`` tells).
    """

    def __init__(self, cluster: Cluster, flows: list[Flow]) -> None:
        for index, flow in enumerate(flows):
            _check(cluster, index, flow)
        table = cluster.layout.routes([f.source for f in flows], [f.destination for f in flows])
        self.routes = [tuple([link for link in row if link >= 0]) for row in table.tolist()]
        used = sorted({link for route in self.routes for link in route})
        ids = np.array(used, dtype=np.int64)
        self.bandwidth = dict(zip(used, cluster.bandwidth_bytes_per_s[ids].tolist(), strict=True))
        latency = dict(zip(used, cluster.latency_s[ids].tolist(), strict=True))
        self.latency_s = [sum([latency[link] for link in route]) for route in self.routes]
        self.start_s = [float(flow.start_s) for flow in flows]
        self.left_bytes = [float(flow.size_bytes) for flow in flows]
        self.rate = [0.0] * len(flows)
        self.since_s = list(self.start_s)
        self.version = [0] * len(flows)
        self.on_link: dict[int, dict[int, None]] = {link: {} for link in used}

    def run(self) -> list[float]:
        finish = [start + latency for start, latency in zip(self.start_s, self.latency_s, strict=True)]
        moving = [i for i, route in enumerate(self.routes) if route and self.left_bytes[i] > 0.0]
        starts = sorted(moving, key=lambda i: self.start_s[i], reverse=True)
        ends: list[tuple[float, int, int]] = []
        while starts or ends:
            if ends and self.version[ends[0][1]] != ends[0][2]:
                heappop(ends)
                continue
            now_s = min(self.start_s[starts[-1]] if starts else math.inf, ends[0][0] if ends else math.inf)
            changed: dict[int, None] = {}
            floor = math.inf
            while ends and ends[0][0] == now_s:
                _, flow, version = heappop(ends)
                if self.version[flow] == version:
                    finish[flow] = now_s + self.latency_s[flow]
                    self.version[flow] += 1
                    floor = min(floor, self.rate[flow])
                    for link in self.routes[flow]:
                        del self.on_link[link][flow]
                        changed[link] = None
            started = []
            while starts and self.start_s[starts[-1]] == now_s:
                started.append(starts.pop())
                for link in self.routes[started[-1]]:
                    self.on_link[link][started[-1]] = None
                    changed[link] = None
            for flow in started:
                self.rate[flow] = math.inf  # no rate yet: above any floor
                floor = min(floor, *[self.bandwidth[i] / len(self.on_link[i]) for i in self.routes[flow]])
            for component in self._components(changed, floor * (1.0 - 1e-9)):
                self._solve(component, now_s, ends)
        return finish

    def _components(self, links: Iterable[int], floor: float) -> Iterable[dict[int, None]]:
        """Groups of flows at ``floor`` or faster that share links, from those on ``links`` on."""
        seen_links: set[int] = set()
        for first in links:
            if first in seen_links:
                continue
            seen_links.add(first)
            pending, component = [first], dict[int, None]()
            while pending:
                for flow in self.on_link[pending.pop()]:
                    if flow not in component and self.rate[flow] >= floor:
                        component[flow] = None
                        for link in self.routes[flow]:
                            if link not in seen_links:
                                seen_links.add(link)
                                pending.append(link)
            if component:
                yield component

    def _solve(self, component: dict[int, None], now_s: float, ends: list[tuple[float, int, int]]) -> None:
        """New rates for one group, in the room that slower flows leave, and when each would now end."""
        routes = [self.routes[flow] for flow in component]
        room = {
            link: self.bandwidth[link] - sum([self.rate[i] for i in self.on_link[link] if i not in component])
            for link in {link: None for route in routes for link in route}
        }
        for flow, rate in zip(component, rates(routes, room), strict=True):
            if rate == self.rate[flow]:
                continue
            moved = self.rate[flow] * (now_s - self.since_s[flow]) if now_s > self.since_s[flow] else 0.0
            self.left_bytes[flow] = left = max(0.0, self.left_bytes[flow] - moved)
            self.rate[flow], self.since_s[flow] = rate, now_s
            self.version[flow] += 1
            heappush(ends, (now_s + left / rate, flow, self.version[flow]))


def _check(cluster: Cluster, index: int, flow: Flow) -> None:
    for what, value in (("start_s", flow.start_s), ("size_bytes", flow.size_bytes)):
        try:
            finite = math.isfinite(value)
        except (TypeError, OverflowError):
            finite = False
        if not finite:
            raise InputError(f"{what} {shorten(value)} is not a finite number", key=f"flows[{index}]")
    if flow.size_bytes < 0:
        raise InputError(f"size_bytes {shorten(flow.size_bytes)} is negative", key=f"flows[{index}]")
    try:
        cluster.check_gpu(flow.source)
        cluster.check_gpu(flow.destination)
    except InputError as error:
        raise error.at(key=f"flows[{index}]") from None
