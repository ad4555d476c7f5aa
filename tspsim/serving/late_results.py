"""Results of an engine's steps that are read after the next step has been launched."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from ..base.memo import once
from .clock import ScheduledEvent
from .sequence import Sequence
from .work import LaunchedCost

if TYPE_CHECKING:
    from .replica import EqualSteps, Replica

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

    Attributes
    ----------
    counted_last
        Whether the last step had prompts, and the host waited for counts.
    """

    def __init__(self, replica: Replica, *, applies: bool) -> None:
        self._replica, self._applies = replica, applies
        self._due: tuple[Results, float] | None = None
        self.counted_last = False

    @once
    def _launching_s(self) -> float:
        cost = self._replica.cost
        return cost.launching_s if isinstance(cost, LaunchedCost) else 0.0

    def ends(self, results: Results, run: EqualSteps, end_s: float) -> None:
        """A run of steps is over."""
        if not self._applies:
            self._replica.publish(results, end_s)
            return
        self._publish_due(end_s)
        self.counted_last = run.chunk_tokens > 0 and self._replica.engine.counts_on_host
        late_s = inf if self.counted_last else 0.0
        if run.chunk_tokens and not self.counted_last:
            late_s = 2.0 * self._launching_s - (end_s - run.start_s)
        if late_s > 0.0:
            self._due = results, end_s + late_s
        else:
            self._replica.publish(results, end_s)

    def next_begins(self, start_s: float, reads: bool) -> None:
        """The next step begins, or nothing runs."""
        if self._due is None:
            return
        due, env = self._due, self._replica.env
        at_s = due[1] if reads else start_s
        if at_s < inf:
            ScheduledEvent(env, at_s, lambda: self._publish_due(at_s) if self._due is due else None)

    def _publish_due(self, at_s: float) -> None:
        if self._due is not None:
            (results, _), self._due = self._due, None
            self._replica.publish(results, at_s)
