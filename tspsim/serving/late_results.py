"""Results of an engine's steps that are read after the next step has been launched."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import simpy

from ..base.memo import once
from .clock import ScheduledEvent
from .sequence import Sequence
from .work import LaunchedCost, StepCost

#: Sequences with their first token, and ended ones.
Results = tuple[list[Sequence], list[Sequence]]


class LateResults:
    """Results of steps with prompts that an engine reads once it has launched the next step.

    One thread launches a step kernel by kernel, and then reads the results of the one before. It begins to launch a
    step when it has launched the one before: results of a step that began at s are read at s plus the times of
    launching both, and not before its end. Where it waits in every layer until it can read how many rows each expert
    gets, launching takes as long as the step: results come with the end of the next, and arrivals are seen up to the
    end of a step. A step of decodes alone is a graph, launched at once. (sgl-project/sglang, managers/scheduler.py,
    event_loop_overlap; disaggregation/prefill.py, event_loop_overlap_disagg_prefill: run_batch, then
    process_batch_result of the last.)

    Parameters
    ----------
    env
        The clock.
    publish
        Called with results, and the time at which they are read.
    cost
        Seconds of a step, and of launching one.
    counts
        Whether the host waits for counts.

    Attributes
    ----------
    counted_last
        Whether the last step had prompts, and the host waited for counts.
    """

    def __init__(
        self, env: simpy.Environment, publish: Callable[[Results, float], None], cost: StepCost, *, counts: bool
    ) -> None:
        self._env, self._publish, self._cost, self._counts = env, publish, cost, counts
        self._due: tuple[Results, float] | None = None
        self.counted_last = False

    @once
    def _launching_s(self) -> float:
        return self._cost.launching_s if isinstance(self._cost, LaunchedCost) else 0.0

    def ends(self, results: Results, start_s: float, end_s: float, *, reads: bool) -> None:
        """A step, or a run of them, is over; ``reads``: it had prompts."""
        self._publish_due(end_s)
        self.counted_last = reads and self._counts
        late_s = inf if self.counted_last else 0.0
        if reads and not self.counted_last:
            late_s = 2.0 * self._launching_s - (end_s - start_s)
        if late_s > 0.0:
            self._due = results, end_s + late_s
        else:
            self._publish(results, end_s)

    def next_begins(self, start_s: float, *, reads: bool) -> None:
        """The next step begins, or nothing runs."""
        if self._due is None:
            return
        due = self._due
        at_s = due[1] if reads else start_s
        if at_s < inf:
            ScheduledEvent(self._env, at_s, lambda: self._publish_due(at_s) if self._due is due else None)

    def _publish_due(self, at_s: float) -> None:
        if self._due is not None:
            (results, _), self._due = self._due, None
            self._publish(results, at_s)
