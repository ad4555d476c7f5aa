"""Steps of jobs reduced to the transfers that leave their leaf switch, and such steps beside each other.

A step that ran alone is a graph of events: a transfer begins once all that it waits for is done, and a kernel takes as
long as it did. Of two transfers over links between switches only the longest way from the end of the first to the begin
of the second counts, through all kernels and all other transfers; so the whole step is a few dozen transfers with
delays between them (the max-plus reduction of an event graph; Baccelli, Cohen, Olsder and Quadrat 1992, chapter 2), and
alone it takes exactly as long. Several such steps share links max-min, as the engine's transfers do: what is slowed
delays what waits for it, what is hidden behind kernels delays nothing until it lasts longer than they do, and steps of
one length meet in every step or never. Kernels are slower beside data; while data of a job moves for longer than alone,
its delays take longer by as much of them as is kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import cast

from ..base.memo import once
from ..engine.core import Submission
from ..engine.ranks import ReadyInstruction, SimulatedDevice
from ..engine.system import SimulatedRank
from ..network.fluid import Channel
from ..network.sharing import shares

#: A source of delays: a transfer by its number, or the begin of the step.
BEGIN = -1
#: Seconds from the end of each source, at least.
Delays = dict[int, float]
#: Two ways that differ by less are one (s).
SAME_S = 1e-12
#: A use that takes as long as another one to this many digits is the same flow.
DIGITS = 4
#: Sources of one transfer that are kept: those that could hold it up soonest.
MOST_WAITS = 64
#: Sets of flows whose rates are remembered.
REMEMBERED = 50_000


@dataclass(frozen=True)
class BurstFlow:
    """Data on its way.

    Attributes
    ----------
    usage
        The share of each link that it takes while it moves alone.
    weight
        Its claim to a full one (:func:`tspsim.network.sharing.shares`).
    beside
        Share of the job's GPUs whose kernels are slower meanwhile.
    """

    usage: Mapping[int, float]
    weight: float
    beside: float = 1.0


@dataclass(frozen=True)
class BurstTransfer:
    """One of a step: which of its flows, seconds alone, and delays from what it waits for."""

    flow: int
    alone_s: float
    waits: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class StepGraph:
    """A step on its nodes.

    Attributes
    ----------
    step_s
        Alone.
    ends
        Delays to the end of the step.
    slower
        How much longer delays take while data moves on all GPUs for longer than alone: 0.2 is a fifth.
    """

    step_s: float
    flows: tuple[BurstFlow, ...]
    transfers: tuple[BurstTransfer, ...]
    ends: tuple[tuple[int, float], ...]
    slower: float = 0.0

    @once
    def peaks(self) -> Mapping[int, float]:
        """Link → the most of it that the step may take at once."""
        sums: dict[int, float] = {}
        for flow in self.flows:
            for link, share in flow.usage.items():
                sums[link] = min(1.0, sums.get(link, 0.0) + share)
        return sums


class _Meeting:
    """A use of a channel: from when to when its data moved, and what its parties wait for."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.missing = channel, channel.parties
        self.waits: Delays = {}
        self.began_s, self.ended_s = 0.0, inf
        self.after: Delays | None = None

    @property
    def moved_s(self) -> float:
        return max(0.0, self.ended_s - self.began_s - self.channel.latency_s)


def graph_of(
    submission: Submission, carried: Mapping[Channel, Mapping[int, float]], compute_slowdown: float = 1.0
) -> StepGraph:
    """A step that has run, reduced to the transfers of some channels.

    Parameters
    ----------
    carried
        Channel → link → seconds of it that one use takes, by all the groups that it stands for.
    compute_slowdown
        Factor on the time of a kernel beside which data moves.
    """
    return _Reduction(submission, carried, compute_slowdown).graph()


class _Reduction:
    """Walks the instructions of a step that has run, in an order in which nothing stands before what it waits for."""

    def __init__(
        self, submission: Submission, carried: Mapping[Channel, Mapping[int, float]], compute_slowdown: float
    ) -> None:
        self.ranks, self.carried, self.compute_slowdown = submission.ranks, carried, compute_slowdown
        self.gpus = sum(each.size for each in self.ranks)
        #: Seconds of all kernels, and of transfers that stay below their leaf.
        self.kernels_s = self.local_s = 0.0
        self.begin_s = min(min(each.rank.start_s, default=inf) for each in self.ranks)
        self.last_s = max(max(each.rank.end_s, default=0.0) for each in self.ranks)
        #: When each source was done.
        self.done_s = {BEGIN: self.begin_s}
        self.meetings: dict[tuple[int, int], _Meeting] = {}
        self.flows: dict[tuple[int, float], int] = {}
        self.kinds: list[BurstFlow] = []
        self.transfers: list[BurstTransfer] = []
        self.waits: list[Delays] = []
        self.ends: Delays = {BEGIN: 0.0}
        #: Of instructions by rank and number: from when on what follows may go on.
        self.after: dict[tuple[int, int], Delays] = {}
        self._moved = False
        for each in self.ranks:
            for stream in each.role.streams.values():
                for ready in stream:
                    ended_s = each.rank.end_s[ready.number]
                    for key, use in ready.meets:
                        channel = each.rank.device.channels.get(key)
                        if channel is not None:
                            meeting = self.meetings.setdefault((channel.number, use), _Meeting(channel))
                            # An instruction with both halves of a message begins with one and ends with the other.
                            meeting.began_s = max(meeting.began_s, each.rank.start_s[ready.number])
                            meeting.ended_s = min(meeting.ended_s, ended_s)

    def graph(self) -> StepGraph:
        walks = [self._stream(each, stream) for each in self.ranks for stream in each.role.streams.values()]
        while walks:
            # A walk stands still where something that it waits for has not been walked through.
            waiting = [walk for walk in walks if next(walk, None) is not None]
            assert len(waiting) < len(walks) or self._moved, "a step that ran waits for itself"
            walks, self._moved = waiting, False
        kernels = self.kernels_s / (self.kernels_s + self.local_s) if self.kernels_s else 0.0
        return StepGraph(
            self.last_s - self.begin_s,
            tuple(self.kinds),
            tuple(self.transfers),
            tuple(sorted(self.ends.items())),
            (self.compute_slowdown - 1.0) * kernels,
        )

    def _stream(self, each: SimulatedRank, stream: Sequence[ReadyInstruction]) -> Iterator[bool]:
        """One stream of a rank; yields where it cannot go on yet."""
        rank, held, held_s = each.rank, {BEGIN: 0.0}, self.begin_s
        for ready in stream:
            waits, arrived_s = held, held_s
            for other in ready.after:
                while (id(rank), other) not in self.after:
                    yield True
                waits = _later(waits, self.after[id(rank), other])
                arrived_s = max(arrived_s, rank.end_s[other])
            ended_s = rank.end_s[ready.number]
            meetings = [
                self.meetings[channel.number, use]
                for key, use in ready.meets
                if (channel := rank.device.channels.get(key)) is not None
            ]
            if meetings:
                held = {}
                for meeting in meetings:
                    self._arrive(meeting, waits)
                for meeting in meetings:
                    while meeting.after is None:
                        yield True
                    held = _later(held, meeting.after)
                held = self._pruned(held, ended_s)
            else:
                took_s = ended_s - arrived_s
                self.kernels_s += took_s * each.size * ready.is_compute
                held = {source: delay_s + took_s for source, delay_s in waits.items()} if took_s else waits
                held = self._pruned(held, ended_s)
            held_s = ended_s
            self.after[id(rank), ready.number] = held
            self._moved = True
        self.ends = self._pruned(_later(self.ends, held), self.last_s)

    def _arrive(self, meeting: _Meeting, waits: Delays) -> None:
        meeting.waits = _later(meeting.waits, waits)
        meeting.missing -= 1
        self._moved = True
        if meeting.missing:
            return
        took_s, moved_s = max(0.0, meeting.ended_s - meeting.began_s), meeting.moved_s
        waits = self._pruned(meeting.waits, meeting.began_s)
        links = self.carried.get(meeting.channel)
        if not links or not moved_s:
            self.local_s += took_s * _gpus(meeting.channel)
            meeting.after = {source: delay_s + took_s for source, delay_s in waits.items()}
            return
        number = len(self.transfers)
        self.transfers.append(BurstTransfer(self._flow(meeting.channel, moved_s, links), moved_s, tuple(waits.items())))
        self.waits.append(waits)
        self.done_s[number] = meeting.ended_s
        meeting.after = {number: meeting.channel.latency_s}

    def _flow(self, channel: Channel, moved_s: float, links: Mapping[int, float]) -> int:
        key = channel.number, float(f"{moved_s:.{DIGITS}g}")
        if key not in self.flows:
            self.flows[key] = len(self.kinds)
            usage = {link: min(1.0, seconds / moved_s) for link, seconds in links.items()}
            # Fair in bytes: who moves slower alone has as large a claim to more of its own speed.
            slower = moved_s / channel.fluid_s if channel.fluid_s else 1.0
            self.kinds.append(BurstFlow(usage, channel.weight * slower, _gpus(channel) / self.gpus))
        return self.flows[key]

    def _pruned(self, delays: Delays, at_s: float) -> Delays:
        """Of what happens at ``at_s`` alone: without sources that a later one waits for at least as long, and of many
        those that could hold it up soonest."""
        if len(delays) < 2:
            return delays
        kept = dict(delays)
        for source, delay_s in delays.items():
            if source == BEGIN:
                continue
            through_s = self.transfers[source].alone_s + delay_s - SAME_S
            for before, first_s in self.waits[source].items():
                if before in kept and kept[before] <= first_s + through_s + 2 * SAME_S:
                    del kept[before]
        if len(kept) > MOST_WAITS:
            slack_s = {source: at_s - self.done_s[source] - delay_s for source, delay_s in kept.items()}
            kept = {
                source: kept[source]
                for source in sorted(kept, key=lambda source: (slack_s[source], source))[:MOST_WAITS]
            }
        return kept


def _gpus(channel: Channel) -> int:
    """Those whose kernels are slower while it moves."""
    return sum(cast("SimulatedDevice", device).size for device in channel.devices)


def _later(one: Delays, other: Delays) -> Delays:
    """The longer delay from each source."""
    if one is other or not other:
        return one
    merged = dict(one)
    for source, delay_s in other.items():
        if delay_s > merged.get(source, -inf):
            merged[source] = delay_s
    return merged


class _Way:
    """A step under way on a clock of its own, which is slower while the job's data moves.

    Attributes
    ----------
    due
        (time on its clock, transfer) of what begins next, a heap.
    """

    def __init__(self, graph: StepGraph, flows: Sequence[int]) -> None:
        self.flow = [flows[each.flow] for each in graph.transfers]
        self.alone_s = [each.alone_s for each in graph.transfers]
        self.share = [graph.flows[each.flow].beside for each in graph.transfers]
        self.most = graph.slower
        nodes = [*(each.waits for each in graph.transfers), graph.ends]
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
        #: Of the job's GPUs those that move data, and those of them that do alone: what delays have in them already.
        self.moving = self.as_alone = 0.0

    def begin(self) -> None:
        """A step begins now."""
        self.left, self.ready_s = list(self.counts), [self.now_s] * len(self.counts)
        self.done(BEGIN)

    def done(self, source: int) -> None:
        """A transfer is through now."""
        now_s, left, ready_s = self.now_s, self.left, self.ready_s
        for node, delay_s in self.follow.get(source, ()):
            if now_s + delay_s > ready_s[node]:
                ready_s[node] = now_s + delay_s
            left[node] -= 1
            if not left[node]:
                heappush(self.due, (ready_s[node], node))

    def moves(self, share: float, as_alone: float) -> None:
        """Data begins to move, moves for longer than alone, or has moved."""
        self.moving += share
        self.as_alone += as_alone
        beyond = min(1.0, self.moving) - min(1.0, self.as_alone)
        self.rate = 1.0 / (1.0 + self.most * max(0.0, beyond))


@dataclass(slots=True, eq=False)
class _Moving:
    """A transfer under way: seconds that it has left at full speed, and those until it moves for longer than alone."""

    flow: int
    way: _Way
    node: int
    share: float
    left_s: float
    as_alone_s: float


def _flow_of(moving: _Moving) -> int:
    return moving.flow


def beside(graphs: Sequence[StepGraph], begins_s: Sequence[float], steps: int) -> list[list[float]]:
    """Ends of the steps of jobs beside each other, one after the other from ``begins_s`` on, until every job has done
    so many."""
    usages, flows_of = _shared(graphs)
    ways = [_Way(graph, flows) for graph, flows in zip(graphs, flows_of, strict=True)]
    remembered: dict[tuple[int, ...], list[float]] = {}
    active: list[_Moving] = []
    rates: list[float] = []
    now_s = 0.0
    for way, begin_s in zip(ways, begins_s, strict=True):
        way.now_s = -begin_s
        heappush(way.due, (0.0, BEGIN))
    unfinished = len(ways)
    while unfinished:
        next_s, first, begins, longer = inf, None, None, None
        for each, rate in zip(active, rates, strict=True):
            if each.left_s < next_s * rate:
                next_s, first = each.left_s / rate, each
        for way in ways:
            if way.due and way.due[0][0] - way.now_s < next_s * way.rate:
                next_s, begins = max(0.0, way.due[0][0] - way.now_s) / way.rate, way
        for each in active:
            if 0.0 < each.as_alone_s < next_s:
                next_s, longer = each.as_alone_s, each
        now_s += next_s
        for each, rate in zip(active, rates, strict=True):
            each.left_s -= next_s * rate
            if each.as_alone_s > 0.0 and each is not longer:
                each.as_alone_s -= next_s
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
            active.append(_Moving(way.flow[node], way, node, share, way.alone_s[node], way.alone_s[node]))
            active.sort(key=_flow_of)
        else:
            assert first is not None
            active.remove(first)
            first.way.moves(-first.share, -first.share if first.as_alone_s > 0.0 else 0.0)
            first.way.done(first.node)
        meeting = tuple([each.flow for each in active])
        speeds = remembered.get(meeting)
        if speeds is None:
            if len(remembered) >= REMEMBERED:
                remembered.clear()
            speeds = shares([usages[flow][0] for flow in meeting], [usages[flow][1] for flow in meeting])
            remembered[meeting] = speeds
        rates = speeds
    return [way.ends_s for way in ways]


def _shared(graphs: Sequence[StepGraph]) -> tuple[list[tuple[dict[Hashable, float], float]], list[list[int]]]:
    """Flows of all jobs by number, each with its shares of what jobs may fill together and its claim; and of each job
    the numbers of its flows. Links that the same flows take in the same shares are one."""
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
