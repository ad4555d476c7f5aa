"""The process of a server that reads requests and streams answers, beside its engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

import simpy

from ..clock import after
from ..requests import Request

Then = Callable[[], None]


@dataclass(frozen=True)
class ProcessTimes:
    """Seconds of one process for all requests.

    Attributes
    ----------
    request_s, prompt_token_s
        Of a request before the engine has it, and of every token of its prompt.
    output_token_s
        Of every token of its answer; counted when the answer ends, so that it delays later requests.
    turns
        Whether all requests at hand get equal shares of the process (an event loop with many awaits a request), so that
        those of a burst reach the engine together; otherwise one is finished after the other.
    """

    request_s: float = 0.0
    prompt_token_s: float = 0.0
    output_token_s: float = 0.0
    turns: bool = False

    def before_s(self, prompt_tokens: int) -> float:
        """Seconds for a request before the engine has it."""
        return self.request_s + self.prompt_token_s * prompt_tokens

    def after_s(self, output_tokens: int) -> float:
        """Seconds for its answer."""
        return self.output_token_s * output_tokens

    def highest_rate(self, prompt_tokens: int, output_tokens: int) -> float:
        """Requests per second that the process can never exceed; inf if it takes no time.

        >>> ProcessTimes(request_s=6e-3, output_token_s=35e-6).highest_rate(220, 200)
        76.92307692307692
        """
        seconds = self.before_s(prompt_tokens) + self.after_s(output_tokens)
        return 1.0 / seconds if seconds > 0.0 else float("inf")


#: Of a server whose process takes no time.
NO_PROCESS = ProcessTimes()


class ServerProcess:
    """The process on a clock: work in the order of arrival, or in turns."""

    def __init__(self, env: simpy.Environment, times: ProcessTimes) -> None:
        self._env, self._times = env, times
        #: When all work so far is done; in turns, when all answers' work is.
        self._free_s = 0.0
        #: In turns: work that each job at hand has had, counted from the first; when that was; jobs by where they end.
        self._share_s, self._at_s = 0.0, 0.0
        self._jobs: list[tuple[float, int, Then]] = []
        self._number = self._plan = 0

    def read(self, request: Request, later_s: float, then: Then) -> None:
        """Calls ``then`` at ``later_s`` after a request has been read, at once if neither takes time."""
        work_s = self._times.before_s(request.prompt_tokens)
        if work_s > 0.0:
            self._take(work_s, later_s, then)
        else:
            _call(self._env, later_s, then)

    def answered(self, request: Request) -> None:
        """An answer has ended: its stream takes the process, before all that is still read."""
        work_s = self._times.after_s(request.output_tokens)
        if work_s > 0.0:
            self._advance()
            self._free_s = max(self._free_s, self._env.now) + work_s
            if self._jobs:
                self._schedule()

    def _take(self, work_s: float, later_s: float, then: Then) -> None:
        if self._times.turns:
            self._advance()
            self._number += 1
            heappush(self._jobs, (self._share_s + work_s, self._number, lambda: _call(self._env, later_s, then)))
            self._schedule()
        else:
            now = self._env.now
            self._free_s = max(self._free_s, now) + work_s
            after(self._env, later_s + (self._free_s - now), then)

    # --- turns ------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        now = self._env.now
        if self._jobs:
            self._share_s += max(0.0, now - max(self._at_s, self._free_s)) / len(self._jobs)
        self._at_s = now

    def _schedule(self) -> None:
        """Schedules the next end; what was scheduled before is void."""
        self._plan += 1
        plan, wait_s = self._plan, (self._jobs[0][0] - self._share_s) * len(self._jobs)
        wait_s += max(0.0, self._free_s - self._env.now)
        after(self._env, max(0.0, wait_s), lambda: self._end(plan))

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._share_s, self._at_s = self._jobs[0][0], self._env.now
        ended: list[Then] = []
        while self._jobs and self._jobs[0][0] <= self._share_s:
            ended.append(heappop(self._jobs)[2])
        if self._jobs:
            self._schedule()
        for then in ended:
            then()


def _call(env: simpy.Environment, later_s: float, then: Then) -> None:
    if later_s > 0.0:
        after(env, later_s, then)
    else:
        then()
