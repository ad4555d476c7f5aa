"""Activities that share: the calendar they end in, and the solver that gives each its rate.

A *channel* is a place where data moves the same way every time: one collective of one group, or one message between
two ranks. It takes ``latency_s + fluid_s`` alone and, while it moves, a share ``usage[constraint]`` of every link on
its way. A *transfer* is one use of a channel. Transfers that meet on links progress at one max-min fair rate; the
region that changed is solved again, once an instant, after everything that happens at that instant has happened. No
process is interrupted: an activity whose end moves is entered in the calendar anew, and the old entry, finding that
the activity ends at another time, does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import simpy
from simpy.events import NORMAL, EventPriority

from .sharing import Sharing, Solutions

#: After everything else that happens at an instant (SimPy takes smaller numbers first; NORMAL is 1).
LAST = EventPriority(2)
#: Transfers of a region up to which all are shared out at once.
FEW = 32


class Activity(Protocol):
    """Something with an end: the calendar calls :meth:`finish` at ``due_s``, unless it has moved."""

    due_s: float

    def finish(self) -> None: ...


class Device(Protocol):
    """What moves data and computes: how many transfers it takes part in, and the kernels that it runs."""

    moving: int

    @property
    def computing(self) -> Sequence[Activity]: ...


class Completion(simpy.Event):
    """An event that happens in place: :meth:`fire` resumes who waits without a trip through SimPy's queue."""

    __slots__ = ("_ok", "_value", "callbacks", "env")

    def __init__(self, env: simpy.Environment) -> None:
        # What Event.__init__ does and no more: a million of these are made in a run.
        self.env = env
        self.callbacks = []

    def fire(self) -> None:
        self._ok = True
        self._value = None
        callbacks, self.callbacks = self.callbacks, None  # type: ignore[assignment]
        for callback in callbacks:
            callback(self)


class Due(simpy.Event):
    """An event that happens after ``delay_s`` and calls ``callback`` then: a timeout with a priority."""

    __slots__ = ("_ok", "_value", "callbacks", "env")

    def __init__(
        self,
        env: simpy.Environment,
        delay_s: float,
        callback: Callable[[simpy.Event], None],
        priority: EventPriority = NORMAL,
    ) -> None:
        self.env = env
        self.callbacks = [callback]
        self._ok = True
        self._value = None
        env.schedule(self, priority, delay_s)


class Calendar:
    """Ends of activities; all that end at one instant share one SimPy event.

    With a tick (a power of two, far below anything measurable) every delay is a whole number of ticks. Sums and
    differences of times are then exact, so that what happens an hour later happens in the same way to the bit: what
    :mod:`tspsim.engine.steady` rests on. Without one delays are as they are.
    """

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self._days: dict[float, list[Activity]] = {}
        self._rounding = 0.0
        self._ending = False
        self._afterwards: list[Callable[[], None]] = []

    def tick(self, tick_s: float) -> None:
        """Make every delay from now on a whole number of ticks."""
        # Adding and taking off this number rounds to whole ticks: a double has 53 bits.
        self._rounding = 1.5 * 2.0**52 * tick_s

    def enter(self, activity: Activity, delay_s: float) -> None:
        """``activity`` ends ``delay_s`` from now; sets its ``due_s``."""
        delay_s = (delay_s + self._rounding) - self._rounding
        env = self.env
        activity.due_s = due_s = env.now + delay_s
        day = self._days.get(due_s)
        if day is None:
            self._days[due_s] = [activity]
            Due(env, delay_s, self._end)
        else:
            day.append(activity)

    def when_over(self, call: Callable[[], None]) -> None:
        """Call after everything else that happens at this instant."""
        if self._ending:
            self._afterwards.append(call)
        else:
            Due(self.env, 0.0, lambda _event: call(), LAST)

    def _end(self, _event: simpy.Event) -> None:
        now = self.env.now
        self._ending = True
        for activity in self._days.pop(now, ()):
            if activity.due_s == now:
                # An end that moved away and back stands here twice.
                activity.due_s = math.inf
                activity.finish()
        self._ending = False
        if self._afterwards:
            afterwards, self._afterwards = self._afterwards, []
            # Mostly nothing else happens now, and no event is needed to come after it.
            over = self.env.peek() > now
            for call in afterwards:
                if over:
                    call()
                else:
                    self.when_over(call)


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
    devices: Sequence[Device]
    #: How the data moves, in words.
    algorithm: str
    #: Arrivals that start a transfer.
    parties: int
    #: Channels that may ever share a constraint, directly or through others, have the same region.
    region: int = 0
    #: Transfers that wait for more arrivals, by use.
    pending: dict[int, Transfer] = field(default_factory=dict)

    def become(self, other: Channel) -> None:
        """Stand where ``other`` does among the channels; what waits and moves here goes on."""
        for each in fields(self):
            if each.name != "pending":
                setattr(self, each.name, getattr(other, each.name))


class Transfer(Completion):
    """One use of a channel, and the event of its end.

    It waits until ``missing`` is zero (a rendezvous), moves (``remaining_s`` of its time alone left, at ``rate``), then
    its latency passes, then it fires. ``start_s`` is when it began to move.
    """

    __slots__ = ("channel", "due_s", "fluid", "missing", "moving", "rate", "remaining_s", "share", "since_s", "start_s")

    due_s: float
    remaining_s: float
    share: float
    since_s: float
    start_s: float

    def __init__(self, fluid: Fluid, channel: Channel) -> None:
        self.env = fluid.env
        self.callbacks = []
        self.fluid = fluid
        self.channel = channel
        self.missing = channel.parties
        self.rate = 0.0
        self.moving = True

    def finish(self) -> None:
        if self.moving:
            self.moving = False
            self.fluid.leave(self)
            latency_s = self.channel.latency_s
            if latency_s > 0.0:
                self.fluid.calendar.enter(self, latency_s)
                return
        self.fire()


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
        self.calendar.when_over(self._settle)

    def _settle(self) -> None:
        self.settling = False
        if self._before_settling is not None:
            self._before_settling()
        changed, self._changed = self._changed, {}
        now, enter, beside = self.env.now, self.calendar.enter, self._beside_kernels
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
                speeds = solutions.known.get(meeting) or solutions.solve(meeting, [each.channel for each in active])
            for transfer, rate in zip(active, speeds, strict=True):
                if rate > beside:
                    for device in transfer.channel.devices:
                        if device.computing:
                            rate = beside
                            break
                if rate != transfer.rate:
                    # It goes on at another rate.
                    transfer.remaining_s -= (now - transfer.since_s) * transfer.rate
                    transfer.since_s, transfer.rate = now, rate
                    enter(transfer, max(0.0, transfer.remaining_s) / rate)

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
