"""Steps of jobs (:mod:`.step_graph`) run beside each other.

They share links max-min, as the engine's transfers do: a slowed transfer delays whatever waits for it, a hidden one
delays nothing until it exceeds the kernels that hide it, and steps of equal length meet in every step or never. Kernels
are slower beside data; while data of a job moves for longer than alone, the kernel share of its delays grows
accordingly.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from ..network.sharing import shares
from .step_graph import BEGIN, StepGraph

#: Most sets of flows whose rates are memoized.
REMEMBERED = 50_000


class _RunningStep:
    """A step that runs on its own clock, which is slower while the job's data moves.

    Attributes
    ----------
    due
        (time on its clock, transfer) of what begins next, a heap.
    """

    def __init__(self, graph: StepGraph, flows: Sequence[int]) -> None:
        self.flow = [flows[transfer.flow] for transfer in graph.transfers]
        self.alone_s = [transfer.alone_s for transfer in graph.transfers]
        self.share = [graph.flows[transfer.flow].beside for transfer in graph.transfers]
        self.most = graph.slower
        nodes = [*(transfer.waits for transfer in graph.transfers), graph.ends]
        self.last = len(nodes) - 1
        self.counts = [len(waits) for waits in nodes]
        self.follow: dict[int, list[tuple[int, float]]] = {}
        for node, waits in enumerate(nodes):
            for source, delay_s in waits:
                self.follow.setdefault(source, []).append((node, delay_s))
        self.ends_s: list[float] = []
        self.due: list[tuple[float, int]] = []
        self.now_s = 0.0
        self.rate = 1.0
        #: Share of the job's GPUs that move data, and of those that also do so alone, whose slowdown the delays
        #: contain.
        self.moving = self.as_alone = 0.0

    def begin(self) -> None:
        """Begins a step now."""
        self.left, self.ready_s = list(self.counts), [self.now_s] * len(self.counts)
        self.done(BEGIN)

    def done(self, source: int) -> None:
        """Completes a source now."""
        now_s, left, ready_s = self.now_s, self.left, self.ready_s
        for node, delay_s in self.follow.get(source, ()):
            if now_s + delay_s > ready_s[node]:
                ready_s[node] = now_s + delay_s
            left[node] -= 1
            if not left[node]:
                heappush(self.due, (ready_s[node], node))

    def moves(self, share: float, as_alone: float) -> None:
        """Updates the clock rate when data begins to move, moves for longer than alone, or has moved."""
        self.moving += share
        self.as_alone += as_alone
        beyond = min(1.0, self.moving) - min(1.0, self.as_alone)
        self.rate = 1.0 / (1.0 + self.most * max(0.0, beyond))


@dataclass(slots=True, eq=False)
class _ActiveTransfer:
    """A transfer that runs: seconds left at full speed, and seconds until it moves for longer than alone."""

    flow: int
    way: _RunningStep
    node: int
    share: float
    left_s: float
    as_alone_s: float


def _flow_of(moving: _ActiveTransfer) -> int:
    return moving.flow


def beside(graphs: Sequence[StepGraph], begins_s: Sequence[float], steps: int) -> list[list[float]]:
    """Ends of consecutive steps of jobs beside each other, from ``begins_s`` on, until every job has done ``steps``."""
    usages, flows_of = _shared(graphs)
    ways = [_RunningStep(graph, flows) for graph, flows in zip(graphs, flows_of, strict=True)]
    remembered: dict[tuple[int, ...], list[float]] = {}
    active: list[_ActiveTransfer] = []
    rates: list[float] = []
    now_s = 0.0
    for way, begin_s in zip(ways, begins_s, strict=True):
        way.now_s = -begin_s
        heappush(way.due, (0.0, BEGIN))
    unfinished = len(ways)
    while unfinished:
        next_s, first, begins, longer = inf, None, None, None
        for transfer, rate in zip(active, rates, strict=True):
            if transfer.left_s < next_s * rate:
                next_s, first = transfer.left_s / rate, transfer
        for way in ways:
            if way.due and way.due[0][0] - way.now_s < next_s * way.rate:
                next_s, begins = max(0.0, way.due[0][0] - way.now_s) / way.rate, way
        for transfer in active:
            if 0.0 < transfer.as_alone_s < next_s:
                next_s, longer = transfer.as_alone_s, transfer
        now_s += next_s
        for transfer, rate in zip(active, rates, strict=True):
            transfer.left_s -= next_s * rate
            if transfer.as_alone_s > 0.0 and transfer is not longer:
                transfer.as_alone_s -= next_s
        for way in ways:
            way.now_s += next_s * way.rate
        if longer is not None:
            longer.as_alone_s = 0.0
            longer.way.moves(0.0, -longer.share)
            continue
        if begins is not None:
            way = begins
            way.now_s, node = heappop(way.due)
            if node in (way.last, BEGIN):
                if node == way.last:
                    way.ends_s.append(now_s)
                    unfinished -= len(way.ends_s) == steps
                way.begin()
                continue
            share = way.share[node]
            way.moves(share, share)
            active.append(_ActiveTransfer(way.flow[node], way, node, share, way.alone_s[node], way.alone_s[node]))
            active.sort(key=_flow_of)
        else:
            assert first is not None
            active.remove(first)
            first.way.moves(-first.share, -first.share if first.as_alone_s > 0.0 else 0.0)
            first.way.done(first.node)
        meeting = tuple([transfer.flow for transfer in active])
        speeds = remembered.get(meeting)
        if speeds is None:
            if len(remembered) >= REMEMBERED:
                remembered.clear()
            speeds = shares([usages[flow][0] for flow in meeting], [usages[flow][1] for flow in meeting])
            remembered[meeting] = speeds
        rates = speeds
    return [way.ends_s for way in ways]


def _shared(graphs: Sequence[StepGraph]) -> tuple[list[tuple[dict[Hashable, float], float]], list[list[int]]]:
    """Flows of all jobs by number, each with its shares of contested links and its weight; and for each job the numbers
    of its flows. Links that the same flows take in the same shares are merged."""
    users: dict[int, list[tuple[int, float]]] = {}
    jobs: dict[int, set[int]] = {}
    weights: list[float] = []
    flows_of: list[list[int]] = []
    for job, graph in enumerate(graphs):
        flows_of.append([])
        for flow in graph.flows:
            for link, share in flow.usage.items():
                users.setdefault(link, []).append((len(weights), share))
                jobs.setdefault(link, set()).add(job)
            flows_of[-1].append(len(weights))
            weights.append(flow.weight)
    patterns = dict.fromkeys(
        tuple(every) for link, every in users.items() if len(jobs[link]) > 1 and sum(share for _, share in every) > 1.0
    )
    usages: list[tuple[dict[Hashable, float], float]] = [({}, weight) for weight in weights]
    for constraint, pattern in enumerate(patterns):
        for number, share in pattern:
            usages[number][0][constraint] = share
    return usages, flows_of
