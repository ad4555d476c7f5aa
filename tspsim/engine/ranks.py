"""Ranks: a SimPy process runs a rank's kernels in order, a queue works off each of its communication streams.

As on a GPU, kernels hold the rank while a communication stream is a queue that engines empty beside it: an
instruction of a queue begins when the one before is done, what it waits for is done, and the other ranks have arrived.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import simpy

from ..network.fluid import Calendar, Channel, Completion, Device, Fluid, Transfer


class Step(NamedTuple):
    """An instruction made ready to run: what it costs or where ranks meet for it, and what it waits for.

    ``meets`` are ``(key into Rank.channels, turn)``: none for a kernel, one for a collective, up to two for a message
    (sending, receiving). The turn counts this program's earlier uses of the same key, so that ranks meet in order.
    ``awaited`` says whether another instruction waits for this one.
    """

    number: int
    after: tuple[int, ...]
    duration_s: float
    meets: tuple[tuple[int, int], ...]
    is_compute: bool
    awaited: bool


@dataclass(slots=True, eq=False)
class Rank:
    """One simulated rank: which instructions are done and when, and whom to call when one that is not will be.

    ``channels`` are those it uses, by the keys of :attr:`Step.meets`; a neighbour past the end of an axis has none.
    ``moving`` counts the transfers its device takes part in at the moment (only where kernels slow beside them).
    ``slowness`` stretches its kernels: 1 is a device like the others.
    """

    number: int
    channels: dict[int, Channel]
    done: bytearray = field(default_factory=bytearray)
    start_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))
    waiting: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    slowness: float = 1.0
    computing: Computation | None = None
    moving: int = 0

    def expect(self, instructions: int) -> None:
        """Make room for a program."""
        self.done = bytearray(instructions)
        self.start_s = array("d", bytes(8 * instructions))
        self.end_s = array("d", bytes(8 * instructions))


class Computation(Completion):
    """A compute instruction under way, and the event of its end; slower while data moves through its device."""

    __slots__ = ("due_s", "rank", "slowed")

    due_s: float

    def __init__(self, env: simpy.Environment, rank: Rank) -> None:
        self.env = env
        self.callbacks = []
        self.rank = rank
        self.slowed = rank.moving > 0

    def finish(self) -> None:
        self.rank.computing = None
        self.fire()


class Launching(Completion):
    """A launch under way on a host, and the event of its end."""

    __slots__ = ("due_s",)

    due_s: float

    def finish(self) -> None:
        self.fire()


class Machine:
    """Runs ranks' streams on one SimPy environment and notes in each rank when it did what.

    Parameters
    ----------
    tick_s
        Of the :class:`~tspsim.network.fluid.Calendar`.
    compute_slowdown, communication_slowdown
        Factors (≥ 1) on the time of a kernel beside which data moves, and of a transfer beside which a kernel runs.
    """

    def __init__(
        self,
        env: simpy.Environment,
        *,
        tick_s: float = 0.0,
        compute_slowdown: float = 1.0,
        communication_slowdown: float = 1.0,
    ) -> None:
        self.env = env
        self.calendar = Calendar(env, tick_s)
        self.compute_slowdown = compute_slowdown
        self._toggled: dict[Device, None] = {}
        self.fluid = Fluid(
            env,
            self.calendar,
            slowdown=communication_slowdown,
            toggled=self._toggled if compute_slowdown > 1.0 else None,
            before_settling=self._adjust_computations if compute_slowdown > 1.0 else None,
        )

    def add_stream(self, rank: Rank, steps: Sequence[Step]) -> None:
        """Run ``steps`` of one stream of ``rank`` from now on; kernels, launches and exchanges do not mix on one."""
        if steps[0].is_compute:
            self.env.process(self._compute(rank, steps))
        elif any(step.duration_s > 0.0 for step in steps):
            self.env.process(self._host(rank, steps))
        else:
            Queue(self, rank, steps).begin()

    def _compute(self, rank: Rank, steps: Sequence[Step]) -> Generator[simpy.Event, None, None]:
        """The process of a rank's kernels."""
        env, done, waiting = self.env, rank.done, rank.waiting
        enter, slowness = self.calendar.enter, rank.slowness
        slowed = self.compute_slowdown * slowness
        started, ended = rank.start_s, rank.end_s
        for index, after, duration_s, _, _, awaited in steps:
            for other in after:
                if not done[other]:
                    gate = Completion(env)
                    waiting.setdefault(other, []).append(gate.fire)
                    yield gate
            started[index] = env.now
            if duration_s > 0.0:
                computation = rank.computing = Computation(env, rank)
                enter(computation, duration_s * (slowed if computation.slowed else slowness))
                yield computation
            ended[index] = env.now
            done[index] = 1
            if awaited and index in waiting:
                for call in waiting.pop(index):
                    call()

    def _host(self, rank: Rank, steps: Sequence[Step]) -> Generator[simpy.Event, None, None]:
        """The process of a rank's host, which issues one instruction after the other, ahead of the device."""
        env, done, waiting = self.env, rank.done, rank.waiting
        for index, after, duration_s, _, _, awaited in steps:
            for other in after:
                if not done[other]:
                    gate = Completion(env)
                    waiting.setdefault(other, []).append(gate.fire)
                    yield gate
            rank.start_s[index] = env.now
            if duration_s > 0.0:
                launch = Launching(env)
                self.calendar.enter(launch, duration_s)
                yield launch
            rank.end_s[index] = env.now
            done[index] = 1
            if awaited and index in waiting:
                for call in waiting.pop(index):
                    call()

    def _adjust_computations(self) -> None:
        """At the end of an instant: kernels whose device began or ceased to move data get a new end."""
        if not self._toggled:
            return
        toggled = list(self._toggled)
        self._toggled.clear()
        now, factor = self.env.now, self.compute_slowdown
        for rank in toggled:
            computation = rank.computing
            if computation is None or computation.slowed == (rank.moving > 0):
                continue
            left_s = computation.due_s - now
            computation.slowed = not computation.slowed
            self.calendar.enter(computation, left_s * factor if computation.slowed else left_s / factor)


class Queue:
    """One communication stream of a rank at work.

    It is *blocked* (another instruction's end will call :meth:`advance`), *moving* (a transfer's end will call
    :meth:`_moved`), or at its end.
    """

    __slots__ = ("current", "left", "machine", "rank", "start_s", "steps")

    def __init__(self, machine: Machine, rank: Rank, steps: Sequence[Step]) -> None:
        self.machine = machine
        self.rank = rank
        self.steps = iter(steps)
        self.current: Step | None = next(self.steps, None)
        self.left = 0
        self.start_s = 0.0

    def begin(self) -> None:
        """Start as processes do: after what happens at this instant has been set up."""
        start = Completion(self.machine.env)
        start.callbacks.append(lambda _event: self.advance())
        start._ok = True
        start._value = None
        self.machine.env.schedule(start)

    def advance(self) -> None:
        """Arrive for the current instruction, unless it must still wait."""
        rank = self.rank
        done = rank.done
        while self.current is not None:
            for other in self.current.after:
                if not done[other]:
                    waits = rank.waiting.get(other)
                    if waits is None:
                        rank.waiting[other] = [self.advance]
                    else:
                        waits.append(self.advance)
                    return
            arrive, channels = self.machine.fluid.arrive, rank.channels
            halves: list[Transfer] = []
            for key, turn in self.current.meets:
                channel = channels.get(key)
                if channel is not None:
                    transfer = arrive(channel, turn)
                    if transfer not in halves:
                        halves.append(transfer)
            if halves:
                self.left = len(halves)
                self.start_s = -1.0
                for transfer in halves:
                    transfer.callbacks.append(self._moved)
                return
            self.start_s = self.machine.env.now
            self._finish()

    def _moved(self, transfer: Any) -> None:
        """One of the current instruction's transfers is over."""
        start_s = transfer.start_s
        self.start_s = start_s if self.start_s < 0.0 or start_s < self.start_s else self.start_s
        self.left -= 1
        if not self.left:
            self._finish()
            self.advance()

    def _finish(self) -> None:
        step, rank = self.current, self.rank
        assert step is not None
        rank.start_s[step.number] = self.start_s
        rank.end_s[step.number] = self.machine.env.now
        rank.done[step.number] = 1
        self.current = next(self.steps, None)
        if step.awaited and step.number in rank.waiting:
            for call in rank.waiting.pop(step.number):
                call()
