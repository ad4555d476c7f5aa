"""Which of the jobs that wait start now: the family of schedulers of a fleet.

All are gang schedulers: a job has all of its nodes at once, or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...base.registry import Registry
from ...traffic.kind import Kind
from ..desk import JobDispatcher
from ..jobs import FleetJob


class JobScheduler(Kind):
    """A policy. Its fields are keys that a scenario may state beside its kind.

    The contract, which :class:`~tspsim.fleet.desk.JobDispatcher` holds it to: no job starts that does not wait or does
    not fit; only preemptible jobs are stopped. A fleet in which jobs wait, nothing runs and nothing will happen is an
    error. One that promises it (``starvation_free``) starts every job that fits the empty cluster in a bounded time,
    whatever comes behind it.
    """

    registry: ClassVar[Registry[Any]] = Registry("job scheduler", "tspsim.job_schedulers")
    #: Whether no job waits for ever while others come that could go before it.
    starvation_free: ClassVar[bool] = False

    def rank(self, job: FleetJob) -> tuple[Any, ...]:
        """What the queue is sorted by, smaller first; equals in order of submission."""
        return (job.submit_s,)

    def open(self) -> Callable[[JobDispatcher], None]:
        """The policy of one run: called once an instant in which something changed."""
        raise NotImplementedError


JobScheduler.registry.of = type[JobScheduler]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """A name alone is a scheduler without options."""
    return {"kind": value} if isinstance(value, str) else None


def start_in_order(desk: JobDispatcher) -> None:
    """Start jobs from the head of the queue on, until one does not fit."""
    while desk.queue and desk.fits(desk.queue[0]):
        desk.start(desk.queue[0])
