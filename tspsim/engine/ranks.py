"""Ranks: a worker runs each stream of a rank's kernels, a queue works off each of its communication streams.

As on a GPU, kernels hold the device while a communication stream is a queue that engines empty beside it: an
instruction of a queue begins when the one before is done, what it waits for is done, and the other ranks have arrived.
Neither is a SimPy process: one event a kernel, and no more, is what a long run can afford.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import simpy
from simpy.events import URGENT

from ..network.fluid import Activity, Calendar, Channel, Due, Fluid, Transfer


class ReadyInstruction(NamedTuple):
    """An instruction made ready to run: what it costs or where ranks meet for it, and what it waits for.

    ``meets`` are ``(key into Rank.channels, use)``: none for a kernel, one for a collective, up to two for a message
    (sending, receiving). ``use`` counts this program's earlier uses of the same key, so that ranks meet in order.
    """

    number: int
    after: tuple[int, ...]
    duration_s: float
    meets: tuple[tuple[int, int], ...]
    is_compute: bool


@dataclass(slots=True, eq=False)
class Device:
    """One simulated GPU, for ``size`` that always do the same; it stays while submissions come and go."""

    #: Of the GPU.
    number: int
    size: int
    #: Those it takes part in, by the keys of :attr:`ReadyInstruction.meets`; a neighbour past the end of an
    #: axis has none.
    channels: dict[int, Channel] = field(default_factory=dict)
    #: Kernels under way, of one stream each: they share its rate equally.
    computing: list[Activity] = field(default_factory=list)
    #: Times as long that they take as alone.
    stretch: float = 1.0
    #: Transfers that it takes part in at the moment (only where kernels slow beside them).
    moving: int = 0


@dataclass(slots=True, eq=False)
class Rank:
    """One device's part in a submission: which instructions are done and when, and whom to call when one will be.

    ``slowness`` stretches its kernels: 1 is a device like the others. ``first_use`` is added to the uses of channels,
    which submissions share.
    """

    device: Device
    slowness: float = 1.0
    first_use: int = 0
    done: bytearray = field(default_factory=bytearray)
    start_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))
    waiting: dict[int, list[Callable[[], None]]] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Of its GPU."""
        return self.device.number

    def call_after(self, instruction: int, call: Callable[[], None]) -> None:
        """Once an instruction that is not done yet is."""
        waits = self.waiting.get(instruction)
        if waits is None:
            self.waiting[instruction] = [call]
        else:
            waits.append(call)

    def launched(self, instructions: int, first_use: int) -> Rank:
        """The same with nothing done yet of a program."""
        start_s, end_s = (array("d", bytes(8 * instructions)) for _ in range(2))
        return Rank(self.device, self.slowness, first_use, bytearray(instructions), start_s, end_s)


class Machine:
    """The devices and links of a cluster at work, for as long as an engine lives: one calendar and one fluid solver.

    Parameters
    ----------
    compute_slowdown, communication_slowdown
        Factors (≥ 1) on the time of a kernel beside which data moves, and of a transfer beside which a kernel runs.
    """

    def __init__(
        self, env: simpy.Environment, *, compute_slowdown: float = 1.0, communication_slowdown: float = 1.0
    ) -> None:
        self.env = env
        self.calendar = Calendar(env)
        self.compute_slowdown = compute_slowdown
        self._toggled: dict[Device, None] = {}
        self.fluid = Fluid(
            env,
            self.calendar,
            slowdown=communication_slowdown,
            toggled=self._toggled if compute_slowdown > 1.0 else None,
            before_settling=self._adjust_computations,
        )

    def add_stream(self, rank: Rank, stream: Sequence[ReadyInstruction], ended: Callable[[], None]) -> None:
        """Run one stream of ``rank`` from now on and call ``ended`` after its last instruction."""
        if stream[0].is_compute or any(each.duration_s > 0.0 for each in stream):
            Worker(self, rank, stream, ended).begin()
        else:
            Queue(self, rank, stream, ended).begin()

    def toggle(self, device: Device) -> None:
        """Kernels of a device get a new end when this instant is over."""
        self._toggled[device] = None
        if not self.fluid.settling:
            self.fluid.settle_later()

    def _adjust_computations(self) -> None:
        """At the end of an instant: kernels get a new end whose device does more or less beside them than before."""
        if not self._toggled:
            return
        toggled = list(self._toggled)
        self._toggled.clear()
        now = self.env.now
        for device in toggled:
            before = device.stretch
            device.stretch = len(device.computing) * (self.compute_slowdown if device.moving else 1.0)
            if device.stretch != before:
                for computation in device.computing:
                    self.calendar.enter(computation, (computation.due_s - now) * device.stretch / before)


class Worker:
    """A stream of kernels at work, or a rank's host, which issues instructions ahead of the device.

    It is *blocked* (another instruction's end will call :meth:`advance`), *busy* (the calendar will call
    :meth:`finish`), or at its end. While busy with a kernel it stands among those of its device, and is slower beside
    others and while data moves through the device: one that is free takes it at its speed of the moment, one that is
    not settles with the instant who gets what.
    """

    __slots__ = ("current", "device", "due_s", "ended", "machine", "rank", "slowness", "stream")

    due_s: float

    def __init__(
        self, machine: Machine, rank: Rank, stream: Sequence[ReadyInstruction], ended: Callable[[], None]
    ) -> None:
        self.machine = machine
        self.rank = rank
        self.device = rank.device
        self.slowness = rank.slowness
        self.stream = iter(stream)
        self.current: ReadyInstruction | None = next(self.stream, None)
        self.ended = ended

    def begin(self) -> None:
        """Start as processes do: at this instant, before queues."""
        Due(self.machine.env, 0.0, lambda _event: self.advance(), URGENT)

    def advance(self) -> None:
        """Start the current instruction, unless it must still wait; go through those that take no time."""
        rank, machine, current = self.rank, self.machine, self.current
        done, waiting = rank.done, rank.waiting
        now = machine.env.now
        while current is not None:
            number, after, duration_s, _, is_compute = current
            for other in after:
                if not done[other]:
                    rank.call_after(other, self.advance)
                    return
            rank.start_s[number] = now
            if duration_s > 0.0:
                if is_compute:
                    device = self.device
                    if device.computing:
                        machine.toggle(device)
                    else:
                        device.stretch = machine.compute_slowdown if device.moving else 1.0
                    device.computing.append(self)
                    duration_s *= device.stretch * self.slowness
                machine.calendar.enter(self, duration_s)
                return
            rank.end_s[number] = now
            done[number] = 1
            self.current = current = next(self.stream, None)
            if number in waiting:
                for call in waiting.pop(number):
                    call()
        self.ended()

    def finish(self) -> None:
        """The current instruction has taken its time."""
        current = self.current
        assert current is not None
        if current.is_compute:
            computing = self.device.computing
            computing.remove(self)
            if computing:
                self.machine.toggle(self.device)
        rank, number = self.rank, current.number
        rank.end_s[number] = self.machine.env.now
        rank.done[number] = 1
        self.current = next(self.stream, None)
        if number in rank.waiting:
            for call in rank.waiting.pop(number):
                call()
        self.advance()


class Queue:
    """One communication stream of a rank at work.

    It is *blocked* (another instruction's end will call :meth:`advance`), *moving* (a transfer's end will call
    :meth:`_moved`), or at its end.
    """

    __slots__ = ("current", "ended", "left", "machine", "rank", "start_s", "stream")

    def __init__(
        self, machine: Machine, rank: Rank, stream: Sequence[ReadyInstruction], ended: Callable[[], None]
    ) -> None:
        self.machine = machine
        self.rank = rank
        self.stream = iter(stream)
        self.current: ReadyInstruction | None = next(self.stream, None)
        self.ended = ended
        self.left = 0
        self.start_s = 0.0

    def begin(self) -> None:
        """Start as processes do: after what happens at this instant has been set up."""
        env = self.machine.env
        Due(env, 0.0, lambda _event: self.advance())

    def advance(self) -> None:
        """Arrive for the current instruction, unless it must still wait."""
        rank = self.rank
        done, channels = rank.done, rank.device.channels
        while self.current is not None:
            for other in self.current.after:
                if not done[other]:
                    rank.call_after(other, self.advance)
                    return
            halves: list[Transfer] = []
            for key, use in self.current.meets:
                channel = channels.get(key)
                if channel is not None:
                    transfer = self.machine.fluid.arrive(channel, rank.first_use + use)
                    if transfer not in halves:
                        halves.append(transfer)
            if halves:
                self.left = len(halves)
                self.start_s = -1.0
                moved = self._moved
                for transfer in halves:
                    transfer.callbacks.append(moved)
                return
            self.start_s = self.machine.env.now
            self._finish(self.start_s)
        self.ended()

    def _moved(self, transfer: Any) -> None:
        """One of the current instruction's transfers is over."""
        start_s = transfer.start_s
        self.start_s = start_s if self.start_s < 0.0 or start_s < self.start_s else self.start_s
        self.left -= 1
        if not self.left:
            self._finish(self.machine.env.now)
            self.advance()

    def _finish(self, now: float) -> None:
        over, rank = self.current, self.rank
        assert over is not None
        number, waiting = over.number, rank.waiting
        rank.start_s[number] = self.start_s
        rank.end_s[number] = now
        rank.done[number] = 1
        self.current = next(self.stream, None)
        if number in waiting:
            for call in waiting.pop(number):
                call()
