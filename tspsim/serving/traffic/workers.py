"""Workers that run agents' tools: a limited number of calls at once, others wait in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import simpy

from ..clock import after


class Workers:
    """Parameters
    ----------
    count
        Calls that run at once; None: no limit.
    """

    def __init__(self, env: simpy.Environment, count: int | None) -> None:
        self.env, self._free = env, count
        self._waiting: deque[tuple[float, Callable[[], None], Callable[[], None]]] = deque()
        #: Seconds of all begun calls.
        self.busy_s = 0.0

    def run(self, seconds: float, begun: Callable[[], None], ended: Callable[[], None]) -> None:
        """Runs a call of ``seconds`` as soon as a worker is free; ``begun`` and ``ended`` are called."""
        if self._free == 0:
            self._waiting.append((seconds, begun, ended))
            return
        if self._free is not None:
            self._free -= 1
        self._begin(seconds, begun, ended)

    def _begin(self, seconds: float, begun: Callable[[], None], ended: Callable[[], None]) -> None:
        self.busy_s += seconds
        begun()
        after(self.env, seconds, lambda: self._end(ended))

    def _end(self, ended: Callable[[], None]) -> None:
        if self._waiting:
            self._begin(*self._waiting.popleft())
        elif self._free is not None:
            self._free += 1
        ended()
