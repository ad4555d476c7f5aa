"""Activities that share: the calendar they end in, and the solver that gives each its rate.

A *channel* is a place where data moves the same way every time: one collective of one group, or one message between
two ranks. It takes ``latency_s + fluid_s`` alone and, while it moves, a share ``usage[constraint]`` of every link on
its way. A *transfer* is one use of a channel, and the SimPy event that its ranks' processes wait for. Transfers that
meet on links progress at one max-min fair rate; the region that changed is solved again, once an instant, after
everything that happens at that instant has happened. No process is interrupted: all that ends at one time waits for one
SimPy timeout, and an activity whose end moves waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, cast

import simpy
from simpy.events import NORMAL, PENDING, EventPriority

from .sharing import Sharing, Solutions

#: After everything else that happens at an instant (SimPy takes smaller numbers first; NORMAL is 1).
LAST = EventPriority(2)
#: Transfers of a region up to which all are shared out at once.
FEW = 32


class Activity(Protocol):
    """Something whose end may move: the timeout that it waits for, and the place of its callback there."""

    instant: Instant
    place: int


class FluidDevice(Protocol):
    """What moves data and computes: how many transfers it takes part in, and the kernels that it runs."""

    moving: int

    @property
    def computing(self) -> Sequence[object]: ...


class Instant(simpy.Timeout):
    """A time on the clock: one timeout for all that ends then, whose value is the time."""

    __slots__ = ("_delay", "_ok", "_value", "at_s", "callbacks", "env")

    def __init__(
        self, env: simpy.Environment, delay_s: float, at_s: float, begin: Callable[[simpy.Event], None]
    ) -> None:
        # What Timeout.__init__ does: most events of a run are these.
        self.env = env
        self.callbacks = [begin]
        self._ok = True
        self._value = self.at_s = at_s
        self._delay = delay_s
        env.schedule(self, NORMAL, delay_s)


class Settled(simpy.Event):
    """After everything else that happens at this instant: ``call`` is called then."""

    def __init__(self, env: simpy.Environment, call: Callable[[simpy.Event], None]) -> None:
        self.env = env
        self.callbacks = [call]
        self._ok = True
        self._value = None
        env.schedule(self, LAST)


def nothing(_event: simpy.Event) -> None:
    """Stands where the callback of something stood that ends at another time."""


class Calendar:
    """Times at which something ends: one SimPy timeout each.

    With a tick (a power of two, far below anything measurable) every delay is a whole number of ticks. Sums and
    differences of times are then exact, so that what happens an hour later happens in the same way to the bit: what
    :mod:`tspsim.engine.steady` rests on. Without one delays are as they are.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self._instants: dict[float, Instant] = {}
        self._rounding = 0.0

    def tick(self, tick_s: float) -> None:
        """Make every delay from now on a whole number of ticks."""
        # Adding and taking off this number rounds to whole ticks: a double has 53 bits.
        self._rounding = 1.5 * 2.0**52 * tick_s

    def at(self, now_s: float, delay_s: float) -> Instant:
        """The timeout that happens ``delay_s`` from now (``now_s`` on the clock), whoever waits for that time."""
        delay_s = (delay_s + self._rounding) - self._rounding
        due_s = now_s + delay_s
        instant = self._instants.get(due_s)
        if instant is None:
            instant = self._instants[due_s] = Instant(self.env, delay_s, due_s, self._begin)
        return instant

    def enter(self, activity: Activity, instant: Instant, call: Callable[[simpy.Event], None]) -> None:
        """``activity`` ends then, unless it is moved; ``call`` is called then."""
        activity.instant, activity.place = instant, len(instant.callbacks)
        instant.callbacks.append(call)

    def move(self, activity: Activity, instant: Instant) -> None:
        """``activity`` ends then instead: its callback stands at that timeout."""
        before = activity.instant
        if instant is not before:
            place, callbacks = activity.place, instant.callbacks
            activity.instant, activity.place = instant, len(callbacks)
            callbacks.append(before.callbacks[place])
            before.callbacks[place] = nothing

    def complete(self, event: simpy.Event, delay_s: float) -> None:
        """``event`` happens ``delay_s`` from now, for certain; its value is that time."""
        delay_s = (delay_s + self._rounding) - self._rounding
        event._ok = True
        event._value = self.env.now + delay_s
        self.env.schedule(event, NORMAL, delay_s)

    def _begin(self, instant: simpy.Event) -> None:
        """What is entered from now on for this time waits for another timeout."""
        del self._instants[cast("Instant", instant).at_s]


@dataclass(slots=True, eq=False)
class Channel:
    """How one group's data moves, every time it does."""

    number: int
    latency_s: float
    fluid_s: float
    #: Constraint (link, or class of links) → share of its capacity taken at full speed; with multiplicities in a
    #: folded run.
    usage: Mapping[Hashable, float]
    #: Seconds a byte of the busiest link takes at full speed: what makes sharing fair in bytes.
    weight: float
    #: The simulated devices that take part, and whose kernels slow down meanwhile; none where copy engines move data.
    devices: Sequence[FluidDevice]
    #: How the data moves, in words.
    algorithm: str
    #: Arrivals that start a transfer.
    parties: int
    #: Channels that may ever share a constraint, directly or through others, have the same region.
    region: int = 0
    #: Constraint → the same of a byte there, where it is not the busiest link that is waited for.
    weight_at: Mapping[Hashable, float] = field(default_factory=dict)
    #: Transfers that wait for more arrivals, by use.
    pending: dict[int, Transfer] = field(default_factory=dict)

    def become(self, other: Channel) -> None:
        """Stand where ``other`` does among the channels; what waits and moves here goes on."""
        for attribute in fields(self):
            if attribute.name != "pending":
                setattr(self, attribute.name, getattr(other, attribute.name))


class Transfer(simpy.Event):
    """One use of a channel, and the event of its end, whose value is the time.

    It waits until ``missing`` is zero (a rendezvous), moves (``remaining_s`` of its time alone left, at ``rate``), then
    its latency passes, then it happens. ``start_s`` is when it began to move.
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
        # What Event.__init__ does and no more: a million of these are made in a run.
        self.env = fluid.env
        self.callbacks = []
        self._value = PENDING
        self.fluid = fluid
        self.channel = channel
        self.missing = channel.parties
        self.rate = 0.0

    def moved(self, _instant: simpy.Event) -> None:
        """All bytes are through; the latency is left."""
        self.fluid.leave(self)
        self.fluid.calendar.complete(self, self.channel.latency_s)


class Fluid:
    """The transfers under way and their rates.

    Parameters
    ----------
    slowdown
        Factor (≥ 1) on a transfer's time while a kernel runs on one of its devices. It is looked at whenever the
        region's rates are, not at every kernel's border: a schedule that overlaps keeps its devices busy throughout.
    toggled
        Takes the computing devices that begin or cease to move data; None where kernels do not care.
    before_settling
        Called first when an instant is settled.
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
        """A rank is ready for its part in a use of a channel; the last to arrive starts it."""
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
        """Data begins to move now; the rate follows when the instant is over."""
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
        """All bytes are through: the links are free again."""
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
        """Channels have new numbers, constraints and regions: transfers under way stand in the new ones, whose rates
        ``solutions`` may have."""
        moving = [transfer for active in self._active.values() for transfer in active]
        self._active, self._changed, self._sharings, self._solutions = {}, {}, {}, solutions
        for transfer in moving:
            self._active.setdefault(transfer.channel.region, []).append(transfer)
            self._changed[transfer.channel.region] = None
        if moving and not self.settling:
            self.settle_later()

    def settle_later(self) -> None:
        """Ask for a settling at the end of this instant (once)."""
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
            if len(active) > FEW:
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
                    # It goes on at another rate.
                    before = transfer.rate
                    transfer.remaining_s -= (now - transfer.since_s) * before
                    transfer.since_s, transfer.rate = now, rate
                    left_s = max(0.0, transfer.remaining_s) / rate
                    if before:
                        calendar.move(transfer, calendar.at(now, left_s))
                    else:
                        calendar.enter(transfer, calendar.at(now, left_s), transfer.moved)

    def _many(self, region: int, active: Sequence[Transfer]) -> Iterable[Transfer]:
        """Share among many, of which an instant touches few; returns those whose rate may be another."""
        sharing = self._sharings.get(region)
        if sharing is None:
            sharing = self._sharings[region] = Sharing(self._solutions)
            for transfer in active:
                sharing.enter(transfer, transfer.channel)
        speeds = sharing.settle()
        for transfer, share in speeds.items():
            transfer.share = share
        # Beside kernels the whole region is looked at, for these come and go meanwhile.
        return active if self.slowdown > 1.0 else speeds
