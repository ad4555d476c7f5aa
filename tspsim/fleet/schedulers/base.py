"""Which waiting jobs start: the family of a fleet's schedulers.

All are gang schedulers: a job gets all of its nodes at once, or waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...base.registry import Registry
from ...traffic.kind import Kind
from ..dispatcher import JobDispatcher
from ..jobs import FleetJob


class JobScheduler(Kind):
    """A policy. Its fields are keys that a scenario may state beside ``kind``.

    Its contract, held by :class:`~tspsim.fleet.dispatcher.JobDispatcher`: only waiting jobs that fit are started, and
    only preemptible jobs are stopped. A fleet in which jobs wait, nothing runs and nothing will happen is an error. A
    ``starvation_free`` policy starts every job that fits the empty cluster in bounded time, whatever is submitted
    later.
    """

    registry: ClassVar[Registry[Any]] = Registry("job scheduler", "tspsim.job_schedulers")
    #: Whether no job waits for ever because of later ones.
    starvation_free: ClassVar[bool] = False

    def rank(self, job: FleetJob) -> tuple[Any, ...]:
        """Sort key of the queue, smaller first; equals in order of submission."""
        return (job.submit_s,)

    def open(self) -> Callable[[JobDispatcher], None]:
        """The policy of one run: called once after every instant in which something changed."""
        raise NotImplementedError


JobScheduler.registry.of = type[JobScheduler]


def shorthand(value: Any) -> Mapping[str, Any] | None:
    """A name alone is a scheduler without options."""
    return {"kind": value} if isinstance(value, str) else None


def start_in_order(dispatcher: JobDispatcher) -> None:
    """Starts jobs from the head of the queue until one does not fit."""
    while dispatcher.queue and dispatcher.fits(dispatcher.queue[0]):
        dispatcher.start(dispatcher.queue[0])
