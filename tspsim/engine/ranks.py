"""Ranks: what each of them has done, the devices they share, and the kernels under way there.

Streams: each stream of a rank is a SimPy process, which yields its kernels and collectives as events.

As on a GPU a stream runs its instructions in order, one at a time. Before each it waits for the instructions of other
streams that it needs.

    kernels     of a compute stream hold the device: a kernel is a timeout, shared with all that ends at that time
    transfers   of a communication stream begin when the other ranks have arrived too: all yield one event
    launches    of the host take their time
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import simpy
from simpy.events import PENDING

from ..network.fluid import Calendar, Channel, Fluid, Instant


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


class Ended(simpy.Event):
    """The end of an instruction for which another stream of its rank waits; its value is the time.

    It happens in place, without a trip through SimPy's queue: the streams that wait go on first, then the one that
    worked. All of a rank's streams stand in one instant, so none can be resumed while it runs.
    """

    __slots__ = ("_ok", "_value", "callbacks", "env")

    def __init__(self, env: simpy.Environment) -> None:
        # What Event.__init__ does and no more.
        self.env = env
        self.callbacks = []
        self._value = PENDING

    def happen(self, now_s: float) -> None:
        """Resume who waits."""
        self._ok = True
        self._value = now_s
        callbacks, self.callbacks = self.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(self)


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """One simulated GPU, for ``size`` that always do the same; it stays while submissions come and go."""

    #: Of the GPU.
    number: int
    size: int
    #: Those it takes part in, by the keys of :attr:`ReadyInstruction.meets`; a neighbour past the end of an
    #: axis has none.
    channels: dict[int, Channel] = field(default_factory=dict)
    #: Kernels under way, of one stream each: they share its rate equally.
    computing: list[RunningKernel] = field(default_factory=list)
    #: Times as long that they take as alone.
    stretch: float = 1.0
    #: Transfers that it takes part in at the moment (only where kernels slow beside them).
    moving: int = 0


@dataclass(slots=True, eq=False)
class Rank:
    """One device's part in a submission: which instructions are done and when, and which ends others wait for.

    ``slowness`` stretches its kernels: 1 is a device like the others. ``first_use`` is added to the uses of channels,
    which submissions share.
    """

    device: SimulatedDevice
    slowness: float = 1.0
    first_use: int = 0
    done: bytearray = field(default_factory=bytearray)
    start_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))
    #: Ends of instructions that another stream waits for, by instruction.
    awaited: dict[int, Ended] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Of its GPU."""
        return self.device.number

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
        self._toggled: dict[SimulatedDevice, None] = {}
        self.fluid = Fluid(
            env,
            self.calendar,
            slowdown=communication_slowdown,
            toggled=self._toggled if compute_slowdown > 1.0 else None,
            before_settling=self._adjust_computations,
        )

    def end_of(self, rank: Rank, instruction: int) -> Ended:
        """The event of the end of an instruction that is not done yet."""
        event = rank.awaited.get(instruction)
        if event is None:
            event = rank.awaited[instruction] = Ended(self.env)
        return event

    def toggle(self, device: SimulatedDevice) -> None:
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
        at, move = self.calendar.at, self.calendar.move
        # Ranks that stand alike have kernels that end together, before and after.
        last: tuple[Instant, float, float] | None = None
        for device in toggled:
            before = device.stretch
            device.stretch = after = len(device.computing) * (self.compute_slowdown if device.moving else 1.0)
            if after != before:
                for kernel in device.computing:
                    change = kernel.instant, before, after
                    if change != last:
                        last, instant = change, at(now, (kernel.instant.at_s - now) * after / before)
                    move(kernel, instant)


class RunningKernel:
    """What one stream has on its device: a kernel under way, which shares the device with those of other streams.

    One that begins on a free device goes at the device's speed of the moment; on one that is not the instant settles
    who gets what.
    """

    __slots__ = ("device", "instant", "machine", "place", "slowness")

    #: The timeout at which it ends, and where its process stands among the timeout's callbacks.
    instant: Instant
    place: int

    def __init__(self, machine: Machine, rank: Rank) -> None:
        self.machine = machine
        self.device = rank.device
        self.slowness = rank.slowness

    def begin(self, now_s: float, alone_s: float) -> Instant:
        """Begin a kernel of ``alone_s`` seconds now; the process waits for its end at once."""
        device, machine = self.device, self.machine
        if device.computing:
            machine.toggle(device)
        else:
            device.stretch = machine.compute_slowdown if device.moving else 1.0
        device.computing.append(self)
        instant = self.instant = machine.calendar.at(now_s, alone_s * (device.stretch * self.slowness))
        self.place = len(instant.callbacks)
        return instant

    def end(self) -> None:
        """Leave the device to the others."""
        computing = self.device.computing
        computing.remove(self)
        if computing:
            self.machine.toggle(self.device)


# --- streams --------------------------------------------------------------------------------------------------

#: What SimPy resumes with the time of the event that was yielded.
Process = Generator[simpy.Event, float, None]


def process_of(machine: Machine, rank: Rank, stream: Sequence[ReadyInstruction]) -> Process:
    """The generator of a stream, by what stands on it."""
    if stream[0].is_compute:
        return kernels(machine, rank, stream)
    return (launches if any(step.duration_s > 0.0 for step in stream) else transfers)(machine, rank, stream)


def kernels(machine: Machine, rank: Rank, stream: Sequence[ReadyInstruction]) -> Process:
    """Run the kernels of one stream, each as soon as what it waits for has ended."""
    now, kernel, end_of = machine.env.now, RunningKernel(machine, rank), machine.end_of
    done, start_s, end_s, awaited = rank.done, rank.start_s, rank.end_s, rank.awaited
    for number, after, alone_s, _, _ in stream:
        for other in after:
            if not done[other]:
                now = yield end_of(rank, other)
        start_s[number] = now
        if alone_s > 0.0:
            now = yield kernel.begin(now, alone_s)
            kernel.end()
        end_s[number], done[number] = now, 1
        if number in awaited:
            awaited.pop(number).happen(now)


def transfers(machine: Machine, rank: Rank, stream: Sequence[ReadyInstruction]) -> Process:
    """Arrive for the collectives and messages of one stream, and wait for each until its data has moved."""
    now, end_of, arrive = machine.env.now, machine.end_of, machine.fluid.arrive
    done, start_s, end_s, awaited = rank.done, rank.start_s, rank.end_s, rank.awaited
    channels, first_use = rank.device.channels, rank.first_use
    for number, after, _, meets, _ in stream:
        for other in after:
            if not done[other]:
                now = yield end_of(rank, other)
        # Of a message there may be two, sending and receiving; what happened first is not waited for again.
        moving = []
        for key, use in meets:
            if key in channels:
                moving.append(arrive(channels[key], first_use + use))
        begin_s = inf if moving else now
        for transfer in moving:
            ended_s = yield transfer
            if ended_s > now:
                now = ended_s
            if transfer.start_s < begin_s:
                begin_s = transfer.start_s
        start_s[number], end_s[number], done[number] = begin_s, now, 1
        if number in awaited:
            awaited.pop(number).happen(now)


def launches(machine: Machine, rank: Rank, stream: Sequence[ReadyInstruction]) -> Process:
    """Let the host issue what its launches stand for, ahead of the device until something makes it wait."""
    now, end_of, at = machine.env.now, machine.end_of, machine.calendar.at
    done, start_s, end_s, awaited = rank.done, rank.start_s, rank.end_s, rank.awaited
    for number, after, host_s, _, _ in stream:
        for other in after:
            if not done[other]:
                now = yield end_of(rank, other)
        start_s[number] = now
        if host_s > 0.0:
            now = yield at(now, host_s)
        end_s[number], done[number] = now, 1
        if number in awaited:
            awaited.pop(number).happen(now)
