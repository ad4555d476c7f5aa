"""Transfers that share links on the clock: their calendar, and the rates of all that are under way.

A *channel* is one collective of one group, or one message between two ranks. Alone it takes ``latency_s + fluid_s``,
and while it moves it uses the share ``usage[constraint]`` of every link on its route. A *transfer* is one use of a
channel, and the SimPy event that its ranks' processes wait for. Transfers that meet on links have max-min fair rates.
A region whose transfers changed is solved once an instant, after all other events of that instant. No process is
interrupted: everything that ends at one time waits for one SimPy timeout, and an activity whose end changes waits for
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, cast

import simpy
from simpy.events import NORMAL, PENDING, EventPriority

from .sharing import Sharing, Solutions

#: Priority of the last event of an instant (SimPy takes smaller numbers first; NORMAL is 1).
LAST = EventPriority(2)
#: Transfers of a region up to which all rates are solved at once.
FEW_TRANSFERS = 32


class Activity(Protocol):
    """Something whose end may change: its timeout, and the index of its callback there."""

    instant: Instant
    place: int


class FluidDevice(Protocol):
    """A device: the number of transfers under way that it takes part in, and the kernels that it runs."""

    moving: int

    @property
    def computing(self) -> Sequence[object]: ...


class Instant(simpy.Timeout):
    """One timeout for everything that ends at a time, which is its value."""

    __slots__ = ("_delay", "_ok", "_value", "at_s", "callbacks", "env")

    def __init__(
        self, env: simpy.Environment, delay_s: float, at_s: float, begin: Callable[[simpy.Event], None]
    ) -> None:
        # Timeout.__init__ in fewer calls: most events of a run are instants.
        self.env = env
        self.callbacks = [begin]
        self._ok = True
        self._value = self.at_s = at_s
        self._delay = delay_s
        env.schedule(self, NORMAL, delay_s)


class Settled(simpy.Event):
    """An event after all others of this instant, which calls ``call``."""

    def __init__(self, env: simpy.Environment, call: Callable[[simpy.Event], None]) -> None:
        self.env = env
        self.callbacks = [call]
        self._ok = True
        self._value = None
        env.schedule(self, LAST)


def no_op(_event: simpy.Event) -> None:
    """Callback in the place of one that moved to another timeout."""


class Calendar:
    """Times at which something ends, each with one SimPy timeout.

    With a tick (a power of two in seconds, below anything measurable) every delay is a whole number of ticks. Then sums
    and differences of times are exact, and a pattern repeats to the bit at any time of the run, as
    :mod:`tspsim.engine.steady` requires. Without a tick delays are not rounded.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self._instants: dict[float, Instant] = {}
        self._rounding = 0.0

    def tick(self, tick_s: float) -> None:
        """Round every later delay to a whole number of ticks of ``tick_s`` seconds."""
        # Adding and subtracting this number rounds to whole ticks: a double has 53 bits.
        self._rounding = 1.5 * 2.0**52 * tick_s

    def at(self, now_s: float, delay_s: float) -> Instant:
        """The timeout ``delay_s`` from now (``now_s`` on the clock), shared by everything that ends then."""
        delay_s = (delay_s + self._rounding) - self._rounding
        due_s = now_s + delay_s
        instant = self._instants.get(due_s)
        if instant is None:
            instant = self._instants[due_s] = Instant(self.env, delay_s, due_s, self._begin)
        return instant

    def enter(self, activity: Activity, instant: Instant, call: Callable[[simpy.Event], None]) -> None:
        """Let ``activity`` end at an instant, with a call of ``call``, unless it is moved."""
        activity.instant, activity.place = instant, len(instant.callbacks)
        instant.callbacks.append(call)

    def move(self, activity: Activity, instant: Instant) -> None:
        """Move the end of ``activity``, and its callback, to another instant."""
        before = activity.instant
        if instant is not before:
            place, callbacks = activity.place, instant.callbacks
            activity.instant, activity.place = instant, len(callbacks)
            callbacks.append(before.callbacks[place])
            before.callbacks[place] = no_op

    def complete(self, event: simpy.Event, delay_s: float) -> None:
        """Trigger ``event`` after ``delay_s``, which cannot change; its value is that time."""
        delay_s = (delay_s + self._rounding) - self._rounding
        event._ok = True
        event._value = self.env.now + delay_s
        self.env.schedule(event, NORMAL, delay_s)

    def _begin(self, instant: simpy.Event) -> None:
        """Forget a timeout that happens now: later entries for this time get a new one."""
        del self._instants[cast("Instant", instant).at_s]


@dataclass(slots=True, eq=False)
class Channel:
    """The path of one group's data, the same in every use."""

    number: int
    #: Seconds that no bandwidth shortens, and seconds of the busiest link, which sharing stretches.
    latency_s: float
    fluid_s: float
    #: Constraint (link, or class of links) → share of its capacity used at full speed; in a folded run the sum over the
    #: channels that this one represents.
    usage: Mapping[Hashable, float]
    #: Seconds that a byte of the busiest link takes at full speed: the weight that makes shares fair in bytes.
    weight: float
    #: Simulated devices that take part, whose kernels slow down meanwhile; none if copy engines move the data.
    devices: Sequence[FluidDevice]
    #: Name of the algorithm.
    algorithm: str
    #: Arrivals that start a transfer.
    parties: int
    #: Channels that may share a constraint, directly or through others, have the same region.
    region: int = 0
    #: Constraint → seconds a byte there, for constraints where it differs from ``weight``.
    weight_at: Mapping[Hashable, float] = field(default_factory=dict)
    #: Use → transfer that waits for more arrivals.
    pending: dict[int, Transfer] = field(default_factory=dict)

    def take_over(self, other: Channel) -> None:
        """Take over the facts of ``other``; transfers that wait or move here continue."""
        for attribute in fields(self):
            if attribute.name != "pending":
                setattr(self, attribute.name, getattr(other, attribute.name))


class Transfer(simpy.Event):
    """One use of a channel, and the event of its end, whose value is the time.

    It waits until ``missing`` is zero (a rendezvous). Then it moves at ``rate`` with ``remaining_s`` of its uncontended
    time left. Then its latency passes, and the event happens. ``start_s`` is when it began to move.
    """

    __slots__ = (
        "_ok", "_value", "callbacks", "channel", "env", "fluid", "instant", "missing", "place", "rate", "remaining_s",
        "share", "since_s", "start_s",
    )  # fmt: skip

    instant: Instant
    place: int
    remaining_s: float
    share: float
    since_s: float
    start_s: float

    def __init__(self, fluid: Fluid, channel: Channel) -> None:
        # Event.__init__ in fewer calls: a run makes a million transfers.
        self.env = fluid.env
        self.callbacks = []
        self._value = PENDING
        self.fluid = fluid
        self.channel = channel
        self.missing = channel.parties
        self.rate = 0.0

    def moved(self, _instant: simpy.Event) -> None:
        """All bytes have left; only the latency remains."""
        self.fluid.leave(self)
        self.fluid.calendar.complete(self, self.channel.latency_s)


class Fluid:
    """The transfers under way and their rates.

    Parameters
    ----------
    slowdown
        Factor (≥ 1) on a transfer's time while a kernel runs on one of its devices. It is applied when the region's
        rates are solved, not at every start or end of a kernel: schedules that overlap keep their devices busy.
    toggled
        Receives computing devices that begin or cease to move data; None: transfers do not slow kernels.
    before_settling
        Called before an instant's rates are solved.
    """

    def __init__(
        self,
        env: simpy.Environment,
        calendar: Calendar,
        *,
        slowdown: float = 1.0,
        toggled: dict[Any, None] | None = None,
        before_settling: Callable[[], None] | None = None,
    ) -> None:
        self.env = env
        self.calendar = calendar
        self.slowdown = slowdown
        self._beside_kernels = 1.0 / slowdown
        self._toggled = toggled
        self._before_settling = before_settling
        self._active: dict[int, list[Transfer]] = {}
        self._changed: dict[int, None] = {}
        self._sharings: dict[int, Sharing[Transfer]] = {}
        self._solutions = Solutions()
        self.settling = False

    def arrive(self, channel: Channel, use: int) -> Transfer:
        """Let a rank arrive at a use of a channel; the last arrival starts the transfer."""
        pending = channel.pending
        transfer = pending.get(use)
        if transfer is None:
            transfer = pending[use] = Transfer(self, channel)
        transfer.missing -= 1
        if not transfer.missing:
            del pending[use]
            self._start(transfer)
        return transfer

    def _start(self, transfer: Transfer) -> None:
        """Start to move data now; the rate is solved at the end of the instant."""
        channel = transfer.channel
        transfer.start_s = transfer.since_s = self.env.now
        transfer.remaining_s = channel.fluid_s
        active = self._active.get(channel.region)
        if active is None:
            active = self._active[channel.region] = []
        active.append(transfer)
        if self._sharings and channel.region in self._sharings:
            self._sharings[channel.region].enter(transfer, channel)
        toggled = self._toggled
        if toggled is not None:
            for device in channel.devices:
                if not device.moving and device.computing:
                    toggled[device] = None
                device.moving += 1
        self._changed[channel.region] = None
        if not self.settling:
            self.settle_later()

    def leave(self, transfer: Transfer) -> None:
        """Free the links of a transfer whose bytes have all left."""
        channel = transfer.channel
        active = self._active[channel.region]
        active.remove(transfer)
        if self._sharings and channel.region in self._sharings:
            self._sharings[channel.region].leave(transfer)
        if active:
            self._changed[channel.region] = None
            if not self.settling:
                self.settle_later()
        toggled = self._toggled
        if toggled is not None:
            for device in channel.devices:
                device.moving -= 1
                if not device.moving and device.computing:
                    toggled[device] = None
            if toggled and not self.settling:
                self.settle_later()

    def reshare(self, solutions: Solutions) -> None:
        """Move transfers under way to their channels' new regions, numbers and constraints, whose rates ``solutions``
        may have."""
        moving = [transfer for active in self._active.values() for transfer in active]
        self._active, self._changed, self._sharings, self._solutions = {}, {}, {}, solutions
        for transfer in moving:
            self._active.setdefault(transfer.channel.region, []).append(transfer)
            self._changed[transfer.channel.region] = None
        if moving and not self.settling:
            self.settle_later()

    def settle_later(self) -> None:
        """Solve the changed regions at the end of this instant."""
        self.settling = True
        Settled(self.env, self._settle)

    def _settle(self, _event: simpy.Event) -> None:
        self.settling = False
        if self._before_settling is not None:
            self._before_settling()
        changed, self._changed = self._changed, {}
        now, calendar, beside = self.env.now, self.calendar, self._beside_kernels
        for region in changed:
            active = self._active[region]
            if len(active) > FEW_TRANSFERS:
                active = list(self._many(region, active))
                speeds = [transfer.share for transfer in active]
            else:
                if self._sharings:
                    self._sharings.pop(region, None)
                solutions = self._solutions
                meeting = tuple([transfer.channel.number for transfer in active])
                speeds = solutions.known.get(meeting) or solutions.solve(meeting, [flow.channel for flow in active])
            for transfer, rate in zip(active, speeds, strict=True):
                if rate > beside:
                    for device in transfer.channel.devices:
                        if device.computing:
                            rate = beside
                            break
                if rate != transfer.rate:
                    before = transfer.rate
                    transfer.remaining_s -= (now - transfer.since_s) * before
                    transfer.since_s, transfer.rate = now, rate
                    left_s = max(0.0, transfer.remaining_s) / rate
                    if before:
                        calendar.move(transfer, calendar.at(now, left_s))
                    else:
                        calendar.enter(transfer, calendar.at(now, left_s), transfer.moved)

    def _many(self, region: int, active: Sequence[Transfer]) -> Iterable[Transfer]:
        """Solve a region of many transfers, of which an instant affects few; return those whose rate may change."""
        sharing = self._sharings.get(region)
        if sharing is None:
            sharing = self._sharings[region] = Sharing(self._solutions)
            for transfer in active:
                sharing.enter(transfer, transfer.channel)
        speeds = sharing.settle()
        for transfer, share in speeds.items():
            transfer.share = share
        # With a slowdown by kernels, all transfers are visited: kernels start and end without a change of shares.
        return active if self.slowdown > 1.0 else speeds
