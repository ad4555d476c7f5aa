"""Streams of ranks as SimPy processes, the state of ranks, and the devices on which their kernels run.

As on a GPU, a stream runs its instructions in order, one at a time. Before each it waits for the instructions of other
streams on which it depends. A stream is one of four processes, which yield SimPy events:

    kernels     a compute stream: a kernel occupies the device and yields a timeout, shared by all that ends then
    few_blocks  a compute stream whose kernels leave most of the device to those of others
    transfers   a communication stream: a transfer begins when all its ranks have arrived; all yield its one event
    launches    the host's stream: a launch yields a timeout
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import NamedTuple

import simpy
from simpy.events import PENDING

from ..network.fluid import Calendar, Channel, Fluid, Instant

#: Rounds of a kernel with a fixed grid of blocks on all multiprocessors, where another kernel holds some of them: those
#: that find no room begin when the others have ended.
ROUNDS = 2.0


def second_round(blocks: int) -> float:
    """Time of the second round over the first where every multiprocessor has ``blocks`` blocks in the first, and at
    most one in the second: at least 1/blocks, if a multiprocessor's throughput decides, at most 1, if latencies do. The
    middle.

    >>> [round(second_round(blocks), 2) for blocks in (1, 2, 3)]
    [1.0, 0.75, 0.67]
    """
    return (1.0 + 1.0 / blocks) / 2.0


class LoweredInstruction(NamedTuple):
    """A lowered instruction: its dependencies ``after``, and its cost or its rendezvous.

    ``meets`` are ``(key of SimulatedDevice.channels, use)``: none for a kernel, one for a collective, up to two for a
    message (send, receive). ``use`` is the number of this program's earlier uses of the key, so that ranks meet in
    order. ``resident`` is the share of a kernel's time that runs a second round beside a transfer. ``few``: its blocks
    leave most multiprocessors to kernels of other streams.
    """

    number: int
    after: tuple[int, ...]
    duration_s: float
    meets: tuple[tuple[int, int], ...]
    is_compute: bool
    resident: float
    few: bool = False


class Ended(simpy.Event):
    """The end of an instruction for which another stream of its rank waits; its value is the time.

    It is triggered without SimPy's queue: the waiting streams are resumed first, then the one whose instruction ended
    continues. All of a rank's streams are at the same time, so none is resumed while it runs.
    """

    __slots__ = ("_ok", "_value", "callbacks", "env")

    def __init__(self, env: simpy.Environment) -> None:
        # Event.__init__ in fewer calls.
        self.env = env
        self.callbacks = []
        self._value = PENDING

    def happen(self, now_s: float) -> None:
        """Resume the waiting streams."""
        self._ok = True
        self._value = now_s
        callbacks, self.callbacks = self.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(self)


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """One simulated GPU, which represents ``size`` equal ones, for all submissions."""

    #: GPU number.
    number: int
    size: int
    #: Channels by the keys of :attr:`LoweredInstruction.meets`. A message past the end of an axis has no channel.
    channels: dict[int, Channel] = field(default_factory=dict)
    #: Kernels under way, one a stream; they share the device's rate equally.
    computing: list[RunningKernel] = field(default_factory=list)
    #: Factor on the time of the kernels under way.
    stretch: float = 1.0
    #: Number of transfers and of kernels of few blocks under way; only counted if transfers slow kernels.
    moving: int = 0


@dataclass(slots=True, eq=False)
class Rank:
    """State of one device in a submission: which instructions are done and when, and which ends are waited for.

    ``slowness`` is a factor on the time of its kernels (straggler factor; 1: none). ``first_use`` is added to the uses
    of channels, which submissions share.
    """

    device: SimulatedDevice
    slowness: float = 1.0
    first_use: int = 0
    done: bytearray = field(default_factory=bytearray)
    start_s: array[float] = field(default_factory=lambda: array("d"))
    end_s: array[float] = field(default_factory=lambda: array("d"))
    #: Instruction → its end, if another stream waits for it.
    awaited: dict[int, Ended] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """GPU number."""
        return self.device.number

    def launched(self, instructions: int, first_use: int) -> Rank:
        """The rank at the start of a program with ``instructions`` instructions."""
        start_s, end_s = (array("d", bytes(8 * instructions)) for _ in range(2))
        return Rank(self.device, self.slowness, first_use, bytearray(instructions), start_s, end_s)


class Machine:
    """The running devices and links of an engine: one calendar and one fluid solver.

    Parameters
    ----------
    compute_slowdown, communication_slowdown
        Factors (≥ 1) on the time of a kernel while data moves, and of a transfer while a kernel runs on its device.
    """

    def __init__(
        self, env: simpy.Environment, *, compute_slowdown: float = 1.0, communication_slowdown: float = 1.0
    ) -> None:
        self.env = env
        self.calendar = Calendar(env)
        self.compute_slowdown = compute_slowdown
        #: What a second round takes beside a transfer, beyond the slowdown of all kernels; whether any kernel has one.
        self.second_round = max(0.0, ROUNDS / compute_slowdown - 1.0) if compute_slowdown > 1.0 else 0.0
        self.has_residents = False
        self._toggled: dict[SimulatedDevice, None] = {}
        self.fluid = Fluid(
            env,
            self.calendar,
            slowdown=communication_slowdown,
            toggled=self._toggled if compute_slowdown > 1.0 else None,
            before_settling=self._adjust_computations,
        )

    def end_of(self, rank: Rank, instruction: int) -> Ended:
        """Event of the end of an instruction that is not done."""
        event = rank.awaited.get(instruction)
        if event is None:
            event = rank.awaited[instruction] = Ended(self.env)
        return event

    def hold(self, device: SimulatedDevice, holders: int) -> None:
        """Let ``holders`` more kernels or transfers (−1: one fewer) hold multiprocessors, which slows other kernels."""
        if self.compute_slowdown > 1.0:
            device.moving += holders
            if device.computing and device.moving in (0, holders):
                self.toggle(device)

    def toggle(self, device: SimulatedDevice) -> None:
        """Let the kernels of a device get new ends at the end of this instant."""
        self._toggled[device] = None
        if not self.fluid.settling:
            self.fluid.settle_later()

    def _adjust_computations(self) -> None:
        """Move the ends of kernels whose device has another stretch now; called at the end of an instant."""
        if not self._toggled:
            return
        toggled = list(self._toggled)
        self._toggled.clear()
        now = self.env.now
        at, move = self.calendar.at, self.calendar.move
        # Equal ranks have kernels with equal ends, before and after.
        last: tuple[Instant, float, float] | None = None
        for device in toggled:
            before = device.stretch
            device.stretch = after = len(device.computing) * (self.compute_slowdown if device.moving else 1.0)
            if self.has_residents:
                for kernel in device.computing:
                    was, becomes = kernel.stretches(before, after)
                    if becomes != was:
                        move(kernel, at(now, (kernel.instant.at_s - now) * becomes / was))
            elif after != before:
                for kernel in device.computing:
                    change = kernel.instant, before, after
                    if change != last:
                        last, instant = change, at(now, (kernel.instant.at_s - now) * after / before)
                    move(kernel, instant)


class RunningKernel:
    """The kernel under way of one stream, which shares its device with the kernels of other streams.

    A kernel that begins on a free device has its end at once; on a busy device all ends are set at the end of the
    instant.
    """

    __slots__ = ("device", "instant", "machine", "place", "slowness")

    #: The timeout at which it ends, and the index of its process's callback there.
    instant: Instant
    place: int

    def __init__(self, machine: Machine, rank: Rank) -> None:
        self.machine = machine
        self.device = rank.device
        self.slowness = rank.slowness

    def begin(self, now_s: float, alone_s: float) -> Instant:
        """Begin a kernel of ``alone_s`` uncontended seconds; the process must yield the returned timeout at once."""
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
        """Free the device."""
        computing = self.device.computing
        computing.remove(self)
        if computing:
            self.machine.toggle(self.device)

    def stretches(self, before: float, after: float) -> tuple[float, float]:
        """Its stretch where that of its device was ``before`` and is ``after``."""
        return before, after


class ResidentKernel(RunningKernel):
    """The same for a stream some of whose kernels run a second round beside a transfer."""

    __slots__ = ("beside", "rounds", "shares")

    def __init__(self, machine: Machine, rank: Rank, shares: Iterable[float]) -> None:
        super().__init__(machine, rank)
        #: Share of every kernel to come that runs one; factor of the second round of this one, and the factor now.
        self.shares, self.beside, self.rounds = iter(shares), 1.0, 1.0
        machine.has_residents = True

    def begin(self, now_s: float, alone_s: float) -> Instant:
        self.beside = 1.0 + next(self.shares) * self.machine.second_round
        self.rounds = self.beside if self.device.moving else 1.0
        return super().begin(now_s, alone_s * self.rounds)

    def stretches(self, before: float, after: float) -> tuple[float, float]:
        was, self.rounds = self.rounds, self.beside if self.device.moving else 1.0
        return before * was, after * self.rounds


def kernel_of(machine: Machine, rank: Rank, stream: Sequence[LoweredInstruction]) -> RunningKernel:
    """The running kernel of a stream."""
    if machine.second_round and any(map(_RESIDENT, stream)):
        return ResidentKernel(machine, rank, [step.resident for step in stream if step.duration_s > 0.0])
    return RunningKernel(machine, rank)


_RESIDENT = attrgetter("resident")


# --- streams --------------------------------------------------------------------------------------------------

#: A SimPy process's generator: it yields events, and receives their time.
Process = Generator[simpy.Event, float, None]


def process_of(machine: Machine, rank: Rank, stream: Sequence[LoweredInstruction]) -> Process:
    """The generator of a stream: kernels, launches or transfers."""
    if stream[0].is_compute:
        return (few_blocks if all(step.few for step in stream) else kernels)(machine, rank, stream)
    return (launches if any(step.duration_s > 0.0 for step in stream) else transfers)(machine, rank, stream)


def kernels(machine: Machine, rank: Rank, stream: Sequence[LoweredInstruction]) -> Process:
    """Run the kernels of one stream in order, each after its dependencies."""
    now, kernel, end_of = machine.env.now, kernel_of(machine, rank, stream), machine.end_of
    done, start_s, end_s, awaited = rank.done, rank.start_s, rank.end_s, rank.awaited
    for number, after, alone_s, _, _, _, _ in stream:
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


def few_blocks(machine: Machine, rank: Rank, stream: Sequence[LoweredInstruction]) -> Process:
    """Run the kernels of a stream all of which have few blocks: each takes its own time, and holds multiprocessors as a
    transfer does."""
    now, end_of, at, device = machine.env.now, machine.end_of, machine.calendar.at, rank.device
    done, start_s, end_s, awaited = rank.done, rank.start_s, rank.end_s, rank.awaited
    for number, after, alone_s, _, _, _, _ in stream:
        for other in after:
            if not done[other]:
                now = yield end_of(rank, other)
        start_s[number] = now
        if alone_s > 0.0:
            machine.hold(device, 1)
            now = yield at(now, alone_s * rank.slowness)
            machine.hold(device, -1)
        end_s[number], done[number] = now, 1
        if number in awaited:
            awaited.pop(number).happen(now)


def transfers(machine: Machine, rank: Rank, stream: Sequence[LoweredInstruction]) -> Process:
    """Arrive at the collectives and messages of one stream in order, and wait until the data of each has moved."""
    now, end_of, arrive = machine.env.now, machine.end_of, machine.fluid.arrive
    done, start_s, end_s, awaited = rank.done, rank.start_s, rank.end_s, rank.awaited
    channels, first_use = rank.device.channels, rank.first_use
    for number, after, _, meets, _, _, _ in stream:
        for other in after:
            if not done[other]:
                now = yield end_of(rank, other)
        # A message may have two transfers, a send and a receive.
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


def launches(machine: Machine, rank: Rank, stream: Sequence[LoweredInstruction]) -> Process:
    """Let the host launch in order, ahead of the device unless a launch waits for a dependency."""
    now, end_of, at = machine.env.now, machine.end_of, machine.calendar.at
    done, start_s, end_s, awaited = rank.done, rank.start_s, rank.end_s, rank.awaited
    for number, after, host_s, _, _, _, _ in stream:
        for other in after:
            if not done[other]:
                now = yield end_of(rank, other)
        start_s[number] = now
        if host_s > 0.0:
            now = yield at(now, host_s)
        end_s[number], done[number] = now, 1
        if number in awaited:
            awaited.pop(number).happen(now)
