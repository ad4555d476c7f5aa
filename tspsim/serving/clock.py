"""Callbacks at later times of a SimPy clock, without a process that waits."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import EventPriority

#: LATE: after everything else at a time. LAST: also after the ends of all engines' steps, so that a step sees arrivals
#: up to its begin, including from clients whose answer completed at the same instant.
LATE, LAST = EventPriority(2), EventPriority(3)


class ScheduledEvent(simpy.Event):
    """A callback at a time, with a priority."""

    def __init__(
        self, env: simpy.Environment, at_s: float, action: Callable[[], None], priority: EventPriority = LATE
    ) -> None:
        # Like simpy.Timeout, which has no priority.
        self.env, self._ok, self._value = env, True, None
        self.callbacks = [lambda _: action()]
        now_s = env._now
        env.schedule(self, priority, at_s - now_s if at_s > now_s else 0.0)


def after(env: simpy.Environment, seconds: float, call: Callable[[], None]) -> None:
    """Calls once after ``seconds``; immediately where that is zero."""
    if seconds <= 0.0:
        call()
        return
    event = env.timeout(seconds)
    assert event.callbacks is not None
    event.callbacks.append(lambda _event: call())


def reach(env: simpy.Environment, at_s: float) -> bool:
    """Advances the clock to ``at_s`` if nothing happens up to then; returns whether it did.

    The caller continues at once instead of scheduling an event there: no other process can observe the difference.
    """
    now_s = env._now
    then_s = now_s + (at_s - now_s if at_s > now_s else 0.0)
    if happens_by(env, then_s):
        return False
    env._now = then_s
    return True


def happens_by(env: simpy.Environment, at_s: float) -> bool:
    """Whether an event is due up to and including a time."""
    coming = env._queue
    return bool(coming) and coming[0][0] <= at_s
