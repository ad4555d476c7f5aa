"""Ranks as SimPy processes: one process a stream, instructions in order, rendezvous for what ranks do together."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import simpy

from .fluid import Calendar, Channel, Completion, Fluid, Transfer
from .timeline import Timeline

COMPUTE, COLLECTIVE, MESSAGE = range(3)


@dataclass(slots=True, eq=False)
class Step:
    """An instruction made ready to run: what it costs or where ranks meet for it, and what it waits for.

    ``meets`` are ``(key into Rank.channels, turn)``: one for a collective, up to two for a message (sending,
    receiving). The turn counts this program's earlier uses of the same key, so that ranks meet in order.
    """

    index: int
    kind: int
    after: tuple[int, ...]
    label: int
    duration_s: float = 0.0
    meets: tuple[tuple[int, int], ...] = ()
    awaited: bool = False


@dataclass(slots=True, eq=False)
class Meeting:
    """A rendezvous: ``missing`` arrivals to come, then ``transfer`` runs and ``completion`` fires."""

    missing: int
    completion: Completion
    transfer: Transfer = field(init=False)


class Computation:
    """A compute instruction under way; it runs slower while data moves through the same device."""

    __slots__ = ("completion", "due_s", "rank", "slowed")

    def __init__(self, rank: Rank, completion: Completion) -> None:
        self.rank = rank
        self.completion = completion
        self.due_s = -1.0
        self.slowed = bool(rank.transfers)

    def finish(self) -> None:
        self.rank.computing = None
        self.completion.fire()


@dataclass(slots=True, eq=False)
class Rank:
    """One simulated rank: which instructions are done, and who waits for one that is not.

    ``channels`` are those it uses, by the keys of :attr:`Step.meets`; a neighbour past the end of an axis
    has none.
    ``transfers`` are those its device takes part in at the moment (kept only where compute and communication slow
    each other).
    """

    number: int
    channels: dict[int, Channel]
    done: bytearray
    waiting: dict[int, list[Completion]] = field(default_factory=dict)
    computing: Computation | None = None
    transfers: list[Transfer] = field(default_factory=list)


class Machine:
    """Runs ranks' streams on one SimPy environment and writes what they did into a timeline.

    Parameters
    ----------
    compute_slowdown, communication_slowdown
        Factors (≥ 1) on the time of a kernel beside which data moves, and of a transfer beside which a kernel runs.
    """

    def __init__(
        self,
        env: simpy.Environment,
        channels: Sequence[Channel],
        timeline: Timeline,
        *,
        compute_slowdown: float = 1.0,
        communication_slowdown: float = 1.0,
    ) -> None:
        self.env = env
        self.timeline = timeline
        self.calendar = Calendar(env)
        self.compute_slowdown = compute_slowdown
        self._both_slow = communication_slowdown > 1.0
        self._toggled: dict[Rank, None] = {}
        interferes = compute_slowdown > 1.0 or communication_slowdown > 1.0
        self.fluid = Fluid(
            env,
            self.calendar,
            channels,
            slowdown=communication_slowdown,
            watch=self._transfer_toggles if interferes else None,
            before_settling=self._adjust_computations,
        )

    def add_stream(self, rank: Rank, steps: Sequence[Step]) -> simpy.Process:
        """Start a process that runs ``steps`` of one stream of ``rank``."""
        return self.env.process(self._run(rank, steps))

    def _run(self, rank: Rank, steps: Sequence[Step]) -> Generator[simpy.Event, None, None]:
        env, done, waiting = self.env, rank.done, rank.waiting
        columns = self.timeline
        write_rank, write_label = columns.rank.append, columns.label.append
        write_start, write_end = columns.start_s.append, columns.end_s.append
        for step in steps:
            for index in step.after:
                if not done[index]:
                    gate = Completion(env)
                    waiting.setdefault(index, []).append(gate)
                    yield gate
            if step.kind == COMPUTE:
                start_s = env.now
                if step.duration_s > 0.0:
                    completion = Completion(env)
                    activity = rank.computing = Computation(rank, completion)
                    duration_s = step.duration_s * self.compute_slowdown if activity.slowed else step.duration_s
                    self.calendar.enter(activity, duration_s)
                    if rank.transfers and self._both_slow:
                        self._compute_toggles(rank)
                    yield completion
                    if rank.transfers and self._both_slow:
                        self._compute_toggles(rank)
            else:
                meetings = [self._arrive(rank, key, turn) for key, turn in step.meets]
                for meeting in meetings:
                    if meeting is not None and meeting.completion.callbacks is not None:
                        yield meeting.completion
                start_s = min([m.transfer.start_s for m in meetings if m is not None], default=env.now)
            write_rank(rank.number)
            write_label(step.label)
            write_start(start_s)
            write_end(env.now)
            done[step.index] = 1
            if step.awaited:
                for gate in waiting.pop(step.index, ()):
                    gate.fire()

    def _arrive(self, rank: Rank, key: int, turn: int) -> Meeting | None:
        """This rank is ready for its part of a collective or message; the last to arrive starts the transfer."""
        channel = rank.channels.get(key)
        if channel is None:
            return None
        meeting = channel.pending.get(turn)
        if meeting is None:
            meeting = channel.pending[turn] = Meeting(channel.parties, Completion(self.env))
        meeting.missing -= 1
        if not meeting.missing:
            del channel.pending[turn]
            meeting.transfer = self.fluid.start(channel, meeting.completion)
        return meeting

    def _transfer_toggles(self, rank: Rank, transfer: Transfer, begins: bool) -> None:
        if begins:
            rank.transfers.append(transfer)
        else:
            rank.transfers.remove(transfer)
        if rank.computing is not None:
            self._toggled[rank] = None
            self.fluid.settle_later()

    def _compute_toggles(self, rank: Rank) -> None:
        for transfer in rank.transfers:
            self.fluid.touch(transfer.channel.region)

    def _adjust_computations(self) -> None:
        """At the end of an instant: kernels whose device began or ceased to move data get a new end."""
        if not self._toggled:
            return
        toggled, self._toggled = self._toggled, {}
        now = self.env.now
        for rank in toggled:
            activity = rank.computing
            if activity is None or activity.slowed == bool(rank.transfers):
                continue
            left_s = activity.due_s - now
            activity.slowed = not activity.slowed
            factor = self.compute_slowdown
            self.calendar.enter(activity, left_s * factor if activity.slowed else left_s / factor)
