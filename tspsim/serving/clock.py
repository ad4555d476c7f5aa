"""Something that happens later on a SimPy clock, without a process that waits for it."""

from __future__ import annotations

from collections.abc import Callable

import simpy


def after(env: simpy.Environment, seconds: float, call: Callable[[], None]) -> None:
    """Call once so many seconds have passed; at once where that is no time."""
    if seconds <= 0.0:
        call()
        return
    event = env.timeout(seconds)
    assert event.callbacks is not None
    event.callbacks.append(lambda _event: call())


def reach(env: simpy.Environment, at_s: float) -> bool:
    """Move the clock on to a time, if nothing at all happens up to then; whether it did.

    Who would schedule an event of its own there may go on at once instead: nobody can tell the difference.
    """
    now_s = env._now
    then_s = now_s + (at_s - now_s if at_s > now_s else 0.0)
    if happens_by(env, then_s):
        return False
    env._now = then_s
    return True


def happens_by(env: simpy.Environment, at_s: float) -> bool:
    """Whether anything happens up to a time and at it."""
    coming = env._queue
    return bool(coming) and coming[0][0] <= at_s
