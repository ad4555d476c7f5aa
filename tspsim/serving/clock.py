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
