"""Steps of jobs reduced to the transfers that leave their leaf switch.

A simulated step is a graph of events: a transfer begins once everything that it waits for is done, and a kernel takes
its simulated time. Between two transfers over links between switches only the longest path counts, from the end of the
first to the begin of the second, through all kernels and all other transfers. So a step becomes a few dozen transfers
with delays between them (the max-plus reduction of an event graph; Baccelli, Cohen, Olsder and Quadrat 1992, chapter
2), and alone it takes exactly its simulated time. :mod:`.bursts` runs such steps beside each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

from ..base.memo import once
from ..engine.core import Submission
from ..engine.ranks import LoweredInstruction, SimulatedDevice
from ..engine.system import SimulatedRank
from ..network.fluid import Channel

#: The source of delays at the begin of the step; other sources are numbers of transfers.
BEGIN = -1
#: Least seconds from the end of each source.
Delays = dict[int, float]
#: Paths that differ by less (s) are equal.
SAME_S = 1e-12
#: Uses of a channel that take equally long to this many digits are the same flow.
DIGITS = 4
#: Sources kept per transfer: those with the least slack.
MOST_WAITS = 64


@dataclass(frozen=True)
class BurstFlow:
    """Data that moves over links.

    Attributes
    ----------
    usage
        Link → share that it takes while it moves alone.
    weight
        Its weight on a full link (:func:`tspsim.network.sharing.shares`).
    beside
        Share of the job's GPUs whose kernels are slower meanwhile.
    """

    usage: Mapping[int, float]
    weight: float
    beside: float = 1.0


@dataclass(frozen=True)
class BurstTransfer:
    """One transfer of a step: number of its flow, seconds alone, and delays from the sources that it waits for."""

    flow: int
    alone_s: float
    waits: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class StepGraph:
    """A step on its nodes.

    Attributes
    ----------
    step_s
        Seconds of the step alone.
    ends
        Delays to the end of the step.
    slower
        Growth of delays while data moves on all GPUs for longer than alone: 0.2 is a fifth.
    """

    step_s: float
    flows: tuple[BurstFlow, ...]
    transfers: tuple[BurstTransfer, ...]
    ends: tuple[tuple[int, float], ...]
    slower: float = 0.0

    @once
    def peaks(self) -> Mapping[int, float]:
        """Link → the largest share of it that the step may take at once."""
        sums: dict[int, float] = {}
        for flow in self.flows:
            for link, share in flow.usage.items():
                sums[link] = min(1.0, sums.get(link, 0.0) + share)
        return sums


class _ChannelUse:
    """One use of a channel: when its data moved, and what its parties wait for."""

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
    """A simulated step, reduced to the transfers of some channels.

    Parameters
    ----------
    carried
        Channel → link → seconds of it that one use takes, over all groups that it stands for.
    compute_slowdown
        Factor on the time of a kernel beside which data moves.
    """
    return _Reduction(submission, carried, compute_slowdown).graph()


class _Reduction:
    """Walks the instructions of a simulated step, each after everything that it waits for."""

    def __init__(
        self, submission: Submission, carried: Mapping[Channel, Mapping[int, float]], compute_slowdown: float
    ) -> None:
        self.ranks, self.carried, self.compute_slowdown = submission.ranks, carried, compute_slowdown
        self.gpus = sum(rank.size for rank in self.ranks)
        #: Seconds of all kernels, and of transfers below the leaf switches.
        self.kernels_s = self.local_s = 0.0
        self.begin_s = min(min(simulated.rank.start_s, default=inf) for simulated in self.ranks)
        self.last_s = max(max(simulated.rank.end_s, default=0.0) for simulated in self.ranks)
        #: End of each source.
        self.done_s = {BEGIN: self.begin_s}
        self.meetings: dict[tuple[int, int], _ChannelUse] = {}
        self.flows: dict[tuple[int, float], int] = {}
        self.kinds: list[BurstFlow] = []
        self.transfers: list[BurstTransfer] = []
        self.waits: list[Delays] = []
        self.ends: Delays = {BEGIN: 0.0}
        #: Delays to the successors of an instruction, by rank and number.
        self.after: dict[tuple[int, int], Delays] = {}
        self._moved = False
        for simulated in self.ranks:
            for stream in simulated.role.streams.values():
                for ready in stream:
                    ended_s = simulated.rank.end_s[ready.number]
                    for key, use in ready.meets:
                        channel = simulated.rank.device.channels.get(key)
                        if channel is not None:
                            meeting = self.meetings.setdefault((channel.number, use), _ChannelUse(channel))
                            # An instruction with both halves of a message begins with one and ends with the other.
                            meeting.began_s = max(meeting.began_s, simulated.rank.start_s[ready.number])
                            meeting.ended_s = min(meeting.ended_s, ended_s)

    def graph(self) -> StepGraph:
        walks = [
            self._stream(simulated, stream) for simulated in self.ranks for stream in simulated.role.streams.values()
        ]
        while walks:
            # A walk stops where an instruction that it waits for has not been walked yet.
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

    def _stream(self, simulated: SimulatedRank, stream: Sequence[LoweredInstruction]) -> Iterator[bool]:
        """One stream of a rank; yields where it cannot go on yet."""
        rank, held, held_s = simulated.rank, {BEGIN: 0.0}, self.begin_s
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
                self.kernels_s += took_s * simulated.size * ready.is_compute
                held = {source: delay_s + took_s for source, delay_s in waits.items()} if took_s else waits
                held = self._pruned(held, ended_s)
            held_s = ended_s
            self.after[id(rank), ready.number] = held
            self._moved = True
        self.ends = self._pruned(_later(self.ends, held), self.last_s)

    def _arrive(self, meeting: _ChannelUse, waits: Delays) -> None:
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
            # Fair in bytes: the weight grows by the factor by which a transfer is slower alone.
            slower = moved_s / channel.fluid_s if channel.fluid_s else 1.0
            self.kinds.append(BurstFlow(usage, channel.weight * slower, _gpus(channel) / self.gpus))
        return self.flows[key]

    def _pruned(self, delays: Delays, at_s: float) -> Delays:
        """Delays of an event at ``at_s``, without sources that a later source waits for at least as long; of many,
        those with the least slack."""
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
    """GPUs whose kernels are slower while the channel moves data."""
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
