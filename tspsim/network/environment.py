"""SimPy's environment for runs of millions of events: the same order of the same events, with less between two."""

from __future__ import annotations

from heapq import heappop
from typing import Any

import simpy
from simpy.core import EmptySchedule, StopSimulation
from simpy.events import EventPriority


class Environment(simpy.Environment):
    """A SimPy environment whose time is an attribute, and whose events happen in one loop."""

    #: The current simulation time.
    now = 0.0

    def step(self) -> None:
        """Process the next event; raises as SimPy's does."""
        if not self._queue:
            raise EmptySchedule
        self.now = self._queue[0][0]
        super().step()

    def run(self, until: Any = None) -> Any:
        """As SimPy's: until nothing is left to happen, or as :class:`simpy.Environment` says."""
        if until is not None:
            return super().run(until)
        queue = self._queue
        while queue:
            self.now, _, _, event = heappop(queue)
            self._now = self.now
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            try:
                for callback in callbacks:
                    callback(event)
            except StopSimulation:  # somebody else's run waits for this event
                event.callbacks = callbacks[callbacks.index(callback) + 1 :]
                self.schedule(event, EventPriority(-1))
                raise
            if not event._ok and not hasattr(event, "_defused"):
                failed: BaseException = type(event._value)(*event._value.args)
                failed.__cause__ = event._value
                raise failed
        return None
